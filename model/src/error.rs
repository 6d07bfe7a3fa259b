//! The one error of this layer.

use std::fmt;
use std::path::{Path, PathBuf};

/// What is wrong with a model's files: one line that names the file, the field
/// where there is one, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelError {
    path: PathBuf,
    field: Option<String>,
    reason: String,
}

impl ModelError {
    /// An error of the file (or directory) as a whole.
    pub fn file(path: &Path, reason: impl fmt::Display) -> Self {
        Self {
            path: path.to_owned(),
            field: None,
            reason: reason.to_string(),
        }
    }

    /// An error of one field of the file.
    pub fn field(path: &Path, field: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self {
            path: path.to_owned(),
            field: Some(field.to_string()),
            reason: reason.to_string(),
        }
    }

    /// The file or directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The field, where the error is about one.
    pub fn field_name(&self) -> Option<&str> {
        self.field.as_deref()
    }
}

impl std::error::Error for ModelError {}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        one_line(f, &self.path.to_string_lossy())?;
        if let Some(field) = &self.field {
            f.write_str(": ")?;
            one_line(f, field)?;
        }
        f.write_str(": ")?;
        one_line(f, &self.reason)
    }
}

/// Names come out of untrusted files: what would break the line, or colour a
/// terminal, is escaped.
fn one_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() {
            write!(f, "{}", c.escape_default())?;
        } else {
            write!(f, "{c}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_file_and_field_on_one_line() {
        let error = ModelError::field(Path::new("/m/config.json"), "a\nb\u{1b}", "is\r\nbad");
        assert_eq!(error.to_string(), r"/m/config.json: a\nb\u{1b}: is\r\nbad");
        let error = ModelError::file(Path::new("/m"), "no config.json in this directory");
        assert_eq!(error.to_string(), "/m: no config.json in this directory");
    }
}
