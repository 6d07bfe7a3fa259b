//! A file mapped into memory.

use memmap2::Mmap;
use nano_model::ModelError;
use std::fs::File;
use std::path::Path;

/// A file mapped into memory, read-only. Only pages that are read take memory,
/// and the system may drop them again.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    ///
    /// # Errors
    /// When it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<MappedFile, ModelError> {
        let file = File::open(path).map_err(|error| ModelError::file(path, error))?;
        // SAFETY: the map is only read. Whoever writes to or cuts a model's file
        // while it is served breaks the server, which is no worse than the
        // model it would load after a restart; downloads are renamed into place.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| ModelError::file(path, error))?;
        Ok(MappedFile { map })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
