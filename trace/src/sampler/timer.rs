//! A timer on one thread's own CPU clock, which stands still while it sleeps.

use std::io;
use std::time::Duration;

/// Fires [`SIGNAL`](super::handler::SIGNAL) at its thread after every period of
/// that thread's CPU time; dropped with it.
#[derive(Debug)]
pub(crate) struct CpuTimer(libc::timer_t);

// SAFETY: the kernel's timers belong to the process; any thread may delete one.
unsafe impl Send for CpuTimer {}

impl CpuTimer {
    /// Arms a timer for a thread of this process, whose handler gets `value`.
    ///
    /// # Errors
    /// When the thread is gone, or the process has as many timers as it may
    /// (RLIMIT_SIGPENDING).
    pub(crate) fn arm(tid: u32, period: Duration, value: usize) -> io::Result<CpuTimer> {
        // SAFETY: a plain C struct, for which zeros are valid.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = super::handler::SIGNAL;
        event.sigev_value.sival_ptr = value as *mut libc::c_void;
        event.sigev_notify_thread_id = tid as i32;
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both point to what lives here.
        if unsafe { libc::timer_create(cpu_clock(tid), &mut event, &mut timer) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let timer = CpuTimer(timer);
        timer.set_period(period)?;
        Ok(timer)
    }

    /// From now on it fires after each such period.
    pub(crate) fn set_period(&self, period: Duration) -> io::Result<()> {
        let period = libc::timespec {
            tv_sec: period.as_secs() as libc::time_t,
            tv_nsec: period.subsec_nanos().into(),
        };
        let times = libc::itimerspec {
            it_interval: period,
            it_value: period,
        };
        // SAFETY: a timer that exists, and times that live here.
        match unsafe { libc::timer_settime(self.0, 0, &times, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for CpuTimer {
    fn drop(&mut self) {
        // SAFETY: made in `arm`, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// The clock of a thread's CPU time, as the kernel numbers it (its
/// `posix-timers.h`): the thread's number inverted, above bits that say "one
/// thread" (4) and "scheduler's time" (2). `pthread_getcpuclockid` makes the
/// same number, but needs a handle that only the thread itself has.
fn cpu_clock(tid: u32) -> libc::clockid_t {
    (!(tid as libc::clockid_t) << 3) | 4 | 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_that_of_the_thread() {
        let mut clock = 0;
        // SAFETY: our own thread, and a place that lives here.
        let error = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        let own = nix::unistd::gettid().as_raw() as u32;
        assert_eq!((error, clock), (0, cpu_clock(own)));
    }

    #[test]
    fn a_thread_that_is_gone_has_no_timer() {
        let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw() as u32)
            .join()
            .unwrap();
        // The kernel lets go of a thread a moment after it was joined.
        let gone = || CpuTimer::arm(tid, Duration::from_secs(1000), 0).is_err();
        while !gone() {
            std::thread::yield_now();
        }
    }
}
