//! Stack samples of this process's own threads.
//!
//! Every thread gets a timer on its own CPU clock, so one that sleeps costs
//! nothing. When it fires, the thread's signal handler takes down registers and
//! stack (`handler`) into a ring (`slots`). The sampler's thread
//! (`collector`) unwinds what it finds there, looks up functions and lines,
//! and gives it to a [`Sink`].

mod collector;
mod encode;
mod feed;
mod handler;
mod record;
mod slots;
mod threads;
mod timer;

pub use encode::SampleEncoder;
pub(crate) use feed::{Fed, Feed, WaitingSample};
pub(crate) use handler::{read_memory, wake};
pub(crate) use record::RawSample;
pub(crate) use threads::maps;

use crate::SampleRate;
use crate::symbols::{Frame, StackEnd, Symbols};
use collector::Collector;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Where a thread was at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// CLOCK_BOOTTIME.
    pub time_ns: u64,
    /// Number of the thread.
    pub tid: u32,
    /// Its name.
    pub thread: &'a Arc<str>,
    /// CPU time that the sample stands for.
    pub weight_ns: u64,
    /// Where it was, the innermost first; each place with the functions that
    /// a compiler put into each other, the innermost first, too.
    pub stack: &'a [Arc<[Frame]>],
    /// Whether `stack` is all of it.
    pub end: StackEnd,
}

/// Takes samples, on the sampler's thread.
pub trait Sink: Send + 'static {
    /// One sample. Those of a thread come in order of time.
    fn sample(&mut self, sample: &Sample<'_>);

    /// All samples up to this moment of CLOCK_BOOTTIME were given (but for one
    /// whose thread was interrupted in the handler, and for these); more will
    /// come in some milliseconds.
    fn passed(&mut self, upto_ns: u64, missed: Missed) {
        let _ = (upto_ns, missed);
    }
}

/// What a sink did not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Samples that found no room in their ring since the last call.
    pub samples: u64,
    /// Threads that got no timer so far, although they were there.
    pub threads: u64,
}

/// Why nothing can be sampled.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// Stacks are unwound on x86-64 only.
    #[error("samples: stacks are not known on this architecture")]
    Architecture,
    /// A process has one sampler at a time.
    #[error("samples: this process is being sampled already")]
    Busy,
    /// The handler's place is taken, or cannot be had.
    #[error("samples: SIGPROF cannot be handled: {0}")]
    Signal(io::Error),
    /// A sandbox forbids it.
    #[error(
        "samples: process_vm_readv is not permitted here, and stacks cannot be read without it"
    )]
    Memory,
    /// Not even one thread got a timer.
    #[error("samples: no timer on a thread's CPU clock: {0}")]
    Timer(io::Error),
    /// No thread to be had.
    #[error("samples: no thread for the sampler: {0}")]
    Thread(io::Error),
}

/// What became of the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that the sink got.
    pub taken: u64,
    /// Those that found no room in their ring.
    pub dropped: u64,
    /// Threads that got no timer, although they were there.
    pub missed_threads: u64,
}

/// Samples all threads but its own, until it is stopped or dropped.
#[derive(Debug)]
pub struct Sampler {
    rate: SampleRate,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the sampler's thread and its owner share.
#[derive(Debug, Default)]
struct Shared {
    life: Life,
    /// In Hz.
    rate: AtomicU32,
    taken: AtomicU64,
    dropped: AtomicU64,
    missed_threads: AtomicU64,
}

/// Whether the sampler's thread goes on. That it should end is a wish, which can
/// be taken back until the thread follows it.
#[derive(Debug, Default)]
struct Life(AtomicU8);

impl Life {
    const GOES_ON: u8 = 0;
    const SHOULD_END: u8 = 1;
    const ENDS: u8 = 2;

    fn change(&self, from: u8, to: u8) -> Result<u8, u8> {
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }

    fn wish_end(&self) {
        // Otherwise it is wished already, or followed.
        let _ = self.change(Life::GOES_ON, Life::SHOULD_END);
    }

    /// `false`: too late.
    fn take_back(&self) -> bool {
        self.change(Life::SHOULD_END, Life::GOES_ON) != Err(Life::ENDS)
    }

