//! The sampler's thread: gives timers to threads that come, takes them from
//! those that go, and unwinds what handlers took down.

use super::slots::{self, Slot};
use super::timer::CpuTimer;
use super::{Missed, Sample, Shared, Sink, handler, threads};
use crate::SampleRate;
use crate::clock::boottime_ns;
use crate::symbols::Symbols;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So often are threads looked for, and rings emptied; a thread that lives for
/// less may be missed.
const INTERVAL: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Collector<'s, S> {
    rate: SampleRate,
    sink: S,
    shared: &'s Shared,
    own_tid: u32,
    /// By number.
    threads: BTreeMap<u32, Sampled>,
    /// Threads that got no timer.
    refused: BTreeSet<u32>,
    /// Lost since the sink was told.
    lost: u64,
}

/// A thread that has a slot.
struct Sampled {
    /// Deletes itself.
    timer: Option<CpuTimer>,
    slot: &'static Slot,
    name: Arc<str>,
    /// The name was read a second time: a thread takes it after it has begun.
    is_named: bool,
}

impl<'s, S: Sink> Collector<'s, S> {
    pub(super) fn new(rate: SampleRate, sink: S, shared: &'s Shared) -> Self {
        Collector {
            rate,
            sink,
            shared,
            own_tid: nix::unistd::gettid().as_raw() as u32,
            threads: BTreeMap::new(),
            refused: BTreeSet::new(),
            lost: 0,
        }
    }

    /// Until it is told to stop.
    pub(super) fn run(&mut self, symbols: &mut Symbols) {
        let mut looked = Instant::now();
        while !self.shared.life.follow() {
            handler::sleep(INTERVAL);
            self.pass(symbols);
            self.follow_rate();
            if looked.elapsed() >= INTERVAL {
                looked = Instant::now();
                if !self.has_all_threads() {
                    // The first look worked; later ones do what they can.
                    let _ = self.look_for_threads();
                }
            }
        }
        let mut threads = std::mem::take(&mut self.threads);
        // From here on nothing comes but what is on its way.
        threads.values_mut().for_each(|thread| thread.timer = None);
        self.threads = threads;
        self.pass(symbols);
        for thread in std::mem::take(&mut self.threads).into_values() {
            // The slot stays its thread's, whose handler may still run.
            thread.slot.release_memory();
        }
    }

    /// Arms all timers anew when there is a new rate.
    fn follow_rate(&mut self) {
        let hz = self.shared.rate.load(Ordering::Acquire);
        let rate = SampleRate::try_from(hz).unwrap_or(self.rate);
        if rate == self.rate {
            return;
        }
        self.rate = rate;
        for thread in self.threads.values() {
            thread.set_rate(rate);
        }
    }

    /// A look would find nothing new: all threads have timers and settled names,
    /// those that are known exist, and no others do.
    fn has_all_threads(&self) -> bool {
        self.refused.is_empty()
            && threads::count().is_ok_and(|count| count == self.threads.len() + 1)
            && self.threads.values().all(|thread| thread.is_named)
            && self.threads.keys().all(|&tid| threads::exists(tid))
    }

    /// Gives timers to new threads, and takes the slots of those that are gone.
    ///
    /// # Errors
    /// When threads cannot be listed, or not one of them could get a timer.
    pub(super) fn look_for_threads(&mut self) -> io::Result<()> {
        let alive = threads::list()?;
        self.take_slots_back(&alive);
        let mut refused = None;
        for &tid in &alive {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.settle_name(tid);
                continue;
            }
            if tid == self.own_tid {
                continue;
            }
            match self.begin(tid) {
                Ok(thread) => {
                    self.refused.remove(&tid);
                    self.threads.insert(tid, thread);
                }
                Err(_) if !threads::exists(tid) => {}
                Err(error) => {
                    self.count_refused(tid, &error);
                    refused = Some(error);
                }
            }
        }
        self.refused.retain(|tid| alive.contains(tid));
        match refused {
            Some(error) if self.threads.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Says why, once; of how many, those who get the samples are told.
    fn count_refused(&mut self, tid: u32, error: &io::Error) {
        if self.refused.insert(tid) {
            let missed = self.shared.missed_threads.fetch_add(1, Ordering::AcqRel);
            if missed == 0 {
                log::warn!("samples: thread {tid} is not sampled, nor may others be: {error}");
            }
        }
    }

    fn begin(&self, tid: u32) -> io::Result<Sampled> {
        let stack_top = match tid == std::process::id() {
            true => threads::first_stack_top().unwrap_or(0),
            false => 0,
        };
        // Its own of an earlier round, in which its handler may still run; or any.
        let all = slots::all();
        let place = all.iter().position(|slot| slot.tid() == tid);
        let place = place.or_else(|| all.iter().position(|slot| slot.tid() == 0));
        let place =
            place.ok_or_else(|| io::Error::other(format!("more than {} threads", slots::SLOTS)))?;
        let slot = &all[place];
        if slot.tid() == tid {
            slot.forget();
        } else if !slot.give(tid, stack_top) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let period = self.rate.period();
        slot.period_ns
            .store(period.as_nanos() as u64, Ordering::Relaxed);
        Ok(Sampled {
            timer: Some(CpuTimer::arm(tid, period, place)?),
            slot,
            name: threads::name(tid).into(),
            is_named: false,
        })
    }

    /// Slots of threads that are gone, of earlier rounds too. What is in them
    /// the next pass takes first.
    fn take_slots_back(&mut self, alive: &[u32]) {
        for slot in slots::all() {
            let tid = slot.tid();
            if tid == 0 || alive.contains(&tid) || threads::exists(tid) {
                continue;
            }
            match self.threads.get_mut(&tid) {
                Some(thread) if !slot.is_empty() => thread.timer = None,
                _ => {
                    self.threads.remove(&tid);
                    slot.free();
                }
            }
        }
    }

    /// Takes what is in all rings.
    fn pass(&mut self, symbols: &mut Symbols) {
        let upto_ns = boottime_ns();
        let mut taken = 0;
        for (&tid, thread) in &self.threads {
            thread.slot.drain(|raw| {
                let (stack, end) = symbols.stack(raw);
                self.sink.sample(&Sample {
                    time_ns: raw.time_ns,
                    tid,
                    thread: &thread.name,
                    weight_ns: raw.weight_ns,
                    stack,
                    end,
                });
                taken += 1;
            });
            self.lost += thread.slot.take_drops();
        }
        let lost = std::mem::take(&mut self.lost);
        self.shared.taken.fetch_add(taken, Ordering::AcqRel);
        self.shared.dropped.fetch_add(lost, Ordering::AcqRel);
        symbols.refresh_if_stale();
        let threads = self.shared.missed_threads.load(Ordering::Acquire);
        let samples = lost;
        self.sink.passed(upto_ns, Missed { samples, threads });
    }
}

impl Sampled {
    /// Arms its timer anew.
    fn set_rate(&self, rate: SampleRate) {
        let Some(timer) = &self.timer else { return };
        let period = rate.period();
        let period_ns = period.as_nanos() as u64;
        self.slot.period_ns.store(period_ns, Ordering::Relaxed);
        // Of a thread that is gone, its timer is too.
        let _ = timer.set_period(period);
    }

    /// At the second look.
    fn settle_name(&mut self, tid: u32) {
        if !std::mem::replace(&mut self.is_named, true) {
            let name = threads::name(tid);
            if !name.is_empty() && *name != *self.name {
                self.name = name.into();
            }
        }
    }
}
