//! Where packets come from.

use super::PacketReader;
use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Cursor},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A trace that can be read, as often as needed.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// Bytes in memory under a name.
    Bytes(String, Arc<[u8]>),
}

impl Source {
    /// A source of `bytes` that messages call `name`.
    pub fn bytes(name: &str, bytes: impl Into<Arc<[u8]>>) -> Source {
        Source::Bytes(name.to_owned(), bytes.into())
    }

    /// Starts to read it from its first byte, in constant memory.
    pub fn packets(&self) -> io::Result<PacketReader<Box<dyn BufRead + Send>>> {
        let input: Box<dyn BufRead + Send> = match self {
            Source::File(path) => Box::new(BufReader::with_capacity(1 << 16, open(path)?)),
            Source::Bytes(_, bytes) => Box::new(Cursor::new(bytes.clone())),
        };
        Ok(PacketReader::new(input))
    }
}

/// Opens a file; the error names it.
fn open(path: &Path) -> io::Result<File> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let file = File::open(path).map_err(named)?;
    if file.metadata().map_err(named)?.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::IsADirectory,
            format!("{}: is a directory", path.display()),
        ));
    }
    Ok(file)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => path.display().fmt(f),
            Source::Bytes(name, _) => f.write_str(name),
        }
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Source {
        Source::File(path)
    }
}
