//! The thread that drains a process's rings into its session's file.

use crate::drain::{Drain, Stop};
use crate::encoder::EndReason;
use crate::record;
use crate::rings::{Phase, Rings};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// What becomes of a process's recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on.
    Recording,
    /// It ended as it was told to; the file is whole.
    Finished,
    /// It reached its cap of bytes; the file is whole.
    Capped,
    /// The file could not be written any further, for this reason; it holds
    /// whole packets until then.
    Failed(String),
}

/// How a process's recording stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where it goes.
    pub file: PathBuf,
    /// The file's length.
    pub bytes: u64,
    /// Records in the file.
    pub events: u64,
    /// Records that were lost: found no room in their ring, or had no
    /// counterpart because that had found none.
    pub drops: u64,
    /// What becomes of it.
    pub state: State,
    /// When it began.
    pub since: SystemTime,
}

/// What the writer and those who wait for it share.
#[derive(Debug)]
pub(crate) struct Control {
    stop: AtomicBool,
    flushes_wanted: AtomicU64,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug)]
struct Progress {
    status: Status,
    flushes_done: u64,
    /// The writer will do no more.
    over: bool,
}

/// So long may a record lie in its ring, and a little less, because a pass and
/// a late wake-up take time too.
const INTERVAL: Duration = Duration::from_millis(200);

impl Control {
    pub(crate) fn new(status: Status) -> Control {
        Control {
            stop: AtomicBool::new(false),
            flushes_wanted: AtomicU64::new(0),
            progress: Mutex::new(Progress {
                status,
                flushes_done: 0,
                over: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Plain values, whole at every moment.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> Status {
        self.progress().status.clone()
    }

    /// Tells the writer to finish; the caller wakes it.
    pub(crate) fn order_stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Tells the writer to make a pass; the caller wakes it. Returns the number to wait for.
    pub(crate) fn order_flush(&self) -> u64 {
        self.flushes_wanted.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Waits until the writer has done flush `number`, or does no more. `false`: it took too long.
    pub(crate) fn wait(&self, number: u64, timeout: Duration) -> bool {
        let pending = |p: &mut Progress| !p.over && p.flushes_done < number;
        let progress = self.progress();
        let waited = self
            .changed
            .wait_timeout_while(progress, timeout, pending)
            .unwrap_or_else(PoisonError::into_inner);
        !waited.1.timed_out()
    }
}

/// The writer thread's life, from an open file on.
pub(crate) fn run(rings: &'static Rings, mut drain: Drain<'static>, control: &Control) {
    // However this thread ends, nobody waits for it any longer.
    let _over = Over { rings, control };
    let outcome = loop_until_stopped(&mut drain, control);
    record::end_session();
    let reason = match &outcome {
        Ok(()) => EndReason::Finished,
        Err(Stop::ByteCap) => EndReason::ByteCap,
        Err(Stop::Io(error)) => return fail(&drain, control, error),
    };
    let until = match reason {
        EndReason::ByteCap => 0,
        _ => drain.newest_ns(),
    };
    if let Err(Stop::Io(error)) = drain.end(reason, until) {
        return fail(&drain, control, &error);
    }
    let state = match reason {
        EndReason::ByteCap => {
            log::warn!(
                "trace: {} reached its cap, recording ends",
                drain.file().path().display()
            );
            State::Capped
        }
        _ => State::Finished,
    };
    publish(&drain, control, state, None);
}

fn loop_until_stopped(drain: &mut Drain<'_>, control: &Control) -> Result<(), Stop> {
    let mut busy = false;
    loop {
        if !busy && !control.stop.load(Ordering::Acquire) {
            std::thread::park_timeout(INTERVAL);
        }
        // Read before the pass, which then covers what was asked.
        let stop = control.stop.load(Ordering::Acquire);
        let flush = control.flushes_wanted.load(Ordering::Acquire);
        busy = drain.pass()?;
        publish(drain, control, State::Recording, Some(flush));
        if stop {
            return Ok(());
        }
    }
}

fn fail(drain: &Drain<'_>, control: &Control, error: &std::io::Error) {
    let file = drain.file().path().display();
    log::error!("trace: {file}: {error}; recording ends, serving goes on");
    publish(drain, control, State::Failed(error.to_string()), None);
}

fn publish(drain: &Drain<'_>, control: &Control, state: State, flush: Option<u64>) {
    let mut progress = control.progress();
    progress.status.bytes = drain.file().len();
    progress.status.events = drain.events();
    progress.status.drops = drain.dropped();
    progress.status.state = state;
    if let Some(flush) = flush {
        progress.flushes_done = flush;
    }
    drop(progress);
    control.changed.notify_all();
}

struct Over<'a> {
    rings: &'static Rings,
    control: &'a Control,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        record::end_session();
        // Nothing for a salvager to add.
        self.rings.set_phase(Phase::Finished);
        let mut progress = self.control.progress();
        if progress.status.state == State::Recording {
            progress.status.state = State::Failed("the writer ended unexpectedly".to_owned());
        }
        progress.over = true;
        drop(progress);
        self.control.changed.notify_all();
    }
}