    /// For the thread: whether it ends now.
    fn follow(&self) -> bool {
        self.change(Life::SHOULD_END, Life::ENDS).is_ok()
    }
}

static RUNNING: AtomicBool = AtomicBool::new(false);

/// What the last sampler knew, for the next one: to read a program's tables takes
/// a tenth of a second of CPU time, which a loaded server feels.
static SYMBOLS: Mutex<Option<Symbols>> = Mutex::new(None);

fn take_symbols() -> Symbols {
    let known = SYMBOLS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match known {
        Some(mut symbols) => {
            symbols.refresh();
            symbols
        }
        None => Symbols::new(),
    }
}

impl Sampler {
    /// Samples every thread so often in each second of its CPU time. Returns
    /// once all threads that exist have their timers.
    ///
    /// # Errors
    /// When the system refuses a part of it; nothing is sampled then.
    pub fn start(rate: SampleRate, sink: impl Sink) -> Result<Sampler, SamplerError> {
        if !handler::IS_SUPPORTED {
            return Err(SamplerError::Architecture);
        }
        let word = 1_u64;
        if read_memory(&raw const word as u64, &mut [0; 8]) != 8 {
            return Err(SamplerError::Memory);
        }
        if RUNNING.swap(true, Ordering::AcqRel) {
            return Err(SamplerError::Busy);
        }
        let idle = Idle;
        handler::install().map_err(SamplerError::Signal)?;
        let shared = Arc::new(Shared::default());
        shared.rate.store(rate.hz(), Ordering::Release);
        let (ready, wait_ready) = std::sync::mpsc::sync_channel(1);
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("trace-sampler".to_owned())
            .spawn(move || {
                // Until the thread has ended, whatever ends it.
                let _idle = idle;
                wait_for_others();
                let mut collector = Collector::new(rate, sink, &for_thread);
                let first = collector.look_for_threads();
                let good = first.is_ok();
                // The receiver waits below.
                let _ = ready.send(first);
                if good {
                    // Their first samples wait in the rings meanwhile.
                    let mut symbols = take_symbols();
                    collector.run(&mut symbols);
                    *SYMBOLS.lock().unwrap_or_else(PoisonError::into_inner) = Some(symbols);
                }
            })
            .map_err(SamplerError::Thread)?;
        let sampler = Sampler {
            rate,
            shared,
            thread: Some(thread),
        };
        match wait_ready.recv() {
            Ok(Ok(())) => Ok(sampler),
            Ok(Err(error)) => Err(SamplerError::Timer(error)),
            Err(_) => Err(SamplerError::Timer(io::Error::other("the sampler ended"))),
        }
    }

    /// Samples so often from now on.
    pub fn set_rate(&mut self, rate: SampleRate) {
        if rate != self.rate {
            self.rate = rate;
            self.shared.rate.store(rate.hz(), Ordering::Release);
            handler::wake();
        }
    }

    /// How often it samples.
    pub fn rate(&self) -> SampleRate {
        self.rate
    }

    /// Its thread is gone, by [`Sampler::end_soon`] or a panic: no more samples come.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What became of the samples so far.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Acquire);
        Counts {
            taken: read(&self.shared.taken),
            dropped: read(&self.shared.dropped),
            missed_threads: read(&self.shared.missed_threads),
        }
    }

    /// Ends sampling: no timer is left, and the sink has got all samples.
    pub fn stop(mut self) -> Counts {
        self.end();
        self.counts()
    }

    /// Ends sampling without waiting for it: [`Sampler::has_ended`] tells when.
    pub fn end_soon(&self) {
        self.shared.life.wish_end();
        handler::wake();
    }

    /// Goes on, should [`Sampler::end_soon`] have been called. `false`: it is too
    /// late, and the thread is about to end.
    pub fn go_on(&self) -> bool {
        self.shared.life.take_back()
    }

    fn end(&mut self) {
        self.end_soon();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("samples: the sampler's thread panicked");
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

/// Keeps this thread from taking the CPU from one that works when it wakes: threads
/// of a model wait for each other, so that it would hold up all of them.
fn wait_for_others() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: a struct that lives here. Where it is not permitted, nothing changes.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &param) };
}

/// Lets the next sampler start when this one is no more.
struct Idle;

impl Drop for Idle {
    fn drop(&mut self) {
        RUNNING.store(false, Ordering::Release);
    }
}

/// Checks the invariants of the rings; while nothing is sampled.
///
/// # Errors
/// The first one that does not hold, in words.
pub fn check_integrity() -> Result<(), String> {
    slots::all()
        .iter()
        .try_for_each(|slot| slot.check_integrity())
}
