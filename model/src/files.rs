//! Small questions to the file system, answered with errors that name the file.

use crate::error::ModelError;
use std::fs::{self, metadata};
use std::io::ErrorKind;
use std::path::Path;

/// Model configurations are a few kilobytes; this bounds what a wrong file costs.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Whether there is a file of this name. What stands there but is no file, or a
/// link that leads nowhere, is an error: somebody meant it to be one.
pub(crate) fn file_exists(path: &Path) -> Result<bool, ModelError> {
    match metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(ModelError::file(path, "is not a file")),
        Err(error) if error.kind() == ErrorKind::NotFound => match path.is_symlink() {
            false => Ok(false),
            true => Err(ModelError::file(path, "is a link to nothing")),
        },
        Err(error) => Err(ModelError::file(path, error)),
    }
}

/// The text of a small file, which must exist.
pub(crate) fn read_text(path: &Path) -> Result<String, ModelError> {
    let fail = |error: std::io::Error| ModelError::file(path, error);
    // A pipe or a device would be read for ever.
    if !file_exists(path)? {
        return Err(fail(ErrorKind::NotFound.into()));
    }
    let len = metadata(path).map_err(fail)?.len();
    if len > MAX_TEXT_BYTES {
        return Err(ModelError::file(
            path,
            format_args!("{len} bytes, but at most {MAX_TEXT_BYTES} are read"),
        ));
    }
    fs::read_to_string(path).map_err(fail)
}
