//! From the sampler's thread to the writer's: samples that wait for a pass.
//!
//! Invariant: samples wait in the order in which they were taken down, thread
//! by thread, and at most [`MAX_WAITING`] of them; the others are counted.

use super::{Missed, Sample, Sink};
use crate::symbols::{Frame, StackEnd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What eighty busy cores give at 1000 Hz between two passes of the writer.
const MAX_WAITING: usize = 1 << 14;

/// A [`Sample`] of its own.
#[derive(Clone, Debug)]
pub(crate) struct WaitingSample {
    pub(crate) time_ns: u64,
    tid: u32,
    thread: Arc<str>,
    weight_ns: u64,
    stack: Box<[Arc<[Frame]>]>,
    end: StackEnd,
}

impl WaitingSample {
    fn new(sample: &Sample<'_>) -> WaitingSample {
        WaitingSample {
            time_ns: sample.time_ns,
            tid: sample.tid,
            thread: Arc::clone(sample.thread),
            weight_ns: sample.weight_ns,
            stack: sample.stack.into(),
            end: sample.end,
        }
    }

    pub(crate) fn borrow(&self) -> Sample<'_> {
        Sample {
            time_ns: self.time_ns,
            tid: self.tid,
            thread: &self.thread,
            weight_ns: self.weight_ns,
            stack: &self.stack,
            end: self.end,
        }
    }
}

/// What a pass of the writer gets.
#[derive(Debug, Default)]
pub(crate) struct Fed {
    pub(crate) samples: Vec<WaitingSample>,
    /// Its samples: lost since the last pass, here too.
    pub(crate) missed: Missed,
    /// All samples up to this moment have been given, now or before.
    pub(crate) upto_ns: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feed(Arc<Mutex<Fed>>);

impl Feed {
    fn lock(&self) -> MutexGuard<'_, Fed> {
        // Whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what waits.
    pub(crate) fn take(&self) -> Fed {
        let mut waiting = self.lock();
        Fed {
            samples: std::mem::take(&mut waiting.samples),
            missed: Missed {
                samples: std::mem::take(&mut waiting.missed.samples),
                ..waiting.missed
            },
            upto_ns: waiting.upto_ns,
        }
    }

    /// The sampler's end. While it lives, samples may come.
    pub(crate) fn sink(&self) -> FeedSink {
        let mut waiting = self.lock();
        (waiting.upto_ns, waiting.missed.threads) = (0, 0);
        drop(waiting);
        FeedSink(self.clone())
    }
}

/// See [`Feed::sink`].
pub(crate) struct FeedSink(Feed);

impl Sink for FeedSink {
    fn sample(&mut self, sample: &Sample<'_>) {
        let mut waiting = self.0.lock();
        match waiting.samples.len() < MAX_WAITING {
            true => waiting.samples.push(WaitingSample::new(sample)),
            false => waiting.missed.samples += 1,
        }
    }

    fn passed(&mut self, upto_ns: u64, missed: Missed) {
        let mut waiting = self.0.lock();
        waiting.upto_ns = upto_ns;
        waiting.missed.samples += missed.samples;
        waiting.missed.threads = missed.threads;
    }
}

impl Drop for FeedSink {
    fn drop(&mut self) {
        // However the sampler ended, nobody waits for it any longer.
        self.0.lock().upto_ns = u64::MAX;
    }
}
