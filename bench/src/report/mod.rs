//! The files of a run.

mod plots;
mod text;

pub use text::text;

use crate::config::Config;
use crate::profiling::ProfilingLog;
use crate::summary::Summary;
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// All that a run has found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Programs.
    pub versions: Versions,
    /// When it began, in UTC.
    pub began_at: String,
    /// Whether it was interrupted.
    pub aborted: bool,
    /// What was done, exactly.
    pub config: Config,
    /// The model that was asked.
    pub model: String,
    /// What was measured, a summary a load.
    pub loads: Vec<Summary>,
    /// What was asked of profilers.
    #[serde(skip)]
    pub profiling: Option<ProfilingLog>,
}

/// What ran.
#[derive(Clone, Debug, Serialize)]
pub struct Versions {
    /// This program.
    pub nano_bench: &'static str,
    /// What each server's `/version` says, if anything.
    pub servers: Vec<Option<String>>,
}

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct ReportError {
    path: PathBuf,
    why: String,
}

impl Report {
    /// Writes everything but records.jsonl into `dir`.
    ///
    /// # Errors
    /// Names the first file that could not be written; the others are.
    pub fn write(&self, dir: &Path) -> Result<(), ReportError> {
        let mut outcome = Ok(());
        let mut write = |name: &str, content: io::Result<String>| {
            let path = dir.join(name);
            let written = content.and_then(|content| fs::write(&path, content));
            if let (Ok(()), Err(error)) = (&outcome, written) {
                let why = error.to_string();
                outcome = Err(ReportError { path, why });
            }
        };
        write("result_summary.json", json(self));
        if let Some(log) = &self.profiling {
            write("profiling.json", json(log));
        }
        write("report.txt", Ok(text(self)));
        for (name, svg) in plots::plots(self) {
            write(name, svg);
        }
        outcome
    }
}

fn json(value: &impl Serialize) -> io::Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    Ok(text + "\n")
}
