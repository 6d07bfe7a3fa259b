//! A trace file that is whole packets at every moment.
//!
//! Whatever others do to it meanwhile: it is only appended to, so that a file
//! they emptied gets no hole of zeros, and once it is not as it was left it is
//! not written any more, because packets mean nothing without those before.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
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
    /// Makes a file that did not exist, for its owner alone, and the directory
    /// if that was removed.
    pub(crate) fn create(path: PathBuf) -> io::Result<TraceFile> {
        let create = || {
            OpenOptions::new()
                .append(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
        };
        let file = match (create(), path.parent()) {
            (Err(error), Some(dir)) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(dir)?;
                create()?
            }
            (made, _) => made?,
        };
        Ok(TraceFile { file, path, len: 0 })
    }

    /// Opens the file of a process that died, and cuts it to the `len` bytes
    /// that were whole. Returns them too.
    pub(crate) fn reopen(path: PathBuf, len: u64) -> io::Result<(TraceFile, Vec<u8>)> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
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

    /// Appends whole packets, all or nothing; of none, sees that the file is
    /// still there and as it was left.
    pub(crate) fn append(&mut self, packets: &[u8]) -> io::Result<()> {
        self.check_untouched()?;
        if let Err(error) = self.file.write_all(packets) {
            // If this fails too, readers still cut the broken tail.
            let _ = self.file.set_len(self.len);
            return Err(error);
        }
        self.len += packets.len() as u64;
        Ok(())
    }

    fn check_untouched(&self) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.nlink() == 0 {
            let why = "the file was removed";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        if metadata.len() != self.len {
            let (is, was) = (metadata.len(), self.len);
            let why = format!("another program changed the file, from {was} bytes to {is}");
            return Err(io::Error::other(why));
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_what_another_program_did_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = TraceFile::create(path.clone()).unwrap();
        file.append(b"first").unwrap();
        file.append(b" second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first second");
        for left in ["first", "", "first second third"] {
            std::fs::write(&path, left).unwrap();
            file.append(b" more").unwrap_err();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), left);
        }
        std::fs::remove_file(&path).unwrap();
        file.append(b"").unwrap_err();
    }

    #[test]
    fn a_file_emptied_right_before_a_write_gets_no_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = TraceFile::create(path.clone()).unwrap();
        file.append(b"first").unwrap();
        for reopened in [false, true] {
            if reopened {
                file = TraceFile::reopen(path.clone(), 4).unwrap().0;
            }
            std::fs::write(&path, "").unwrap();
            // What `append` does once it has looked.
            file.file.write_all(b"next").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"next");
        }
    }
}
