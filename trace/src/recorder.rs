//! A process's recorder, from its start to its end; there is one in a
//! process's life. It owns the rings, the writer thread and the sessions.

use crate::about;
use crate::clock::{RawClock, boottime_ns};
use crate::encoder::Thread;
use crate::file_name::TraceFileName;
use crate::identity::Identity;
use crate::record::Level;
use crate::recording::Recording;
use crate::rings::{Rings, RingsError, SessionSlot, SlotFacts};
use crate::sampler::{Feed, Sampler};
use crate::sessions::{Session, Sessions};
use crate::switches::Switch;
use crate::trace_file::TraceFile;
use crate::writer;
use crate::{
    Begin, SampleRate, SessionError, SessionName, SessionSpec, SessionState, SessionStatus,
};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Where and what a process records.
#[derive(Debug)]
pub struct ProcessTrace {
    /// Where the files go; exists.
    pub dir: PathBuf,
    /// `frontend`, `core`, `worker-0`, `single`.
    pub role: String,
    /// Random word of the server's start.
    pub run: u64,
    /// The memfd of [`Rings`] that the launcher made.
    pub rings: OwnedFd,
    /// Facts of the run, key and value.
    pub facts: Vec<(String, String)>,
    /// So long stays in the rings what was recorded, as far as they have room,
    /// for [`Rings::dump`]; they are of [`Rings::create_keeping`] then.
    pub keep: Option<Duration>,
    /// Sessions that begin at once.
    pub sessions: Vec<SessionSpec>,
}

/// Why a process cannot record.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A process has one recorder.
    #[error("trace: this process records already, or did")]
    Twice,
    /// The role is no part of a file's name.
    #[error("trace: {0:?} is no role of a trace file's name")]
    Role(String),
    /// See there.
    #[error(transparent)]
    Rings(#[from] RingsError),
    /// The rings have been recorded into.
    #[error("trace: the rings are of another process")]
    UsedRings,
    /// One of the sessions cannot begin.
    #[error("trace: {0}")]
    Session(#[from] SessionError),
    /// The file of one of the sessions cannot be made or written.
    #[error("trace: {}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No thread to be had.
    #[error("trace: no thread for the writer: {0}")]
    Thread(io::Error),
}

/// Called with what became of a session that ended by itself.
type OnEnd = Arc<dyn Fn(SessionStatus) + Send + Sync>;

/// See the module.
pub(crate) struct Recorder {
    pub(crate) rings: &'static Rings,
    clock: RawClock,
    identity: Identity,
    dir: PathBuf,
    role: String,
    facts: Vec<(String, String)>,
    pub(crate) keep: Option<Duration>,
    shared: Mutex<Shared>,
    /// Something of `shared` is not as it was.
    pub(crate) changed: Condvar,
    writer: OnceLock<(std::thread::Thread, Thread)>,
    /// Runs while a session wants stack samples. Locked before `shared`.
    sampler: Mutex<Option<Sampler>>,
    pub(crate) feed: Feed,
}

/// What the writer and those who give it orders share.
pub(crate) struct Shared {
    pub(crate) sessions: Sessions,
    /// Begun, and not with the writer yet.
    pub(crate) incoming: Vec<Recording>,
    /// Since when each level above [`Level::Requests`] has been recorded without
    /// a gap: [`Level::Steps`] (counters too), [`Level::Ops`].
    pub(crate) recorded_since_ns: [u64; 2],
    /// Every record up to then is in the files that it belongs to.
    pub(crate) decided_ns: u64,
    /// The process is at its end.
    pub(crate) is_over: bool,
    pub(crate) on_end: Option<OnEnd>,
    level: Level,
}

static STARTED: AtomicBool = AtomicBool::new(false);
static RECORDER: OnceLock<&'static Recorder> = OnceLock::new();

/// The rings that this process records into.
pub(crate) fn rings() -> Option<&'static Rings> {
    RECORDER.get().map(|recorder| recorder.rings)
}

