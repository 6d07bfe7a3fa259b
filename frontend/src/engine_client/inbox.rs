//! Where the outputs of one request's sequences wait for its handler.

use super::timings::Timings;
use nano_ipc::engine_core_output::EngineCoreOutput;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What came for one sequence since its handler last looked.
#[derive(Debug)]
pub struct Arrival {
    /// Which of the request's sequences.
    pub index: usize,
    /// Everything that came, as if the core had sent it at once.
    pub output: EngineCoreOutput,
    /// Moments of the sequence's life up to now.
    pub timings: Timings,
}

/// Where the outputs of one request's sequences wait for its handler.
///
/// Holds at most one arrival a sequence: later outputs are merged into it. So
/// the router never waits for a handler, a slow client costs at most
/// `max_tokens` tokens of memory a sequence, and a handler that was late takes
/// all that came in one go.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    arrivals: Mutex<Vec<Arrival>>,
    arrived: Notify,
}

impl Inbox {
    /// Adds an output of the sequence, and wakes the handler.
    pub fn deliver(&self, index: usize, output: EngineCoreOutput, timings: Timings) {
        let mut arrivals = self.lock();
        match arrivals.iter_mut().find(|held| held.index == index) {
            Some(held) => {
                merge(&mut held.output, output);
                held.timings = timings;
            }
            None => arrivals.push(Arrival {
                index,
                output,
                timings,
            }),
        }
        drop(arrivals);
        self.arrived.notify_one();
    }

    /// Waits until something came, and takes all of it. Cancel-safe.
    pub async fn take(&self) -> Vec<Arrival> {
        loop {
            let arrivals = std::mem::take(&mut *self.lock());
            if !arrivals.is_empty() {
                return arrivals;
            }
            self.arrived.notified().await;
        }
    }

    /// A panic elsewhere cannot leave the list half changed in a way that
    /// matters: an arrival is in it or not.
    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds to an output what the core sent after it.
fn merge(held: &mut EngineCoreOutput, newer: EngineCoreOutput) {
    held.token_ids.extend(newer.token_ids);
    held.logprobs.extend(newer.logprobs);
    if newer.prompt_logprobs.is_some() {
        held.prompt_logprobs = newer.prompt_logprobs;
    }
    held.num_cached_tokens = newer.num_cached_tokens;
    held.first_step_ns = newer.first_step_ns;
    held.finish_reason = newer.finish_reason;
}
