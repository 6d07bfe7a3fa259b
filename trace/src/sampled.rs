//! Stack samples of one session's file: which of those that come late belong to
//! it, and their encoder.

use crate::sampler::{SampleEncoder, WaitingSample};
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
    packets: Vec<u8>,
}

impl Sampled {
    pub(crate) fn new(encoder: SampleEncoder) -> Sampled {
        Sampled {
            encoder,
            intervals: VecDeque::new(),
            upto_ns: 0,
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

    /// All samples up to this moment have come.
    pub(crate) fn passed(&mut self, upto_ns: u64) {
        self.upto_ns = upto_ns;
    }

    /// Samples of before this moment may still come.
    pub(crate) fn awaits(&self, ns: u64) -> bool {
        self.upto_ns < ns
    }
}