/// A ring fills: the writer should come before its time.
pub(crate) fn wake_writer() {
    if let Some(recorder) = RECORDER.get() {
        recorder.wake();
    }
}

/// Makes the process ready to record, with the sessions that are given.
/// [`finish`] is to be called on every way out of the process.
///
/// # Errors
/// When the process has done so before, or a session cannot begin; nothing is
/// recorded then.
pub fn start(trace: ProcessTrace) -> Result<(), StartError> {
    let role = trace.role.parse::<TraceFileRole>();
    if role.is_err() {
        return Err(StartError::Role(trace.role));
    }
    let rings = Rings::open(trace.rings)?;
    if STARTED.swap(true, Ordering::AcqRel) {
        return Err(StartError::Twice);
    }
    if !rings.take() {
        return Err(StartError::UsedRings);
    }
    let identity = Identity {
        run: trace.run,
        pid: std::process::id(),
        started_ns: boottime_ns(),
    };
    let clock = RawClock::detect();
    rings.set_clock(clock);
    rings.set_identity(&identity);
    rings.set_keep(trace.keep);
    // Threads hold rings until they end, so the mapping lives as long as the process.
    let recorder: &'static Recorder = Box::leak(Box::new(Recorder {
        rings: Box::leak(Box::new(rings)),
        clock,
        identity,
        dir: trace.dir,
        role: trace.role,
        facts: trace.facts,
        keep: trace.keep,
        shared: Mutex::new(Shared {
            sessions: Sessions::default(),
            incoming: Vec::new(),
            recorded_since_ns: [0; 2],
            decided_ns: 0,
            is_over: false,
            on_end: None,
            level: Level::Nothing,
        }),
        changed: Condvar::new(),
        writer: OnceLock::new(),
        sampler: Mutex::new(None),
        feed: Feed::default(),
    }));
    let (tid, wait_tid) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(Thread::writer(0).name)
        .spawn(move || writer::run(recorder, &tid))
        .map_err(StartError::Thread)?;
    let tid = wait_tid
        .recv()
        .map_err(|e| StartError::Thread(io::Error::other(e)))?;
    let header = recorder.rings.header();
    header.writer_tid.store(tid, Ordering::Relaxed);
    // Set for the first time: STARTED let only one of us through.
    let _ = recorder
        .writer
        .set((thread.thread().clone(), Thread::writer(tid)));
    let _ = RECORDER.set(recorder);
    recorder.set_level(&mut recorder.lock());
    for spec in trace.sessions {
        let begun = recorder
            .begin(spec, None)
            .map_err(StartError::from)
            .and_then(failed);
        if let Err(error) = begun {
            finish();
            return Err(error);
        }
    }
    Ok(())
}

/// A role's part of a file's name.
struct TraceFileRole;

impl std::str::FromStr for TraceFileRole {
    type Err = ();

    fn from_str(role: &str) -> Result<TraceFileRole, ()> {
        let name = format!("s.{role}.0-1.{}", crate::EXTENSION);
        let parsed = name.parse::<TraceFileName>().map_err(|_| ())?;
        let is_plain = role.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let is_short = role.len() <= 32;
        match parsed.session == "s" && parsed.to_string() == name && is_plain && is_short {
            true => Ok(TraceFileRole),
            false => Err(()),
        }
    }
}

fn failed(status: SessionStatus) -> Result<(), StartError> {
    match status.state {
        SessionState::Failed(reason) => Err(StartError::File {
            path: status.file,
            reason,
        }),
        _ => Ok(()),
    }
}

