//! A sink that keeps what it gets.

use nano_trace::SampleRate;
use nano_trace::sampler::{Missed, Sample, Sampler, Sink};
use nano_trace::symbols::StackEnd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A sample with names, the outermost first.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) tid: u32,
    pub(crate) thread: String,
    pub(crate) weight_ns: u64,
    pub(crate) stack: Vec<String>,
    pub(crate) end: StackEnd,
}

impl Kept {
    pub(crate) fn is_in(&self, function: &str) -> bool {
        self.stack.iter().any(|name| name.ends_with(function))
    }
}

#[derive(Default)]
struct State {
    kept: Vec<Kept>,
    passes: u64,
}

/// Samples that tests can wait for.
#[derive(Clone, Default)]
pub(crate) struct Collected(Arc<(Mutex<State>, Condvar)>);

impl Sink for Collected {
    fn sample(&mut self, sample: &Sample<'_>) {
        let places = sample.stack.iter().rev();
        let frames = places.flat_map(|place| place.iter().rev());
        let kept = Kept {
            tid: sample.tid,
            thread: sample.thread.to_string(),
            weight_ns: sample.weight_ns,
            stack: frames.map(|frame| frame.function.to_string()).collect(),
            end: sample.end,
        };
        self.state().kept.push(kept);
    }

    fn passed(&mut self, _upto_ns: u64, _missed: Missed) {
        self.state().passes += 1;
        self.0.1.notify_all();
    }
}

impl Collected {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    pub(crate) fn start(hz: u32) -> (Sampler, Collected) {
        let collected = Collected::default();
        let hz = SampleRate::try_from(hz).unwrap();
        (Sampler::start(hz, collected.clone()).unwrap(), collected)
    }

    pub(crate) fn take(&self) -> Vec<Kept> {
        std::mem::take(&mut self.state().kept)
    }

    /// Waits for so many passes of the sampler, which look for threads too.
    pub(crate) fn wait_passes(&self, count: u64) {
        let state = self.state();
        let until = state.passes + count;
        let _state = self
            .0
            .1
            .wait_while(state, |state| state.passes < until)
            .unwrap();
    }
}

/// One sampler a process: tests that use one take turns.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed| failed.into_inner())
}
