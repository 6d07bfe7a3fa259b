//! What the flight recorder's rules call too slow in the core: the wait for a
//! request's first step, and turns of the loop.
//!
//! Without a rule it does nothing and remembers nothing.

use crate::scheduler::{SchedulerEvent, TracedEvent};
use nano_ipc::engine_core_request::EngineCoreRequest;
use nano_ipc::flight::{FlightRules, Rule, RuleFired, RuleKind};
use nano_trace::{Event, RequestTrack};
use std::collections::HashMap;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct SlowRules {
    queue: Option<Duration>,
    step: Option<Duration>,
    /// By trace key: requests that have not been in a step; of a rule for them only.
    queued: HashMap<u64, Queued>,
}

#[derive(Debug)]
struct Queued {
    request_id: String,
    /// CLOCK_BOOTTIME.
    since_ns: u64,
}

impl SlowRules {
    /// Of the rules those that the core can judge.
    pub fn new(rules: &FlightRules) -> SlowRules {
        SlowRules {
            queue: rules.limit(RuleKind::Queue),
            step: rules.limit(RuleKind::Step),
            queued: HashMap::new(),
        }
    }

    /// A request has come; `now_ns` reads the clock.
    pub fn added(&mut self, request: &EngineCoreRequest, now_ns: impl Fn() -> u64) {
        if self.queue.is_some() {
            let queued = Queued {
                request_id: request.external_id.clone(),
                since_ns: now_ns(),
            };
            self.queued.insert(request.trace_key, queued);
        }
    }

    /// The request was refused, and never waits.
    pub fn refused(&mut self, trace_key: u64) {
        self.queued.remove(&trace_key);
    }

    /// Looks at what the scheduler tells. Which rule has fired: at most once a
    /// request, and its track shows it.
    pub fn saw(&mut self, events: &[TracedEvent], now_ns: impl Fn() -> u64) -> Vec<RuleFired> {
        let Some(limit) = self.queue else {
            return Vec::new();
        };
        let ends_wait = |event: &&TracedEvent| {
            matches!(
                event.event,
                SchedulerEvent::PrefillPlanned { .. }
                    | SchedulerEvent::Finished
                    | SchedulerEvent::Aborted
            )
        };
        let mut fired = Vec::new();
        for event in events.iter().filter(ends_wait) {
            let Some(queued) = self.queued.remove(&event.trace_key) else {
                continue;
            };
            let waited = Duration::from_nanos(now_ns().saturating_sub(queued.since_ns));
            if waited > limit {
                let kind = RuleKind::Queue;
                let rule = Rule { kind, limit };
                let track = RequestTrack::new(event.trace_key);
                track.instant(Event::SlowQueue, rule.args(waited), &[]);
                fired.push(RuleFired {
                    rule,
                    value: waited,
                    request_id: Some(queued.request_id),
                });
            }
        }
        fired
    }

    /// A turn of the loop that began at `began_ns` ends; it is still open on the
    /// thread's track, which shows it if it was too slow.
    pub fn stepped(&self, began_ns: u64, now_ns: impl Fn() -> u64) -> Option<RuleFired> {
        let limit = self.step?;
        let took = Duration::from_nanos(now_ns().saturating_sub(began_ns));
        (took > limit).then(|| {
            let kind = RuleKind::Step;
            let rule = Rule { kind, limit };
            nano_trace::instant(Event::SlowStep, rule.args(took), &[]);
            RuleFired {
                rule,
                value: took,
                request_id: None,
            }
        })
    }

    /// Requests that are remembered.
    #[cfg(test)]
    pub fn num_queued(&self) -> usize {
        self.queued.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::request;
    use nano_ipc::scheduler_output::StepId;

    const MS: u64 = 1_000_000;

    fn event(trace_key: u64, event: SchedulerEvent) -> TracedEvent {
        TracedEvent {
            trace_key,
            num_prompt_tokens: 1,
            num_output_tokens: 0,
            event,
        }
    }

    const PLANNED: SchedulerEvent = SchedulerEvent::PrefillPlanned {
        step_id: StepId(1),
        num_tokens: 1,
    };

    #[test]
    fn a_request_that_waits_too_long_fires_once() {
        let mut rules = SlowRules::new(&"queue_ms>10".parse().expect("a rule"));
        for key in 1..=4 {
            rules.added(&request(key, &[1], 1), || 0);
        }
        rules.refused(4);
        let in_time = [event(1, SchedulerEvent::Queued), event(1, PLANNED)];
        assert!(rules.saw(&in_time, || 10 * MS).is_empty());
        let late = [event(2, PLANNED), event(2, PLANNED), event(4, PLANNED)];
        let fired = rules.saw(&late, || 11 * MS);
        assert_eq!(fired.len(), 1);
        assert_eq!(fired[0].request_id.as_deref(), Some("request-2"));
        assert_eq!(fired[0].value, Duration::from_millis(11));
        assert_eq!(fired[0].rule.to_string(), "queue_ms>10");
        // One that is given up has waited, too.
        let fired = rules.saw(&[event(3, SchedulerEvent::Aborted)], || 12 * MS);
        assert_eq!(fired.len(), 1);
        assert_eq!(rules.num_queued(), 0);
        assert_eq!(rules.stepped(0, || u64::MAX), None, "no rule for it");
    }

    #[test]
    fn a_step_fires_beyond_its_limit() {
        let mut rules = SlowRules::new(&"step_ms>5".parse().expect("a rule"));
        assert_eq!(rules.stepped(100, || 100 + 5 * MS), None);
        let fired = rules.stepped(100, || 100 + 6 * MS).expect("too slow");
        assert_eq!(
            (fired.value, fired.request_id),
            (Duration::from_millis(6), None)
        );
        // Nothing is remembered for a rule that is not there.
        rules.added(&request(1, &[1], 1), || unreachable!("no clock is read"));
        assert_eq!(rules.num_queued(), 0);
    }
}
