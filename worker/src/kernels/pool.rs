//! Threads that share the loops of one forward pass.
//!
//! A decode step at m = 1 has about 150 parallel loops of 5 to 30 us. Waking
//! sleeping threads for each would cost as much as the loop, so helpers spin for
//! a while between loops ([`SPIN`]) and sleep only then. The caller works too,
//! and never waits for a helper that has not yet come: it waits only for those
//! that took part.
//!
//! Invariants:
//! * `state` holds the number of helpers inside the current loop, its number and whether
//!   helpers may still enter. A helper enters by a compare-and-swap that sees
//!   [`OPEN`]; so once the caller has cleared it and the count is 0, no helper
//!   holds the job, and it may go out of scope.
//! * One loop at a time: `run` holds `caller`. A loop started inside a loop
//!   runs on its own thread alone.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle helper spins before it sleeps: longer than the gaps between
/// the loops of one step, shorter than a scheduler's time slice.
const SPIN: Duration = Duration::from_micros(50);

/// Helpers may enter the current loop.
const OPEN: u64 = 1 << 16;
/// The loop's number counts in steps of this; below lie [`OPEN`] and the helpers inside.
const EPOCH: u64 = 1 << 17;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

thread_local! {
    /// Whether this thread is inside a loop of some pool.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Threads that share the loops of one forward pass; the caller is one of them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    caller: Mutex<()>,
}

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// Next index to take.
    next: AtomicUsize,
    /// Helpers asleep, or about to be.
    sleeping: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    ending: AtomicBool,
    /// What a helper's task panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    count: usize,
}

// SAFETY: `job` is written only by the caller while no helper can be inside
// (see the module's invariants), and read only by helpers inside; the task it
// points to is Sync.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only as described above.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`run`](Self::run) included.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            ending: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool {
            shared,
            helpers: Vec::new(),
            caller: Mutex::new(()),
        };
        for number in 1..threads.clamp(1, 1024) {
            let shared = pool.shared.clone();
            let helper = std::thread::Builder::new()
                .name(format!("compute-{number}"))
                .spawn(move || shared.help())?;
            pool.helpers.push(helper);
        }
        Ok(pool)
    }

    /// Threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `task` once with each of `0..count`, in any order, on any thread,
    /// and returns when all calls have.
    ///
    /// # Panics
    /// When a call did; the others are still made or skipped.
    pub fn run(&self, count: usize, task: impl Fn(usize) + Sync) {
        if count <= 1 || self.helpers.is_empty() || INSIDE.get() {
            (0..count).for_each(task);
            return;
        }
        let _one_loop = lock(&self.caller);
        let shared = &*self.shared;
        let task: &Task<'_> = &task;
        // SAFETY: only the lifetime changes. The pointer is used by helpers that are
        // inside, and `leave` below waits for all of them, also when unwinding.
        let task_ptr =
            unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        // SAFETY: the last loop was closed and left, so no helper reads `job`.
        unsafe {
            *shared.job.get() = Some(Job {
                task: task_ptr,
                count,
            });
        }
        shared.next.store(0, Ordering::Relaxed);
        let epoch = shared.state.load(Ordering::Relaxed) & !(EPOCH - 1);
        shared
            .state
            .store(epoch.wrapping_add(EPOCH) | OPEN, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            drop(lock(&shared.sleep));
            shared.wake.notify_all();
        }
        let closing = Closing(shared);
        INSIDE.set(true);
        let own = catch_unwind(AssertUnwindSafe(|| shared.take_all(task, count)));
        INSIDE.set(false);
        drop(closing);
        let helpers = lock(&shared.panic).take();
        if let Some(payload) = own.err().or(helpers) {
            resume_unwind(payload);
        }
    }

    /// Calls `task` with ranges that cover `0..len` without overlap, each
    /// about `grain` long at least.
    pub fn run_ranges(
        &self,
        len: usize,
        grain: usize,
        task: impl Fn(std::ops::Range<usize>) + Sync,
    ) {
        // A few ranges a thread even out what the system's other work takes away.
        let most = len.div_ceil(grain.max(1));
        let parts = if self.helpers.is_empty() {
            1
        } else {
            most.clamp(1, 4 * self.threads())
        };
        self.run(parts, |part| {
            task(part * len / parts..(part + 1) * len / parts);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches its tasks' panics; nothing is lost here.
            let _ = helper.join();
        }
    }
}

