//! A process's recording, from its start to its end. There is one in a
//! process's life: session `auto`.

use crate::clock::{RawClock, boottime_ns};
use crate::drain::{Drain, Stop};
use crate::encoder::{Encoder, Thread};
use crate::file_name::TraceFileName;
use crate::identity::Identity;
use crate::record;
use crate::request_tracks::RequestTracks;
use crate::rings::{Phase, Rings, RingsError};
use crate::trace_file::TraceFile;
use crate::writer::{self, Control, State, Status};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Where and what a process records.
#[derive(Debug)]
pub struct ProcessTrace {
    /// Where the file goes; exists.
    pub dir: PathBuf,
    /// The session's name: `auto`.
    pub session: String,
    /// `frontend`, `core`, `worker-0`, `single`.
    pub role: String,
    /// Random word of the server's start.
    pub run: u64,
    /// The file never grows beyond; at least [`ProcessTrace::MIN_BYTES`].
    pub max_bytes: u64,
    /// The memfd of [`Rings`] that the launcher made.
    pub rings: OwnedFd,
    /// Facts of the run, key and value.
    pub facts: Vec<(String, String)>,
}

impl ProcessTrace {
    /// The smallest cap.
    pub const MIN_BYTES: u64 = 128 << 10;
}

/// Why a process cannot record.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A process records once.
    #[error("trace: this process records already, or did")]
    Twice,
    /// Session or role are no part of a file's name.
    #[error("trace: {0:?} is no name of a trace file")]
    Name(String),
    /// The cap is too small for any trace.
    #[error("trace: a cap of {0} bytes is less than {min}", min = ProcessTrace::MIN_BYTES)]
    Cap(u64),
    /// See there.
    #[error(transparent)]
    Rings(#[from] RingsError),
    /// The rings have been recorded into.
    #[error("trace: the rings are of another process")]
    UsedRings,
    /// The file cannot be made or written.
    #[error("trace: {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No thread to be had.
    #[error("trace: no thread for the writer: {0}")]
    Thread(io::Error),
}

struct Process {
    rings: &'static Rings,
    control: &'static Control,
    writer: std::thread::Thread,
}

static STARTED: AtomicBool = AtomicBool::new(false);
static RINGS: OnceLock<&'static Rings> = OnceLock::new();
static PROCESS: OnceLock<Process> = OnceLock::new();

/// The rings that this process records into.
pub(crate) fn rings() -> Option<&'static Rings> {
    RINGS.get().copied()
}

/// A ring fills: the writer should come before its time.
pub(crate) fn wake_writer() {
    if let Some(process) = PROCESS.get() {
        process.writer.unpark();
    }
}

