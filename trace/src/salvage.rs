//! What a process that died left in its rings goes into its file.

use crate::drain::{Drain, Stop};
use crate::encoder::{Encoder, EndReason, Thread};
use crate::request_tracks::RequestTracks;
use crate::rings::{Phase, Rings};
use crate::trace_file::TraceFile;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A file that was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// Which.
    pub file: PathBuf,
    /// Records that were added to it.
    pub events: u64,
    /// Its length now.
    pub bytes: u64,
}

impl Rings {
    /// Completes the trace file of the process that recorded into these rings
    /// and has died: cuts the file in `dir` to what was whole, and appends what
    /// was still in the rings. Ends with what was recorded last. `None`: there
    /// is nothing to complete, because the process never opened a file, or
    /// finished it itself.
    ///
    /// The process must be gone, not only about to go.
    ///
    /// # Errors
    /// When the file is gone or cannot be written; it is cut to whole packets
    /// if that much could be done.
    pub fn salvage(&self, dir: &Path) -> io::Result<Option<Salvaged>> {
        if self.phase() != Phase::Recording {
            return Ok(None);
        }
        self.set_phase(Phase::Finished);
        let name = self.file_name().filter(|name| !name.contains('/'));
        let Some(name) = name else {
            return Err(io::Error::other("trace: the rings name no file"));
        };
        let path = dir.join(name);
        let (file, bytes) = TraceFile::reopen(path.clone(), self.committed().0)?;
        let requests = RequestTracks::replay(&bytes).map_err(io::Error::other)?;
        drop(bytes);

        let (identity, max_bytes) = self.identity();
        let encoder = Encoder::new(identity, "salvage", self.count(), requests);
        let mut drain = Drain::new(self, encoder, file, max_bytes);
        let tid = self.header().writer_tid.load(Ordering::Relaxed);
        drain.encoder().open_own(&Thread::writer(tid));
        let stopped = loop {
            match drain.pass() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(stop) => break Err(stop),
            }
        };
        let reason = match stopped {
            Ok(()) => EndReason::ProcessDied,
            Err(Stop::ByteCap) => EndReason::ByteCap,
            Err(Stop::Io(error)) => return Err(error),
        };
        if let Err(Stop::Io(error)) = drain.end(reason, 0) {
            return Err(error);
        }
        Ok(Some(Salvaged {
            file: path,
            events: drain.events(),
            bytes: drain.file().len(),
        }))
    }
}
