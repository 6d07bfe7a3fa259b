//! The client's own trace: a track a request, from before its connection to
//! its last token, joined to the server's by the `traceparent` that it sends.

use crate::clock::Moment;
use crate::record::Outcome;
use nano_trace::selection::CLIENT_ROLE;
use nano_trace::{Event, Flow, ProcessTrace, RequestTrack, Rings, SessionName, SessionSpec};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The directory cannot be made.
    #[error("--trace-dir: {0}")]
    Dir(#[from] io::Error),
    /// No memory for the rings.
    #[error(transparent)]
    Rings(#[from] nano_trace::RingsError),
    /// The recorder does not start.
    #[error(transparent)]
    Start(#[from] nano_trace::StartError),
    /// The session's name is none.
    #[error(transparent)]
    Name(#[from] nano_trace::NotASessionName),
}

/// Of the one session, which lasts as long as the process.
const SESSION: &str = "client";
/// Bytes of the trace at most.
const MAX_BYTES: u64 = 256 << 20;

/// Begins to record into `dir`, which is made if it is missing.
/// [`nano_trace::finish`] is to be called at the end.
///
/// # Errors
/// When the directory cannot be written.
pub fn start(dir: &Path, run: u64, facts: Vec<(String, String)>) -> Result<(), TraceError> {
    fs::create_dir_all(dir)?;
    let rings = Rings::create()?.fd().try_clone_to_owned()?;
    let session: SessionName = SESSION.parse()?;
    nano_trace::start(ProcessTrace {
        dir: dir.to_owned(),
        role: CLIENT_ROLE.to_owned(),
        run,
        rings,
        facts,
        keep: None,
        sessions: vec![SessionSpec::new(session, MAX_BYTES)],
    })?;
    Ok(())
}

/// A word that no other run has.
pub fn random_word() -> u64 {
    // The standard library keys its hashers with the system's randomness.
    RandomState::new().build_hasher().finish().max(1)
}

/// What is traced of one request. Calls come in the order of the methods; what
/// is left open when the request ends is closed with it.
#[derive(Clone, Debug)]
pub struct RequestTrace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    trace_id: u128,
    /// Nanoseconds; 0: not yet.
    sent: AtomicU64,
    has_token: AtomicBool,
    phase: Mutex<Phase>,
}

/// Which slice within the request's is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    New,
    Connecting,
    Sending,
    Waiting,
    Streaming,
    Ended,
}

impl Phase {
    fn event(self) -> Option<Event> {
        match self {
            Phase::Connecting => Some(Event::ClientConnect),
            Phase::Sending => Some(Event::ClientSend),
            Phase::Waiting => Some(Event::ClientWait),
            Phase::Streaming => Some(Event::ClientStream),
            Phase::New | Phase::Ended => None,
        }
    }
}

impl RequestTrace {
    /// Begins the track of a run's `number`th request.
    pub fn begin(run: u64, number: u64) -> RequestTrace {
        // A bijection of the number: unique in a run, and never 0 in both halves.
        let low = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let trace_id = u128::from(run) << 64 | u128::from(low);
        let trace = RequestTrace(Arc::new(Inner {
            trace_id,
            sent: AtomicU64::new(0),
            has_token: AtomicBool::new(false),
            phase: Mutex::new(Phase::New),
        }));
        let track = trace.track();
        track.describe(
            Event::ClientRequest,
            &[("traceparent", &trace.traceparent())],
        );
        track.begin(Event::ClientRequest, [], &[]);
        trace
    }

    /// What the server is told.
    pub fn traceparent(&self) -> String {
        let parent = self.0.trace_id as u64;
        format!("00-{:032x}-{parent:016x}-01", self.0.trace_id)
    }

    /// Its trace id.
    pub fn trace_id(&self) -> u128 {
        self.0.trace_id
    }

    /// A connection is wanted.
    pub fn connecting(&self) {
        self.enter(Phase::Connecting, &[]);
    }

    /// There is a connection, which gets the request.
    pub fn sending(&self) {
        self.enter(Phase::Sending, &[self.flow()]);
    }

    /// The connection has taken the request.
    pub fn sent(&self) {
        self.0.sent.store(Moment::now().ns(), Ordering::Relaxed);
        self.enter(Phase::Waiting, &[]);
    }

    /// When the connection had taken it.
    pub fn sent_at(&self) -> Option<Moment> {
        match self.0.sent.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Moment::from_ns(ns)),
        }
    }

    /// The head of the answer came.
    pub fn head(&self) {
        self.enter(Phase::Streaming, &[]);
    }

    /// So many chunks of output came.
    pub fn tokens(&self, chunks: usize) {
        for _ in 0..chunks {
            // The server's head may come before it computes; its first token
            // is what the arrow leads to.
            let is_first = !self.0.has_token.swap(true, Ordering::Relaxed);
            let flow = [self.flow()];
            let flows = if is_first { &flow[..] } else { &[] };
            self.track().instant(Event::ClientToken, [], flows);
        }
    }

    /// It is over.
    pub fn end(&self, output_tokens: u64, outcome: &Outcome) {
        let label = match outcome {
            Outcome::Complete => 0,
            Outcome::Failed(_) => 1,
            Outcome::Aborted => 2,
        };
        if self.enter(Phase::Ended, &[]) {
            self.track()
                .end(Event::ClientRequest, [output_tokens, label], &[]);
        }
    }

    /// Goes on to a later phase; `false` if it is there or beyond. The body may
    /// be taken by the connection's task after the answer came.
    fn enter(&self, next: Phase, flows: &[Flow]) -> bool {
        let mut phase = self.0.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if *phase >= next {
            return false;
        }
        if let Some(open) = phase.event() {
            self.track().end(open, [], &[]);
        }
        if let Some(event) = next.event() {
            self.track().begin(event, [], flows);
        }
        *phase = next;
        true
    }

    fn track(&self) -> RequestTrack {
        RequestTrack::new(self.0.trace_id as u64)
    }

    fn flow(&self) -> Flow {
        Flow::traceparent(self.0.trace_id)
    }
}