/// Begins to record: makes the file, writes what the process is, and starts
/// the writer thread. [`finish`] is to be called on every way out of the process.
///
/// # Errors
/// When the directory cannot be written, or the process has recorded before;
/// nothing is recorded then.
pub fn start(trace: ProcessTrace) -> Result<(), StartError> {
    let pid = std::process::id();
    let name = format!(
        "{}.{}.{:016x}-{pid}.{}",
        trace.session,
        trace.role,
        trace.run,
        crate::EXTENSION
    );
    let is_name = name
        .parse::<TraceFileName>()
        .is_ok_and(|parsed| parsed.session == trace.session && parsed.to_string() == name);
    if !is_name || name.contains(['/', '\0']) || name.len() > Rings::FILE_NAME_BYTES {
        return Err(StartError::Name(name));
    }
    if trace.max_bytes < ProcessTrace::MIN_BYTES {
        return Err(StartError::Cap(trace.max_bytes));
    }
    let rings = Rings::open(trace.rings)?;
    if rings.phase() != Phase::Fresh {
        return Err(StartError::UsedRings);
    }
    if STARTED.swap(true, Ordering::AcqRel) {
        return Err(StartError::Twice);
    }

    let path = trace.dir.join(&name);
    let file_error = |source| StartError::File {
        path: path.clone(),
        source,
    };
    let file = TraceFile::create(path.clone()).map_err(file_error)?;
    // Threads hold rings until they end, so the mapping lives as long as the process.
    let rings: &'static Rings = Box::leak(Box::new(rings));
    let identity = Identity {
        run: trace.run,
        pid,
        started_ns: boottime_ns(),
    };
    let clock = RawClock::detect();
    rings.set_clock(clock);
    rings.set_identity(&identity, trace.max_bytes);
    rings.set_file_name(&name);

    let encoder = Encoder::new(identity, "process", rings.count(), RequestTracks::default());
    let mut drain = Drain::new(rings, encoder, file, trace.max_bytes);
    drain.anchor();
    let status = Status {
        file: path.clone(),
        bytes: 0,
        events: 0,
        drops: 0,
        state: State::Recording,
        since: SystemTime::now(),
    };
    let control: &'static Control = Box::leak(Box::new(Control::new(status)));
    let facts = facts(&trace.facts, &trace.session, &trace.role, &identity, clock);
    let role = trace.role;

    let (opened, wait_opened) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(Thread::writer(0).name)
        .spawn(move || {
            // The process's own sequence is that of this thread.
            let tid = nix::unistd::gettid().as_raw() as u32;
            rings.header().writer_tid.store(tid, Ordering::Relaxed);
            let thread = Thread::writer(tid);
            drain.encoder().open_process(&role, &thread, &facts);
            let outcome = drain.flush();
            let good = outcome.is_ok();
            // The receiver waits below.
            let _ = opened.send(outcome);
            if good {
                writer::run(rings, drain, control);
            }
        })
        .map_err(StartError::Thread)?;
    match wait_opened.recv() {
        Ok(Ok(())) => {}
        Ok(Err(Stop::Io(error))) => return Err(file_error(error)),
        Ok(Err(Stop::ByteCap)) | Err(_) => {
            return Err(file_error(io::Error::other("cannot be begun")));
        }
    }

    // Both are set for the first time: STARTED let only one of us through.
    let _ = RINGS.set(rings);
    let _ = PROCESS.set(Process {
        rings,
        control,
        writer: thread.thread().clone(),
    });
    rings.set_phase(Phase::Recording);
    record::begin_session(1, clock);
    Ok(())
}

/// What every file says of itself, beside the facts that were given.
fn facts(
    given: &[(String, String)],
    session: &str,
    role: &str,
    identity: &Identity,
    clock: RawClock,
) -> Vec<(String, String)> {
    let own = [
        ("session", session.to_owned()),
        ("role", role.to_owned()),
        ("run", format!("{:016x}", identity.run)),
        ("pid", identity.pid.to_string()),
        ("recording_clock", format!("{clock:?}").to_lowercase()),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value));
    given.iter().cloned().chain(own).collect()
}

/// So long does [`finish`] wait for a disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends the recording and waits until the file is whole. Does nothing where
/// nothing records; may be called again, and from any thread.
pub fn finish() {
    let Some(process) = PROCESS.get() else { return };
    record::end_session();
    process.control.order_stop();
    process.writer.unpark();
    if !process.control.wait(u64::MAX, PATIENCE) {
        log::error!("trace: the file could not be finished within {PATIENCE:?}");
    }
}

/// Waits until everything recorded before the call is in the file. `false`:
/// nothing records any more, or the disk takes too long.
pub fn flush() -> bool {
    let Some(process) = PROCESS.get() else {
        return false;
    };
    let number = process.control.order_flush();
    process.writer.unpark();
    process.control.wait(number, PATIENCE) && status().is_some_and(|s| s.state == State::Recording)
}

/// How this process's recording stands; `None`: there never was one.
pub fn status() -> Option<Status> {
    let process = PROCESS.get()?;
    Some(process.control.status())
}

/// Checks the invariants of the rings; while nothing is recorded.
///
/// # Errors
/// The first one that does not hold, in words.
pub fn check_integrity() -> Result<(), String> {
    PROCESS
        .get()
        .map_or(Ok(()), |process| process.rings.check_integrity())
}
