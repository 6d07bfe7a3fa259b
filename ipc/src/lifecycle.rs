//! What a process's control thread and its loop share.

use crate::profile::{ProfileAnswer, ProfileCommand};
use crate::profile_link::{ProfileLink, TooManyQuestions};
use crate::to_launcher::ToLauncher;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The order to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Until when open requests may go on.
    pub drain_until: Instant,
    /// What open requests are told when their time is up.
    pub reason: String,
}

/// What a process's control thread and its loop share: the loop says what it
/// is at, the control thread says when to end. One a loop.
///
/// In a server of processes the control thread feeds it from the control
/// socket; in the single process the main thread does.
pub struct Lifecycle {
    step_id: AtomicU64,
    busy_since_ns: AtomicU64,
    shutdown: Mutex<Option<Shutdown>>,
    /// Readable once `shutdown` is set, and from then on: nobody reads it.
    shutdown_event: EventFd,
    health: Mutex<Option<String>>,
    profile: ProfileLink,
    report: Box<dyn Fn(ToLauncher) + Send + Sync>,
    started: Instant,
}

impl Lifecycle {
    /// `report` carries messages to the launcher; it must not block.
    ///
    /// # Errors
    /// When the system has no event descriptor left.
    pub fn new(report: impl Fn(ToLauncher) + Send + Sync + 'static) -> std::io::Result<Lifecycle> {
        Ok(Lifecycle {
            step_id: AtomicU64::new(0),
            busy_since_ns: AtomicU64::new(0),
            shutdown: Mutex::new(None),
            shutdown_event: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            health: Mutex::new(None),
            profile: ProfileLink::default(),
            report: Box::new(report),
            started: Instant::now(),
        })
    }

    /// The loop begins a piece of work; `step_id` is the last step it knows.
    pub fn busy(&self, step_id: u64) {
        self.step_id.store(step_id, Ordering::Relaxed);
        self.busy_since_ns.store(boottime_ns(), Ordering::Release);
    }

    /// The loop waits for input.
    pub fn idle(&self) {
        self.busy_since_ns.store(0, Ordering::Release);
    }

    /// Last step begun, and CLOCK_BOOTTIME in ns since when the loop has been at
    /// its piece of work (0 when it waits).
    pub fn progress(&self) -> (u64, u64) {
        (
            self.step_id.load(Ordering::Relaxed),
            self.busy_since_ns.load(Ordering::Acquire),
        )
    }

    /// Orders the loop to end. A later order that leaves less time replaces an
    /// earlier one; one that leaves more does not.
    pub fn request_shutdown(&self, shutdown: Shutdown) {
        let mut slot = lock(&self.shutdown);
        if slot
            .as_ref()
            .is_none_or(|earlier| shutdown.drain_until < earlier.drain_until)
        {
            *slot = Some(shutdown);
        }
        drop(slot);
        // Fails only at the counter's maximum, when it is readable anyway.
        let _ = self.shutdown_event.write(1);
    }

    /// The order to end, once given.
    pub fn shutdown(&self) -> Option<Shutdown> {
        lock(&self.shutdown).clone()
    }

    /// Readable once a shutdown was ordered; for poll. Do not read it.
    pub fn shutdown_fd(&self) -> BorrowedFd<'_> {
        self.shutdown_event.as_fd()
    }

    /// Why the launcher calls the server unhealthy; `None` while it does not.
    pub fn unhealthy(&self) -> Option<String> {
        lock(&self.health).clone()
    }

    /// Sets what [`unhealthy`](Self::unhealthy) says.
    pub fn set_unhealthy(&self, reason: Option<String>) {
        *lock(&self.health) = reason;
    }

    /// What is shared of profiling.
    pub fn profile(&self) -> &ProfileLink {
        &self.profile
    }

    /// Asks the launcher for something of the profiler; `reply` gets the answer
    /// on another thread, and must not block.
    ///
    /// # Errors
    /// When the launcher has too much to answer.
    pub fn ask_profiler(
        &self,
        command: ProfileCommand,
        reply: impl FnOnce(ProfileAnswer) + Send + 'static,
    ) -> Result<(), TooManyQuestions> {
        let id = self.profile.expect(reply)?;
        self.report(ToLauncher::Profile { id, command });
        Ok(())
    }

    /// Sends a message to the launcher.
    pub fn report(&self, message: ToLauncher) {
        (self.report)(message);
    }

    /// Time since the process started its loop's set-up.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lifecycle")
            .field("progress", &self.progress())
            .field("shutdown", &self.shutdown())
            .finish_non_exhaustive()
    }
}

/// Poisoning means a panic elsewhere; the plain values behind these locks are
/// whole at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CLOCK_BOOTTIME in nanoseconds: the clock of traces and pongs.
pub fn boottime_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(|t| Duration::from(t).as_nanos() as u64)
        .unwrap_or_default()
}
