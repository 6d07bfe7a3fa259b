//! Stack samples of one session's file: which of those that come late belong to
//! it, and their encoder.

use crate::sampler::{Missed, SampleEncoder, WaitingSample};
use std::collections::VecDeque;

/// Intervals that are remembered; samples come at most seconds late.
const MAX_INTERVALS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Sampled {
    encoder: SampleEncoder,
    /// Where the session was on, `[on, off)`; the last may be open.
    intervals: VecDeque<(u64, u64)>,
    /// All samples up to this moment have come.
    upto_ns: u64,
    /// Samples while it was on; threads at any time of the sampler's.
    pub(crate) missed: Missed,
    packets: Vec<u8>,
}

impl Sampled {
    pub(crate) fn new(encoder: SampleEncoder) -> Sampled {
        Sampled {
            encoder,
            intervals: VecDeque::new(),
            upto_ns: 0,
            missed: Missed::default(),
            packets: Vec::new(),
        }
    }

    pub(crate) fn switch_on(&mut self, ns: u64) {
        if self.intervals.len() == MAX_INTERVALS {
            self.intervals.pop_front();
        }
        self.intervals.push_back((ns, u64::MAX));
    }

    pub(crate) fn switch_off(&mut self, ns: u64) {
        if let Some((_, off)) = self.intervals.back_mut() {
            *off = ns.min(*off);
        }
    }

    /// A sample's packets, if it is the session's.
    pub(crate) fn packets(&mut self, sample: &WaitingSample) -> Option<&[u8]> {
        let ns = sample.time_ns;
        let mut newest_first = self.intervals.iter().rev();
        newest_first.find(|(on, off)| (*on..*off).contains(&ns))?;
        self.packets.clear();
        self.encoder.encode(&sample.borrow(), &mut self.packets);
        Some(&self.packets)
    }

    /// All samples up to this moment have come, but for these.
    pub(crate) fn passed(&mut self, upto_ns: u64, missed: Missed) {
        let since_ns = std::mem::replace(&mut self.upto_ns, upto_ns);
        let mut intervals = self.intervals.iter();
        if intervals.any(|(on, off)| *on <= upto_ns && since_ns < *off) {
            self.missed.samples += missed.samples;
            self.missed.threads = self.missed.threads.max(missed.threads);
        }
    }

    /// Samples of before this moment may still come.
    pub(crate) fn awaits(&self, ns: u64) -> bool {
        self.upto_ns < ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_lost_to_sessions_that_were_on_then() {
        let mut sampled = Sampled::new(SampleEncoder::new(1, 1));
        let missed = |samples, threads| Missed { samples, threads };
        sampled.passed(50, missed(1, 1));
        assert_eq!(sampled.missed, missed(0, 0), "it was not on");
        sampled.switch_on(100);
        sampled.passed(200, missed(2, 1));
        assert_eq!(sampled.missed, missed(2, 1));
        // What was lost before the end is known after it.
        sampled.switch_off(210);
        sampled.passed(300, missed(4, 2));
        assert_eq!(sampled.missed, missed(6, 2));
        sampled.passed(400, missed(8, 3));
        assert_eq!(sampled.missed, missed(6, 2), "it was not on any more");
    }
}
