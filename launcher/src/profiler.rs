//! Where traces go, how large they may be, and when recording begins.

use nano_ipc::flight::FlightRules;
use nano_ipc::step_bounds::Cycle;
use nano_trace::{Rings, RingsError, SampleRate};
use nix::unistd::{AccessFlags, access};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// When recording begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With each process: session `auto`, until another one begins.
    Auto,
    /// When a client or a signal says so.
    Manual,
    /// With these steps: session `schedule`.
    Schedule(Cycle),
    /// As [`Mode::Manual`], and what happened last is kept for dumps.
    Flight(FlightSettings),
}

/// How the flight recorder is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightSettings {
    /// So long is kept.
    pub keep: Duration,
    /// What fires a dump by itself.
    pub rules: FlightRules,
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
    /// Stack samples of sessions that no client asked for.
    pub sample_rate: Option<SampleRate>,
}

/// Why traces cannot be written there.
#[derive(Debug, thiserror::Error)]
#[error("profiler directory {}: {source}", dir.display())]
pub struct NoProfiler {
    dir: PathBuf,
    source: io::Error,
}

impl Profiler {
    /// How long processes keep what they recorded; `None`: they do not.
    pub fn keep(&self) -> Option<Duration> {
        match &self.mode {
            Mode::Flight(flight) => Some(flight.keep),
            Mode::Auto | Mode::Manual | Mode::Schedule(_) => None,
        }
    }

    /// What is too slow; empty where nothing is kept.
    pub fn rules(&self) -> FlightRules {
        match &self.mode {
            Mode::Flight(flight) => flight.rules.clone(),
            Mode::Auto | Mode::Manual | Mode::Schedule(_) => FlightRules::default(),
        }
    }

    /// Memory to record into, in a process of the server.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn rings(&self) -> Result<Rings, RingsError> {
        match self.keep() {
            Some(_) => Rings::create_keeping(),
            None => Rings::create(),
        }
    }

    /// Makes the directory if it is missing, and sees that it is writable.
    ///
    /// # Errors
    /// With the directory and the reason.
    pub fn prepare(
        dir: &Path,
        max_bytes: u64,
        mode: Mode,
        sample_rate: Option<SampleRate>,
    ) -> Result<Profiler, NoProfiler> {
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
                sample_rate,
            }),
            Err(source) => Err(NoProfiler {
                dir: dir.to_owned(),
                source,
            }),
        }
    }
}
