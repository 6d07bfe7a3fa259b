//! A trace file that is whole packets at every moment.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Debug)]
pub(crate) struct TraceFile {
    file: File,
    path: PathBuf,
    len: u64,
}

impl TraceFile {
    /// Makes a file that did not exist, for its owner alone.
    pub(crate) fn create(path: PathBuf) -> io::Result<TraceFile> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(TraceFile { file, path, len: 0 })
    }

    /// Opens the file of a process that died, and cuts it to the `len` bytes
    /// that were whole. Returns them too.
    pub(crate) fn reopen(path: PathBuf, len: u64) -> io::Result<(TraceFile, Vec<u8>)> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        if file.metadata()?.len() < len {
            return Err(io::Error::other("shorter than what was written to it"));
        }
        file.set_len(len)?;
        let size = usize::try_from(len).map_err(io::Error::other)?;
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, 0)?;
        Ok((TraceFile { file, path, len }, bytes))
    }

    /// Appends whole packets, all or nothing.
    pub(crate) fn append(&mut self, packets: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(packets, self.len) {
            // If this fails too, readers still cut the broken tail.
            let _ = self.file.set_len(self.len);
            return Err(error);
        }
        self.len += packets.len() as u64;
        Ok(())
    }

    /// An error once the file has been removed: what is written would be lost.
    pub(crate) fn check_linked(&self) -> io::Result<()> {
        match self.file.metadata()?.nlink() {
            0 => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the file was removed",
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
