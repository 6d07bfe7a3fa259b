//! The handle of one request's sequences in the engine.

use super::inbox::{Arrival, Inbox};
use super::router::Ending;
use super::{Command, Timings};
use crate::request_trace::SequenceTrace;
use nano_ipc::engine_core_request::RequestId;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// One sequence in the engine, as its handler sees it.
pub(super) struct OpenSequence {
    pub id: RequestId,
    pub trace: SequenceTrace,
    /// Set once its last output was taken or it was stopped.
    pub ending: Option<Ending>,
}

/// The handle of one request's sequences in the engine. Dropping it aborts
/// those that still run, in whatever state they are.
pub struct Generation {
    pub(super) sequences: Vec<OpenSequence>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) arrived_ns: u64,
    pub(super) commands: UnboundedSender<Command>,
}

impl Generation {
    /// Waits until something came, and takes all of it, one arrival a
    /// sequence. Empty once every sequence has ended. Cancel-safe.
    pub async fn next(&mut self) -> Vec<Arrival> {
        loop {
            if self.sequences.iter().all(|s| s.ending.is_some()) {
                return Vec::new();
            }
            let mut arrivals = self.inbox.take().await;
            arrivals.retain(|arrival| self.note(arrival));
            if !arrivals.is_empty() {
                return arrivals;
            }
        }
    }

    /// How each sequence ended; `None` for those that still run.
    pub fn endings(&self) -> impl Iterator<Item = Option<Ending>> {
        self.sequences.iter().map(|sequence| sequence.ending)
    }

    /// Moments before anything came.
    pub fn timings(&self) -> Timings {
        Timings {
            arrived_ns: self.arrived_ns,
            ..Timings::default()
        }
    }

    /// Follows a sequence's state; `false` for one that was stopped before.
    fn note(&mut self, arrival: &Arrival) -> bool {
        let Some(sequence) = self.sequences.get_mut(arrival.index) else {
            return false;
        };
        if sequence.ending.is_some() {
            return false;
        }
        sequence.trace.output(&arrival.output);
        sequence.ending = arrival.output.finish_reason.as_ref().map(Ending::of);
        true
    }

    /// Ends a sequence whose client has all that it asked for: a stop string
    /// was found.
    pub fn stop(&mut self, index: usize) {
        if let Some(sequence) = self.sequences.get_mut(index)
            && sequence.ending.is_none()
        {
            sequence.ending = Some(Ending::Stop);
            close(&self.commands, sequence.id, Ending::Stop);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        for sequence in &mut self.sequences {
            let ending = *sequence.ending.get_or_insert_with(|| {
                close(&self.commands, sequence.id, Ending::Abort);
                Ending::Abort
            });
            sequence.trace.finish(ending);
        }
    }
}

fn close(commands: &UnboundedSender<Command>, id: RequestId, ending: Ending) {
    // Fails only when the engine is dead: then nothing runs.
    let _ = commands.send(Command::Close { id, ending });
}