/// Closes the loop when dropped and waits until every helper has left.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        let mut now = state.fetch_and(!OPEN, Ordering::AcqRel) & !OPEN;
        let mut spins = 0u32;
        while now & (OPEN - 1) != 0 {
            spins += 1;
            if spins.is_multiple_of(4096) {
                // The helper may have lost its processor.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            now = state.load(Ordering::Acquire);
        }
    }
}

impl Shared {
    fn take_all(&self, task: &Task<'_>, count: usize) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            task(index);
        }
    }

    /// A helper's life.
    fn help(&self) {
        INSIDE.set(true);
        let mut done = 0;
        while let Some(epoch) = self.await_loop(done) {
            done = epoch;
            // SAFETY: this helper is inside, so the caller neither writes `job`
            // nor lets its task go.
            let job = unsafe { *self.job.get() };
            if let Some(Job { task, count }) = job {
                // SAFETY: as above.
                let task = unsafe { &*task };
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.take_all(task, count)))
                {
                    *lock(&self.panic) = Some(payload);
                }
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a loop other than `done` and enters it; `None` at the end.
    fn await_loop(&self, done: u64) -> Option<u64> {
        let mut since: Option<Instant> = None;
        loop {
            for _ in 0..64 {
                if let Some(epoch) = self.enter(done) {
                    return Some(epoch);
                }
                std::hint::spin_loop();
            }
            if self.ending.load(Ordering::SeqCst) {
                return None;
            }
            match since {
                None => since = Some(Instant::now()),
                Some(start) if start.elapsed() >= SPIN => {
                    self.sleep_until_loop(done);
                    since = None;
                }
                Some(_) => {}
            }
        }
    }

    /// Enters the current loop if it is open and not `done`.
    fn enter(&self, done: u64) -> Option<u64> {
        let state = self.state.load(Ordering::SeqCst);
        let epoch = state / EPOCH;
        let entered = state & OPEN != 0
            && epoch != done
            && self
                .state
                .compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        entered.then_some(epoch)
    }

    fn sleep_until_loop(&self, done: u64) {
        let mut guard = lock(&self.sleep);
        // The caller stores `state` and then loads `sleeping`, this thread does it
        // the other way round (all SeqCst): one of the two sees the other.
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let open = |shared: &Shared| {
            let state = shared.state.load(Ordering::SeqCst);
            state & OPEN != 0 && state / EPOCH != done
        };
        while !open(self) && !self.ending.load(Ordering::SeqCst) {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_called_once() {
        let pool = Pool::new(3).expect("threads");
        for round in 0..2000 {
            let count = round % 40;
            let calls: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            pool.run(count, |i| {
                calls[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(calls.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn helpers_that_sleep_come_back() {
        let pool = Pool::new(2).expect("threads");
        let helper = |pool: &Pool| {
            // Two tasks that wait for each other need two threads.
            let barrier = std::sync::Barrier::new(2);
            pool.run(2, |_| {
                barrier.wait();
            });
        };
        helper(&pool);
        while pool.shared.sleeping.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        helper(&pool);
    }

    #[test]
    fn a_loop_within_a_loop_runs() {
        let pool = Pool::new(2).expect("threads");
        let sum = AtomicUsize::new(0);
        pool.run(4, |i| {
            pool.run(5, |j| {
                sum.fetch_add(10 * i + j, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 5 * 60 + 4 * 10);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives() {
        let pool = Pool::new(2).expect("threads");
        for bad in 0..8 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, |i| assert!(i != bad, "task {i}"));
            }));
            assert!(caught.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(8, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 28);
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(2).expect("threads");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let sum = AtomicUsize::new(0);
                        pool.run(10, |i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 45);
                    }
                });
            }
        });
    }
}