impl Recorder {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        // Whole at every moment: nothing in between panics.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some((thread, _)) = self.writer.get() {
            thread.unpark();
        }
    }

    /// Records so much as the sessions need.
    pub(crate) fn set_level(&self, shared: &mut Shared) {
        let level = match shared.is_over {
            true => Level::Nothing,
            false if self.keep.is_some() => shared.sessions.level().max(Level::Steps),
            false => shared.sessions.level(),
        };
        let before = std::mem::replace(&mut shared.level, level);
        if level != before {
            level.set(self.clock);
        }
        let levels = [Level::Steps, Level::Ops].into_iter();
        for (since_ns, of) in shared.recorded_since_ns.iter_mut().zip(levels) {
            if before < of && level >= of {
                *since_ns = boottime_ns();
            }
        }
    }

    /// Makes the file, and then begins, and ends the other session.
    fn begin(
        &self,
        spec: SessionSpec,
        ends: Option<(&SessionName, u64)>,
    ) -> Result<SessionStatus, SessionError> {
        let file_name = self.identity.file_name(&spec.name, &self.role);
        let path = self.dir.join(&file_name);
        let (slot, number) = {
            let mut shared = self.lock();
            if shared.is_over {
                return Err(SessionError::Off);
            }
            let session = shared.sessions.reserve(spec.clone(), path.clone())?;
            (session.slot, session.number)
        };
        // Not under the lock: the disk may take its time.
        let facts = SlotFacts {
            number,
            file_name,
            max_bytes: spec.max_bytes,
            begun_len: 0,
            drops_before: 0,
            marked_only: spec.marked_only,
            detail: spec.detail as u8,
        };
        let samples = spec.sample_rate.map(|rate| self.sample(rate));
        let recording = TraceFile::create(path.clone()).and_then(|file| {
            let mut about = self.about(&spec);
            if let Some(samples) = &samples {
                let what = samples
                    .as_ref()
                    .map_or_else(String::clone, ToString::to_string);
                about.push(("sample_hz".to_owned(), what));
            }
            let rings = self.rings.count();
            let writer = self.writer.get().map_or(Thread::writer(0), |w| w.1.clone());
            let who = (self.role.as_str(), &writer);
            let begun = Recording::begin((slot, facts), self.identity, rings, who, &about, file);
            // Of a session that never was.
            begun.inspect_err(|_| drop(std::fs::remove_file(&path)))
        });
        let recording = recording.map(|mut recording| {
            if let Some(Ok(_)) = samples {
                recording.show_samples(&self.identity);
            }
            recording
        });
        let mut shared = self.lock();
        if let Some(session) = shared.sessions.numbered(number) {
            session.set_samples(samples);
        }
        match recording {
            Ok(_) if shared.is_over => {
                shared.sessions.forget(number);
                drop(shared);
                self.changed.notify_all();
                // Of a session that never was.
                let _ = std::fs::remove_file(&path);
                Err(SessionError::Off)
            }
            Ok(recording) => {
                if let Some((ended, at_ns)) = ends {
                    self.end(&mut shared, ended, at_ns);
                }
                Ok(self.open(&mut shared, recording))
            }
            Err(error) => {
                let file = path.display();
                log::error!("trace: {file}: {error}; nothing is recorded, serving goes on");
                let state = SessionState::Failed(error.to_string());
                let status = shared.sessions.end(number, state);
                self.changed.notify_all();
                status.ok_or(SessionError::Off)
            }
        }
    }

    /// The file is there: from now on the session can be switched.
    fn open(&self, shared: &mut Shared, mut recording: Recording) -> SessionStatus {
        let number = recording.facts().number;
        // What it needs is recorded before it can be on.
        self.set_level(shared);
        recording.set_drops_before(self.rings.drops());
        let now_ns = boottime_ns();
        if let Some(slot) = recording.slot(self.rings) {
            slot.fill(recording.facts());
        }
        let recorded_since_ns = shared.recorded_since_ns;
        let status = shared.sessions.numbered(number).map(|session| {
            session.is_open = true;
            session.recorded_since_ns = recorded_since_ns[session.spec.detail as usize - 1];
            session.set_progress(&recording);
            let at_ns = match session.spec.begin {
                Begin::Now => Some(now_ns),
                Begin::At(ns) => Some(ns.min(u64::MAX >> 1)),
                Begin::Stamped => None,
            };
            if let Some(at_ns) = at_ns {
                session.switch(self.rings, Switch { at_ns, on: true });
            }
            session.status(self.rings, now_ns)
        });
        shared.incoming.push(recording);
        self.wake();
        status.unwrap_or_else(|| unreachable!("it was reserved"))
    }

    fn end(&self, shared: &mut Shared, name: &SessionName, at_ns: u64) {
        if let Some(session) = shared.sessions.open(name)
            && !session.is_ending(self.rings)
        {
            session.slot(self.rings).set_end(at_ns);
            self.wake();
        }
    }

    /// Lets the sampler run, at this rate at least. The rate, or why there are
    /// no samples; the session goes on without them.
    fn sample(&self, rate: SampleRate) -> Result<SampleRate, String> {
        let mut sampler = self.lock_sampler();
        if let Some(sampler) = &mut *sampler
            && !sampler.has_ended()
            && sampler.go_on()
        {
            sampler.set_rate(rate.max(sampler.rate()));
            return Ok(rate);
        }
        // It is about to end, if it is there: waits for its last pass.
        *sampler = None;
        match Sampler::start(rate, self.feed.sink()) {
            Ok(started) => {
                *sampler = Some(started);
                Ok(rate)
            }
            Err(error) => {
                log::warn!("trace: {error}; the session shows none");
                Err(error.to_string())
            }
        }
    }

    /// Lets the sampler go on at the highest rate that a session wants, or end.
    /// Does not wait for it, which may be reading a program's tables.
    pub(crate) fn pace_sampler(&self) {
        let mut sampler = self.lock_sampler();
        let Some(running) = &mut *sampler else { return };
        let mut shared = self.lock();
        if running.has_ended() {
            *sampler = None;
            // Who still has samples did not want that.
            let alive = shared.sessions.alive().iter_mut();
            alive.for_each(Session::lose_sampler);
            return;
        }
        let alive = shared.sessions.alive().iter();
        let wanted = alive.filter_map(|session| session.spec.sample_rate).max();
        drop(shared);
        match wanted {
            Some(rate) => running.set_rate(rate),
            None => running.end_soon(),
        }
    }

    /// Nobody will pace it any longer.
    pub(crate) fn let_sampler_end(&self) {
        if let Some(running) = &*self.lock_sampler() {
            running.end_soon();
        }
    }

    fn lock_sampler(&self) -> MutexGuard<'_, Option<Sampler>> {
        // Whole at every moment: there is one, or none.
        self.sampler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a file says of itself, beside the facts that were given.
    fn about(&self, spec: &SessionSpec) -> Vec<(String, String)> {
        let own = about::of_session(spec, &self.role, self.identity, self.clock);
        self.facts.iter().cloned().chain(own).collect()
    }

    /// Waits for what the writer tells. `false`: it took too long.
    fn wait(&self, timeout: Duration, mut pending: impl FnMut(&mut Shared) -> bool) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), timeout, |shared| pending(shared))
            .unwrap_or_else(PoisonError::into_inner);
        !waited.1.timed_out()
    }
}

