//! The engine as handlers see it: submit sequences, follow their outputs.

mod connection_task;
mod generation;
mod inbox;
mod router;
mod slow_rules;
#[cfg(test)]
mod tests;
mod timings;

pub use generation::Generation;
pub use inbox::Arrival;
pub use router::Ending;
pub use slow_rules::SlowRules;
pub use timings::Timings;

use crate::metrics::EngineMetrics;
use crate::request_trace::SequenceTrace;
use generation::OpenSequence;
use inbox::Inbox;
use nano_ipc::connection::Connection;
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::engine_info::EngineInfo;
use router::Route;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// What the engine is up to.
#[derive(Clone, Debug)]
pub enum EngineState {
    /// Workers load; no request is legal yet.
    Loading,
    /// Requests are accepted.
    Ready(Arc<EngineInfo>),
    /// The connection is gone, for this reason, and will not come back.
    Dead(Arc<str>),
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// As many sequences as allowed are in the engine; later there may be room.
    #[error("too many requests: {0} sequences are in the engine already, the limit")]
    Full(usize),
    /// More sequences than may ever be in the engine.
    #[error("{asked} sequences are asked for, the server takes {limit} at once")]
    TooMany {
        /// Sequences of this request.
        asked: usize,
        /// Of the server.
        limit: usize,
    },
    /// Not ready, or dead.
    #[error("{0}")]
    Unavailable(String),
}

/// What the connection's task is asked to do. The queue is not bounded by
/// itself: each open sequence, and each is bounded by a permit, puts at most
/// one submission and one close into it.
enum Command {
    Submit(Vec<(EngineCoreRequest, Route)>),
    Close {
        id: RequestId,
        ending: Ending,
    },
    /// Every open sequence gets this error.
    FailAll(String),
    /// Answered by the number of open sequences, after checking the invariants.
    Check(oneshot::Sender<usize>),
}

/// The engine as handlers see it. Clones share one connection, which one task
/// owns (`connection_task`).
#[derive(Clone)]
pub struct EngineClient {
    commands: mpsc::UnboundedSender<Command>,
    admission: Arc<Semaphore>,
    max_sequences: usize,
    next_id: Arc<AtomicU64>,
    state: watch::Receiver<EngineState>,
}

/// Room for a request's sequences in the engine.
pub struct Admission {
    permits: OwnedSemaphorePermit,
    commands: mpsc::UnboundedSender<Command>,
    next_id: Arc<AtomicU64>,
}

/// One sequence to submit.
pub struct NewSequence {
    /// Its `id` is given by the client.
    pub request: EngineCoreRequest,
    /// Its track.
    pub trace: SequenceTrace,
}

