//! Signals as something to poll.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Signals of an operator that wants the server to end.
pub const END_SIGNALS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// The signal that ends what is recorded, or begins a recording.
pub const PROFILE_SIGNAL: Signal = Signal::SIGUSR1;

/// The signal that writes what processes kept of their last seconds.
pub const DUMP_SIGNAL: Signal = Signal::SIGUSR2;

/// The signals that the launcher waits for, blocked everywhere else.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals for this thread and all that it starts from now on.
    ///
    /// Blocked signals reach the descriptor even where the parent had them
    /// ignored, as a shell without job control does with SIGINT. Only SIGHUP
    /// stays ignored then: that is what nohup is for.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn block() -> io::Result<Signals> {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action is no handler of ours. An ignored SIGCHLD,
        // which a parent may hand down, would reap children behind our back.
        unsafe { sigaction(Signal::SIGCHLD, &default)? };
        let mut set = SigSet::empty();
        set.add(Signal::SIGCHLD);
        set.add(PROFILE_SIGNAL);
        set.add(DUMP_SIGNAL);
        for signal in END_SIGNALS {
            if signal != Signal::SIGHUP || !ignored(signal)? {
                set.add(signal);
            }
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Signals(SignalFd::with_flags(&set, flags)?))
    }

    /// The next signal that came, if any.
    pub fn next(&self) -> Option<Signal> {
        let info = self.0.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo.cast_signed()).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the parent had it ignored.
fn ignored(signal: Signal) -> io::Result<bool> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action is no handler of ours, and the old one,
    // inherited at exec, can only be the default or to ignore.
    let old = unsafe { sigaction(signal, &default)? };
    if matches!(old.handler(), SigHandler::SigIgn) {
        // SAFETY: as above.
        unsafe { sigaction(signal, &old)? };
        return Ok(true);
    }
    Ok(false)
}