/// Begins a session: makes its file, and returns once it can record, without
/// waiting for anybody. If the file cannot be made, the session has failed.
///
/// # Errors
/// When there can be no such session now.
pub fn begin_session(spec: SessionSpec) -> Result<SessionStatus, SessionError> {
    let recorder = RECORDER.get().ok_or(SessionError::Off)?;
    recorder.begin(spec, None)
}

/// Ends a session at a moment of CLOCK_BOOTTIME, and begins another, such that
/// every record belongs to one of them at most; and, if that moment is the one at
/// which the other begins, to one at least. The old one ends in any case.
///
/// # Errors
/// As of [`begin_session`].
pub fn replace_session(
    ended: &SessionName,
    at_ns: u64,
    spec: SessionSpec,
) -> Result<SessionStatus, SessionError> {
    let recorder = RECORDER.get().ok_or(SessionError::Off)?;
    let begun = recorder.begin(spec, Some((ended, at_ns)));
    // Where nothing began.
    recorder.end(&mut recorder.lock(), ended, at_ns);
    begun
}

/// Switches a session on or off from a moment on, in nanoseconds of
/// CLOCK_BOOTTIME. Stamps come in order of time. Does nothing where there is no
/// such session.
pub fn stamp_session(name: &SessionName, at_ns: u64, on: bool) {
    let Some(recorder) = RECORDER.get() else {
        return;
    };
    let mut shared = recorder.lock();
    if let Some(session) = shared.sessions.open(name) {
        let at_ns = at_ns.min(u64::MAX >> 1);
        session.switch(recorder.rings, Switch { at_ns, on });
    }
}

