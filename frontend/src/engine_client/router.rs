//! Which open sequence belongs to whom: the state of the connection's task.

use super::inbox::Inbox;
use super::slow_rules::{SlowRules, Watched};
use super::timings::Timings;
use crate::metrics::EngineMetrics;
use nano_ipc::engine_core_output::{EngineCoreOutput, FinishReason};
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// How a sequence ended, for metrics, logs and traces; in the order of the
/// trace's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A stop token, or a stop string that the frontend found.
    Stop,
    /// As long as it may be.
    Length,
    /// Its client went away or gave it up.
    Abort,
    /// It failed.
    Error,
}

impl Ending {
    /// The name that metrics, logs and traces show.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Stop => "stop",
            Ending::Length => "length",
            Ending::Abort => "abort",
            Ending::Error => "error",
        }
    }

    pub(super) fn of(reason: &FinishReason) -> Ending {
        match reason {
            FinishReason::Stop => Ending::Stop,
            FinishReason::Length => Ending::Length,
            FinishReason::Abort => Ending::Abort,
            FinishReason::Error(_) | FinishReason::Refused(_) => Ending::Error,
        }
    }
}

/// One open sequence.
///
/// Holds: its handler is told of its end exactly once. One that is dropped
/// before, because the task that owned it panicked, fails.
pub(super) struct Route {
    id: RequestId,
    inbox: Arc<Inbox>,
    index: usize,
    prompt_tokens: u32,
    max_tokens: u32,
    timings: Timings,
    /// Present where something can be too slow.
    watched: Option<Watched>,
    /// The handler knows that it ended, or ended it itself.
    told: bool,
    /// Returns when the route ends.
    _permit: OwnedSemaphorePermit,
}

impl Route {
    pub fn new(
        request: &EngineCoreRequest,
        inbox: Arc<Inbox>,
        index: usize,
        arrived_ns: u64,
        permit: OwnedSemaphorePermit,
    ) -> Route {
        Route {
            id: request.id,
            inbox,
            index,
            prompt_tokens: request.prompt_token_ids.len() as u32,
            max_tokens: request.max_tokens,
            timings: Timings {
                arrived_ns,
                ..Timings::default()
            },
            watched: None,
            told: false,
            _permit: permit,
        }
    }

    fn end(mut self, ending: Ending, now_ns: u64, metrics: &EngineMetrics, slow: &SlowRules) {
        self.finish(ending, now_ns, metrics, slow);
        self.told = true;
    }

    /// Counts and judges what ends.
    fn finish(&self, ending: Ending, now_ns: u64, metrics: &EngineMetrics, slow: &SlowRules) {
        metrics.finished(ending, self.prompt_tokens, &self.timings, now_ns);
        if let Some(watched) = &self.watched {
            slow.ended(watched, &self.timings, now_ns);
        }
    }

    /// Tells the handler that its sequence never reached the engine.
    pub fn refuse(mut self, reason: String) {
        self.tell(reason);
    }

    fn fail(self, reason: String, now_ns: u64, metrics: &EngineMetrics, slow: &SlowRules) {
        self.finish(Ending::Error, now_ns, metrics, slow);
        self.refuse(reason);
    }

    fn tell(&mut self, reason: String) {
        self.told = true;
        let output = failure(self.id, reason, self.timings.first_step_ns);
        self.inbox.deliver(self.index, output, self.timings);
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        if !self.told {
            self.tell("the engine's connection broke off".to_owned());
        }
    }
}

fn failure(id: RequestId, reason: String, first_step_ns: u64) -> EngineCoreOutput {
    EngineCoreOutput {
        id,
        token_ids: Vec::new(),
        logprobs: Vec::new(),
        prompt_logprobs: None,
        num_cached_tokens: 0,
        first_step_ns,
        finish_reason: Some(FinishReason::Error(reason)),
    }
}

