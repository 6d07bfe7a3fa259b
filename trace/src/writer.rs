//! The thread that drains a process's rings into its sessions' files.

use crate::drain::{Drain, PassPlan};
use crate::flight::MARGIN;
use crate::recorder::{Recorder, Shared};
use crate::recording::{Outcome, Recording};
use crate::sampler;
use crate::switches::End;
use crate::{Begin, SessionState};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// So long may a record lie in its ring, and a little less, because a pass and
/// a late wake-up take time too.
const INTERVAL: Duration = Duration::from_millis(200);

/// So long does the sampler take for a pass, or a little more.
const SAMPLER_PAUSE: Duration = Duration::from_millis(20);

/// So late may a stamp be known, and nothing is selected wrongly.
const LAG: Duration = Duration::from_millis(100);

/// The writer thread's life; `ready` gets its number.
pub(crate) fn run(recorder: &'static Recorder, ready: &SyncSender<u32>) {
    // However this thread ends, nobody waits for it any longer.
    let _over = Over(recorder);
    let mut drain = Drain::new(recorder.rings, recorder.keep.map(|keep| keep + MARGIN));
    // Before the first record: what lies between two anchors has a time.
    drain.anchor();
    // Its receiver waits.
    let _ = ready.send(nix::unistd::gettid().as_raw() as u32);
    let (mut busy, mut pause) = (false, INTERVAL);
    loop {
        if !busy {
            std::thread::park_timeout(pause);
        }
        busy = drain.pass(|recordings| {
            let mut shared = recorder.lock();
            recordings.append(&mut shared.incoming);
            let lag = lag(recorder, &mut shared);
            pause = if lag.is_zero() { INTERVAL } else { LAG };
            PassPlan {
                lag,
                counters_since_ns: shared.recorded_since_ns[0],
                fed: recorder.feed.take(),
            }
        });
        let finished = drain.take_finished();
        if drain.recordings.iter().any(|r| r.outcome.is_some()) {
            // It waits for its last stack samples.
            sampler::wake();
            pause = SAMPLER_PAUSE;
        }
        let is_over = publish(recorder, &drain, finished);
        recorder.pace_sampler();
        if is_over {
            return;
        }
    }
}

/// Records that a stamp may still decide about wait for it.
fn lag(recorder: &Recorder, shared: &mut Shared) -> Duration {
    let mut alive = shared.sessions.alive().iter();
    let waits = alive.any(|s| s.spec.begin == Begin::Stamped && !s.is_ending(recorder.rings));
    if waits { LAG } else { Duration::ZERO }
}

/// Tells how the sessions stand. `true`: the process is at its end, and there are none.
fn publish(recorder: &Recorder, drain: &Drain<'_>, finished: Vec<Recording>) -> bool {
    // First: who waits for the end of a session may end the process.
    finished.iter().for_each(log_end);
    let mut ended_alone = Vec::new();
    let mut shared = recorder.lock();
    for recording in drain.recordings.iter().chain(&finished) {
        if let Some(session) = shared.sessions.numbered(recording.facts().number) {
            session.switches_seen = recording.switches_seen();
            session.set_progress(recording);
        }
    }
    for recording in finished {
        let Some(outcome) = &recording.outcome else {
            continue;
        };
        let state = state(outcome);
        let was_ordered = state == SessionState::Finished;
        let number = recording.facts().number;
        if let Some(status) = shared.sessions.end(number, state)
            && !was_ordered
        {
            ended_alone.push(status);
        }
    }
    recorder.set_level(&mut shared);
    shared.decided_ns = drain.decided_ns();
    let is_over = shared.is_over && shared.sessions.alive().is_empty();
    let callback = shared.on_end.clone();
    drop(shared);
    recorder.changed.notify_all();
    if let Some(callback) = callback {
        ended_alone.into_iter().for_each(|status| callback(status));
    }
    is_over
}

fn state(outcome: &Outcome) -> SessionState {
    match outcome {
        Outcome::Ended(_, End::Ordered) => SessionState::Finished,
        Outcome::Ended(_, End::Duration) => SessionState::TimedOut,
        Outcome::ByteCap => SessionState::Capped,
        Outcome::Io(error) => SessionState::Failed(error.to_string()),
    }
}

fn log_end(recording: &Recording) {
    let file = recording.file().path().display();
    match &recording.outcome {
        Some(Outcome::Io(why)) => {
            log::error!("trace: {file}: {why}; recording ends, serving goes on");
        }
        Some(Outcome::ByteCap) => log::warn!("trace: {file} reached its cap, recording ends"),
        Some(Outcome::Ended(_, End::Duration)) => {
            log::info!("trace: {file}: its duration is over, recording ends");
        }
        Some(Outcome::Ended(_, End::Ordered)) | None => {}
    }
}

struct Over(&'static Recorder);

impl Drop for Over {
    fn drop(&mut self) {
        let recorder = self.0;
        recorder.let_sampler_end();
        let mut shared = recorder.lock();
        shared.is_over = true;
        let alive: Vec<u32> = shared.sessions.alive().iter().map(|s| s.number).collect();
        for number in alive {
            let why = "the writer ended unexpectedly".to_owned();
            shared.sessions.end(number, SessionState::Failed(why));
        }
        recorder.set_level(&mut shared);
        drop(shared);
        recorder.changed.notify_all();
    }
}
