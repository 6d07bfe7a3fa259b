//! What sampling costs a thread that works all the time, and its process: work
//! done for a second of CPU time, with samples and without, in turns.
//!
//! `cargo bench -p nano-trace --bench sampler` prints ratios with 95 % intervals.

use nano_trace::SampleRate;
use nano_trace::sampler::{Missed, Sample, SampleEncoder, Sampler, Sink};
use nix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;

const ROUNDS: usize = 12;
/// CPU time of one measurement.
const TURN: Duration = Duration::from_secs(2);
/// CPU time before it, in which tables are read and memory is taken.
const WARM_UP: Duration = Duration::from_millis(500);

/// As a session does, but for the file.
struct Encode(SampleEncoder, Vec<u8>);

impl Sink for Encode {
    fn sample(&mut self, sample: &Sample<'_>) {
        self.0.encode(sample, &mut self.1);
    }

    fn passed(&mut self, _upto_ns: u64, _missed: Missed) {
        self.1.clear();
    }
}

fn cpu(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

/// A stack as deep as a server's, with work at its end.
#[inline(never)]
fn work(depth: u32) -> u64 {
    if depth > 0 {
        return black_box(work(black_box(depth - 1))) + 1;
    }
    let mut word = black_box(1_u64);
    for _ in 0..20_000 {
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7);
    }
    word
}

/// Work per second of this thread's CPU time, and of the process's.
fn measure(hz: u32) -> (f64, f64) {
    let encode = Encode(SampleEncoder::new(std::process::id(), 1), Vec::new());
    let sampler = SampleRate::try_from(hz)
        .ok()
        .map(|rate| Sampler::start(rate, encode));
    let sampler = sampler
        .transpose()
        .unwrap_or_else(|error| panic!("{error}"));
    let (thread, process) = (
        ClockId::CLOCK_THREAD_CPUTIME_ID,
        ClockId::CLOCK_PROCESS_CPUTIME_ID,
    );
    let begun = cpu(thread);
    while cpu(thread) - begun < WARM_UP {
        black_box(work(40));
    }
    let (thread_before, process_before) = (cpu(thread), cpu(process));
    let mut units = 0.0;
    while cpu(thread) - thread_before < TURN {
        black_box(work(40));
        units += 1.0;
    }
    let rates = (
        units / (cpu(thread) - thread_before).as_secs_f64(),
        units / (cpu(process) - process_before).as_secs_f64(),
    );
    drop(sampler);
    rates
}

/// Mean and half of its 95 % interval.
fn interval(ratios: &[f64]) -> (f64, f64) {
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let squares = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>();
    (
        mean,
        1.96 * (squares / (count - 1.0).max(1.0) / count).sqrt(),
    )
}

fn main() {
    // `cargo test` runs benches too.
    let rounds = match std::env::args().any(|argument| argument == "--bench") {
        true => ROUNDS,
        false => 1,
    };
    measure(999);
    for hz in [99, 999] {
        let (mut of_thread, mut of_process) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let (on, off) = match round % 2 {
                0 => (measure(hz), measure(0)),
                _ => {
                    let off = measure(0);
                    (measure(hz), off)
                }
            };
            of_thread.push(on.0 / off.0);
            of_process.push(on.1 / off.1);
        }
        for (whose, ratios) in [("thread", of_thread), ("process", of_process)] {
            let (mean, half) = interval(&ratios);
            println!(
                "{hz:>4} Hz: a second of the {whose}'s CPU time does {mean:.4} of the work without samples, 95 % {:.4} to {:.4}",
                mean - half,
                mean + half
            );
        }
    }
}
