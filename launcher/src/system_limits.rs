//! Limits that the process inherits from whoever starts it, made the best of.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::io;

/// Raises the number of descriptors to what the system allows this process;
/// children inherit it. Returns the number.
///
/// The soft limit is 1024 almost everywhere, for programs that `select`. A
/// server of that many connections would leave `/health` unanswered.
///
/// # Errors
/// When the system refuses.
pub fn raise_open_files() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// Makes a file that reaches its largest allowed size an error of the write,
/// as a full disk is, instead of the process's death; children inherit it.
///
/// # Errors
/// When the system refuses.
pub fn survive_file_size_limit() -> io::Result<()> {
    // SAFETY: to ignore a signal is no handler.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn)? };
    Ok(())
}