/// Which open sequence belongs to whom. Does no I/O and reads no clock.
///
/// Holds:
/// - a sequence is here from its submission until its last output, its abort
///   or the engine's death, whichever is first; its permit exactly as long;
/// - outputs for ids that are not here are late, and dropped;
/// - no more tokens are delivered than a sequence asked for.
pub(super) struct Router {
    routes: HashMap<RequestId, Route>,
    metrics: Arc<EngineMetrics>,
    slow: SlowRules,
}

impl Router {
    pub fn new(metrics: Arc<EngineMetrics>, slow: SlowRules) -> Router {
        Router {
            routes: HashMap::new(),
            metrics,
            slow,
        }
    }

    /// What is to be remembered of a request that may turn out to be too slow.
    pub fn watch(&self, request: &EngineCoreRequest) -> Option<Watched> {
        self.slow.watch(request.trace_key, &request.external_id)
    }

    pub fn open(&mut self, id: RequestId, mut route: Route, watched: Option<Watched>) {
        route.watched = watched;
        self.routes.insert(id, route);
    }

    /// Delivers one output; `true` when the core must be told to forget the
    /// sequence, because it sent more than was asked for.
    pub fn deliver(&mut self, mut output: EngineCoreOutput, now_ns: u64) -> bool {
        let id = output.id;
        let Some(route) = self.routes.get_mut(&id) else {
            return false;
        };
        let tokens = output.token_ids.len() as u32;
        let timings = &mut route.timings;
        if tokens > route.max_tokens - timings.num_tokens {
            if let Some(route) = self.routes.remove(&id) {
                let reason = "the engine sent more tokens than were asked for".to_owned();
                route.fail(reason, now_ns, &self.metrics, &self.slow);
            }
            return true;
        }
        timings.first_step_ns = output.first_step_ns;
        if tokens > 0 {
            if timings.first_token_ns == 0 {
                timings.first_token_ns = now_ns;
                self.metrics.first_token(route.prompt_tokens, timings);
                if let Some(watched) = &route.watched {
                    self.slow.first_token(watched, timings, now_ns);
                }
            } else {
                self.metrics.next_token(timings.last_token_ns, now_ns);
                if let Some(watched) = &mut route.watched {
                    self.slow.next_token(watched, timings, now_ns);
                }
            }
            timings.last_token_ns = now_ns;
            timings.num_tokens += tokens;
            self.metrics.generated(tokens);
        }
        // One who asked for no logprobs pays for none.
        output.logprobs.truncate(output.token_ids.len());
        let ending = output.finish_reason.as_ref().map(Ending::of);
        route.inbox.deliver(route.index, output, *timings);
        if let Some(ending) = ending
            && let Some(route) = self.routes.remove(&id)
        {
            route.end(ending, now_ns, &self.metrics, &self.slow);
        }
        false
    }

    /// Forgets a sequence that nobody waits for any more; `false` when it had ended.
    pub fn close(&mut self, id: RequestId, ending: Ending, now_ns: u64) -> bool {
        match self.routes.remove(&id) {
            Some(route) => {
                route.end(ending, now_ns, &self.metrics, &self.slow);
                true
            }
            None => false,
        }
    }

    /// Ends every open sequence with an error; returns their ids.
    pub fn fail_all(&mut self, reason: &str, now_ns: u64) -> Vec<RequestId> {
        let mut ids = Vec::new();
        for (id, route) in self.routes.drain() {
            route.fail(reason.to_owned(), now_ns, &self.metrics, &self.slow);
            ids.push(id);
        }
        ids
    }

    /// Number of open sequences.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Panics when an invariant is broken. `permits_taken`: of the admission,
    /// by open routes and by requests that are not submitted yet.
    pub fn check_integrity(&self, permits_taken: usize) {
        assert!(
            self.routes.len() <= permits_taken,
            "{} open sequences hold {permits_taken} permits",
            self.routes.len()
        );
        for (id, route) in &self.routes {
            let timings = &route.timings;
            assert!(timings.num_tokens <= route.max_tokens, "{id:?}");
            assert!(timings.first_token_ns <= timings.last_token_ns, "{id:?}");
            assert_eq!(
                timings.num_tokens == 0,
                timings.first_token_ns == 0,
                "{id:?}"
            );
        }
    }
}
