//! Numbers that look random and are the same in every run.

use std::ops::Range;

/// The generator splitmix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of the range.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// As many token ids of tiny-llama's vocabulary that stand for text.
    pub fn prompt(&mut self, length: u64) -> Vec<u64> {
        (0..length).map(|_| self.within(3..700)).collect()
    }
}