/// Ends a session at a moment of CLOCK_BOOTTIME, or now. It records no more
/// then; its file is finished in the background. How it stands; `None`: there
/// is no such session, nor was one lately.
pub fn end_session(name: &SessionName, at_ns: Option<u64>) -> Option<SessionStatus> {
    let recorder = RECORDER.get()?;
    let mut shared = recorder.lock();
    let now_ns = boottime_ns();
    recorder.end(&mut shared, name, at_ns.unwrap_or(now_ns));
    shared.sessions.status(name, recorder.rings, now_ns)
}

/// Waits until a session's file is whole. `false`: it took too long.
pub fn wait_whole(name: &SessionName, timeout: Duration) -> bool {
    let Some(recorder) = RECORDER.get() else {
        return true;
    };
    recorder.wait(timeout, |shared| {
        let mut alive = shared.sessions.alive().iter();
        alive.any(|session| session.spec.name == *name)
    })
}

/// How the sessions stand that record or are being written, and the last few
/// that are over; the newest last.
pub fn sessions() -> Vec<SessionStatus> {
    RECORDER.get().map_or(Vec::new(), |recorder| {
        let shared = recorder.lock();
        shared.sessions.statuses(recorder.rings, boottime_ns())
    })
}

/// Has `callback` called, by the writer thread, with every session that ends by
/// itself: by its cap, its duration or a failure. It must not take long.
pub fn on_session_end(callback: impl Fn(SessionStatus) + Send + Sync + 'static) {
    if let Some(recorder) = RECORDER.get() {
        recorder.lock().on_end = Some(Arc::new(callback));
    }
}

/// So long does [`finish`] wait for a disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends all sessions and waits until their files are whole. Does nothing where
/// nothing records; may be called again, and from any thread.
pub fn finish() {
    let Some(recorder) = RECORDER.get() else {
        return;
    };
    {
        let mut shared = recorder.lock();
        shared.is_over = true;
        recorder.set_level(&mut shared);
        let now_ns = boottime_ns();
        for session in shared.sessions.alive() {
            if session.is_open && !session.is_ending(recorder.rings) {
                session.slot(recorder.rings).set_end(now_ns);
            }
        }
    }
    recorder.wake();
    if !recorder.wait(PATIENCE, |shared| !shared.sessions.alive().is_empty()) {
        log::error!("trace: the files could not be finished within {PATIENCE:?}");
    }
}

/// Waits until everything recorded before the call is in the files. `false`:
/// no session records, or the disk takes too long.
pub fn flush() -> bool {
    let Some(recorder) = RECORDER.get() else {
        return false;
    };
    let now_ns = boottime_ns();
    recorder.wake();
    let done = recorder.wait(PATIENCE, |shared| {
        !shared.sessions.alive().is_empty() && shared.decided_ns < now_ns
    });
    done && !recorder.lock().sessions.alive().is_empty()
}

/// Checks the invariants of the rings; while nothing is recorded.
///
/// # Errors
/// The first one that does not hold, in words.
pub fn check_integrity() -> Result<(), String> {
    let recorder = RECORDER.get();
    recorder.map_or(Ok(()), |recorder| recorder.rings.check_integrity())
}

// Role, run and pid take less than what a session's name leaves.
const _: () = assert!(SessionName::MAX_BYTES + 80 < SessionSlot::FILE_NAME_BYTES);
