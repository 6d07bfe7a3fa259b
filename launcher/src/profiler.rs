//! Where traces go, how large they may be, and when recording begins.

use nano_ipc::step_bounds::Cycle;
use nix::unistd::{AccessFlags, access};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// When recording begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With each process: session `auto`, until another one begins.
    Auto,
    /// When a client or a signal says so.
    Manual,
    /// With these steps: session `schedule`.
    Schedule(Cycle),
}

/// A directory that traces can be written to, and how.
#[derive(Clone, Debug)]
pub struct Profiler {
    /// Absolute, existing and writable.
    pub dir: PathBuf,
    /// Cap of one session's bytes in one process.
    pub max_bytes: u64,
    /// When recording begins.
    pub mode: Mode,
}

/// Why traces cannot be written there.
#[derive(Debug, thiserror::Error)]
#[error("profiler directory {}: {source}", dir.display())]
pub struct NoProfiler {
    dir: PathBuf,
    source: io::Error,
}

impl Profiler {
    /// Makes the directory if it is missing, and sees that it is writable.
    ///
    /// # Errors
    /// With the directory and the reason.
    pub fn prepare(dir: &Path, max_bytes: u64, mode: Mode) -> Result<Profiler, NoProfiler> {
        let prepared = fs::create_dir_all(dir).and_then(|()| {
            if !fs::metadata(dir)?.is_dir() {
                return Err(io::Error::other("is no directory"));
            }
            access(dir, AccessFlags::W_OK | AccessFlags::X_OK)?;
            std::path::absolute(dir)
        });
        match prepared {
            Ok(dir) => Ok(Profiler {
                dir,
                max_bytes,
                mode,
            }),
            Err(source) => Err(NoProfiler {
                dir: dir.to_owned(),
                source,
            }),
        }
    }
}