impl EngineClient {
    /// Greets the core on `connection` and starts the task that owns it.
    /// `run`: the server's random word; `max_sequences`: in the engine at once;
    /// `slow`: what is too slow.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn start(
        connection: Connection,
        run: u64,
        max_sequences: usize,
        metrics: Arc<EngineMetrics>,
        slow: SlowRules,
    ) -> io::Result<EngineClient> {
        let admission = Arc::new(Semaphore::new(max_sequences));
        let (commands, queue) = mpsc::unbounded_channel();
        let (state_sender, state) = watch::channel(EngineState::Loading);
        connection_task::spawn(
            connection,
            run,
            queue,
            slow,
            connection_task::Shared {
                state: state_sender,
                metrics,
                admission: Arc::clone(&admission),
                max_sequences,
            },
        )?;
        Ok(EngineClient {
            commands,
            admission,
            max_sequences,
            next_id: Arc::new(AtomicU64::new(1)),
            state,
        })
    }

    /// What the engine is up to now.
    pub fn state(&self) -> EngineState {
        self.state.borrow().clone()
    }

    /// Follows what the engine is up to.
    pub fn watch_state(&self) -> watch::Receiver<EngineState> {
        self.state.clone()
    }

    /// What the engine turned out to be.
    ///
    /// # Errors
    /// [`AdmissionError::Unavailable`] with the reason while it is not ready.
    pub fn info(&self) -> Result<Arc<EngineInfo>, AdmissionError> {
        match &*self.state.borrow() {
            EngineState::Ready(info) => Ok(Arc::clone(info)),
            EngineState::Loading => Err(AdmissionError::Unavailable(
                "the model is still loading".to_owned(),
            )),
            EngineState::Dead(reason) => Err(AdmissionError::Unavailable(reason.to_string())),
        }
    }

    /// Whether one more sequence would be admitted now.
    ///
    /// # Errors
    /// When it would not.
    pub fn check_room(&self) -> Result<(), AdmissionError> {
        self.admit(1).map(drop)
    }

    /// Reserves room for so many sequences.
    ///
    /// # Errors
    /// When there is none.
    pub fn admit(&self, sequences: usize) -> Result<Admission, AdmissionError> {
        if sequences > self.max_sequences {
            return Err(AdmissionError::TooMany {
                asked: sequences,
                limit: self.max_sequences,
            });
        }
        self.info()?;
        let wanted = u32::try_from(sequences).unwrap_or(u32::MAX);
        let permits = Arc::clone(&self.admission)
            .try_acquire_many_owned(wanted)
            .map_err(|_| {
                AdmissionError::Full(self.max_sequences - self.admission.available_permits())
            })?;
        Ok(Admission {
            permits,
            commands: self.commands.clone(),
            next_id: Arc::clone(&self.next_id),
        })
    }

    /// Sequences that were admitted and have not ended.
    pub fn num_open(&self) -> u32 {
        (self.max_sequences - self.admission.available_permits()) as u32
    }

    /// Ends every open sequence with an error.
    pub fn fail_all(&self, reason: &str) {
        // Fails only when the engine is dead: then all have failed.
        let _ = self.commands.send(Command::FailAll(reason.to_owned()));
    }

    /// Waits until no sequence is in the engine.
    pub async fn drained(&self) {
        let all = u32::try_from(self.max_sequences).unwrap_or(u32::MAX);
        // Never closed: the error cannot happen.
        let _ = self.admission.acquire_many(all).await;
    }

    /// Checks the invariants of the connection's state; returns the number of
    /// open sequences.
    ///
    /// # Panics
    /// The task that owns the state does, when one is broken; then this
    /// returns `None`, as it does when the engine is dead.
    pub async fn check_integrity(&self) -> Option<usize> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Check(answer)).ok()?;
        answered.await.ok()
    }
}

impl Admission {
    /// Hands the sequences to the engine, at most as many as were admitted.
    /// If it dies first, they get an error as every open sequence does.
    pub fn submit(mut self, sequences: Vec<NewSequence>, arrived_ns: u64) -> Generation {
        let inbox = Arc::new(Inbox::default());
        let mut routes = Vec::with_capacity(sequences.len());
        let mut open = Vec::with_capacity(sequences.len());
        for (index, sequence) in sequences.into_iter().enumerate() {
            let NewSequence {
                mut request,
                mut trace,
            } = sequence;
            let Some(permit) = self.permits.split(1) else {
                debug_assert!(false, "more sequences than admitted");
                break;
            };
            request.id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
            trace.submitted(request.prompt_token_ids.len());
            let id = request.id;
            let route = Route::new(&request, Arc::clone(&inbox), index, arrived_ns, permit);
            routes.push((request, route));
            open.push(OpenSequence {
                id,
                trace,
                ending: None,
            });
        }
        if let Err(mpsc::error::SendError(Command::Submit(routes))) =
            self.commands.send(Command::Submit(routes))
        {
            for (_, route) in routes {
                route.refuse("the engine is gone".to_owned());
            }
        }
        Generation {
            sequences: open,
            inbox,
            arrived_ns,
            commands: self.commands,
        }
    }
}
