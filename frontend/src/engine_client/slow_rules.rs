//! What the flight recorder's rules call too slow in the frontend: a request's
//! first token, and its next one.

use super::Timings;
use nano_ipc::flight::{FlightRules, Rule, RuleFired, RuleKind};
use nano_trace::{Event, RequestTrack};
use std::time::Duration;

/// See the module. Without a rule nothing is done or remembered.
pub struct SlowRules {
    first_token: Option<Duration>,
    next_token: Option<Duration>,
    report: Box<dyn Fn(RuleFired) + Send>,
}

/// One sequence, of which something may be too slow.
#[derive(Debug)]
pub(super) struct Watched {
    trace_key: u64,
    request_id: String,
    /// A token came too late; no other one counts.
    has_fired: bool,
}

impl SlowRules {
    /// Of the rules those that a frontend can judge. `report` is told of each
    /// that fires, at most once a rule and sequence; it must not block.
    pub fn new(rules: &FlightRules, report: impl Fn(RuleFired) + Send + 'static) -> SlowRules {
        SlowRules {
            first_token: rules.limit(RuleKind::Ttft),
            next_token: rules.limit(RuleKind::Itl),
            report: Box::new(report),
        }
    }

    /// Nothing is too slow.
    #[cfg(test)]
    pub fn none() -> SlowRules {
        SlowRules::new(&FlightRules::default(), |_| {})
    }

    /// A sequence is submitted.
    pub(super) fn watch(&self, trace_key: u64, request_id: &str) -> Option<Watched> {
        let judges = self.first_token.is_some() || self.next_token.is_some();
        judges.then(|| Watched {
            trace_key,
            request_id: request_id.to_owned(),
            has_fired: false,
        })
    }

    /// A sequence's first token came, at `now_ns`.
    pub(super) fn first_token(&self, watched: &Watched, timings: &Timings, now_ns: u64) {
        if let Some(limit) = self.first_token {
            let took_ns = now_ns.saturating_sub(timings.arrived_ns);
            self.judge(RuleKind::Ttft, limit, took_ns, watched);
        }
    }

    /// A sequence ended, at `now_ns`. One without a token waited for it until now.
    pub(super) fn ended(&self, watched: &Watched, timings: &Timings, now_ns: u64) {
        if timings.num_tokens == 0 {
            self.first_token(watched, timings, now_ns);
        }
    }

    /// Another token came, at `now_ns`.
    pub(super) fn next_token(&self, watched: &mut Watched, timings: &Timings, now_ns: u64) {
        if let (Some(limit), false) = (self.next_token, watched.has_fired) {
            let took_ns = now_ns.saturating_sub(timings.last_token_ns);
            watched.has_fired = self.judge(RuleKind::Itl, limit, took_ns, watched);
        }
    }

    /// Whether the rule fired.
    fn judge(&self, kind: RuleKind, limit: Duration, took_ns: u64, watched: &Watched) -> bool {
        let value = Duration::from_nanos(took_ns);
        if value <= limit {
            return false;
        }
        let rule = Rule { kind, limit };
        let track = RequestTrack::new(watched.trace_key);
        track.instant(Event::SlowRequest, rule.args(value), &[]);
        (self.report)(RuleFired {
            rule,
            value,
            request_id: Some(watched.request_id.clone()),
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const MS: u64 = 1_000_000;

    #[test]
    fn tokens_that_come_too_late_fire_once_a_rule_and_sequence() {
        let (sender, fired) = channel();
        let rules = "ttft_ms>10,itl_ms>5".parse().expect("rules");
        let rules = SlowRules::new(&rules, move |fired| sender.send(fired).expect("it waits"));
        let mut watched = rules.watch(7, "cmpl-7").expect("there are rules");
        let timings = Timings {
            arrived_ns: MS,
            last_token_ns: 11 * MS,
            ..Timings::default()
        };
        rules.first_token(&watched, &timings, 11 * MS);
        rules.next_token(&mut watched, &timings, 16 * MS);
        assert!(fired.try_recv().is_err(), "in time");
        rules.first_token(&watched, &timings, 11 * MS + 1);
        for _ in 0..3 {
            rules.next_token(&mut watched, &timings, 17 * MS);
        }
        let fired: Vec<RuleFired> = fired.try_iter().collect();
        let shown: Vec<String> = fired.iter().map(|fired| fired.rule.to_string()).collect();
        assert_eq!(shown, ["ttft_ms>10", "itl_ms>5"]);
        assert_eq!(fired[1].value, Duration::from_millis(6));
        assert_eq!(fired[1].request_id.as_deref(), Some("cmpl-7"));
        assert!(SlowRules::none().watch(7, "cmpl-7").is_none());
    }
}
