//! Work of a known size.

use std::hint::black_box;

/// So many rounds of multiplications that depend on each other.
#[inline(always)]
fn rounds(count: u64) -> u64 {
    let mut word = black_box(1_u64);
    for _ in 0..count {
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7);
    }
    black_box(word)
}

/// Seven parts of ten.
#[inline(never)]
pub(crate) fn seven_parts() {
    rounds(7 * PART);
}

/// Three parts of ten.
#[inline(never)]
pub(crate) fn three_parts() {
    rounds(3 * PART);
    // Unlike the other one, so that no linker makes one function of both.
    black_box("three");
}

/// About 50 microseconds.
const PART: u64 = 30_000;

/// Calls both in turn.
#[inline(never)]
pub(crate) fn ten_parts() {
    seven_parts();
    three_parts();
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> std::time::Duration {
    let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
    nix::time::clock_gettime(clock).unwrap().into()
}
