//! Several trace files become one: whole packets, one file after another.

use crate::{
    EXTENSION, overlap,
    read::{Source, Tail},
};
use std::{
    collections::HashSet,
    fs::{self, File, Metadata},
    io::{self, BufWriter, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Why nothing was merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A directory holds no trace of ours.
    #[error("{0}: no <session>.<role>.<run>-<pid>.{EXTENSION} files in this directory")]
    NothingIn(PathBuf),
    /// A directory holds no such session.
    #[error("{}: no session {name:?} in this directory; there are {}", dir.display(), MergeError::list(there))]
    NoSuchSession {
        /// Which directory.
        dir: PathBuf,
        /// Which session.
        name: String,
        /// Those that there are.
        there: Vec<String>,
    },
    /// The result would replace what it is made of.
    #[error("{0}: is one of the inputs; choose another output")]
    OutputIsInput(PathBuf),
    /// Its packets would collide with themselves.
    #[error("{0}: given twice")]
    Twice(PathBuf),
    /// A dump and another file of its process show the same moments.
    #[error(
        "{first} and {second} of run {run} show the same moments, as one is a dump, and together would show them twice; choose one by --session NAME"
    )]
    Overlap {
        /// The run.
        run: String,
        /// The session that begins first.
        first: String,
        /// The one that begins before that ends.
        second: String,
    },
    /// A file that holds something else.
    #[error("{file}: not a Perfetto trace: {why}")]
    NotATrace {
        /// The file.
        file: String,
        /// What it holds instead.
        why: String,
    },
    /// A file could not be read or written; the error names it.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What was taken of one file.
#[derive(Debug)]
pub struct MergedFile {
    /// The file.
    pub source: Source,
    /// Its whole packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What came after them, and was left out.
    pub tail: Tail,
}

/// Writes the whole packets of `inputs` to `output`, in constant memory. A file
/// appears under its name only when it is complete, and replaces what a link
/// points at, not the link; a device or a pipe is written into.
pub fn merge(inputs: &[PathBuf], output: &Path) -> Result<Vec<MergedFile>, MergeError> {
    let there = fs::metadata(output).ok();
    refuse_collisions(inputs, output, there.as_ref())?;
    if there.is_some_and(|there| !there.is_file()) {
        let existing = File::options().write(true).open(output);
        return write(inputs, existing.map_err(|e| at(output, e))?);
    }
    let output = follow_links(output)?;
    let partial = partial_name(&output);
    let result = File::create(&partial)
        .map_err(|e| at(&partial, e).into())
        .and_then(|file| write(inputs, file))
        .and_then(|merged| {
            fs::rename(&partial, &output).map_err(|e| at(&output, e))?;
            Ok(merged)
        });
    if result.is_err() {
        // It may not exist; the first error is the one to tell.
        let _ = fs::remove_file(&partial);
    }
    result
}

/// As [`merge()`], into a file that is open.
pub fn merge_into(inputs: &[PathBuf], output: File) -> Result<Vec<MergedFile>, MergeError> {
    refuse_collisions(
        inputs,
        Path::new("the output"),
        output.metadata().ok().as_ref(),
    )?;
    write(inputs, output)
}

fn write(inputs: &[PathBuf], output: File) -> Result<Vec<MergedFile>, MergeError> {
    let mut out = BufWriter::new(output);
    let mut merged = Vec::new();
    for input in inputs {
        merged.push(append(Source::File(input.clone()), &mut out)?);
    }
    out.flush().map_err(writing)?;
    Ok(merged)
}

/// Writes the whole packets of one source to `out`.
pub fn append(source: Source, out: &mut impl Write) -> Result<MergedFile, MergeError> {
    let reading = |e: io::Error| io::Error::new(e.kind(), format!("{source}: {e}"));
    let mut packets = source.packets()?;
    while let Some(packet) = packets.next_packet().map_err(reading)? {
        out.write_all(packet.framed).map_err(writing)?;
    }
    let tail = packets.tail().cloned().unwrap_or(Tail::Whole);
    if let (0, Tail::Broken { why, .. }) = (packets.packets(), &tail) {
        return Err(MergeError::NotATrace {
            file: source.to_string(),
            why: why.clone(),
        });
    }
    Ok(MergedFile {
        packets: packets.packets(),
        bytes: packets.whole_bytes(),
        source,
        tail,
    })
}

/// `there`: what is under the output's name.
fn refuse_collisions(
    inputs: &[PathBuf],
    output: &Path,
    there: Option<&Metadata>,
) -> Result<(), MergeError> {
    let mut seen = HashSet::new();
    for input in inputs {
        if !seen.insert(identity(&metadata(input)?)) {
            return Err(MergeError::Twice(input.clone()));
        }
    }
    match there.is_some_and(|there| seen.contains(&identity(there))) {
        true => Err(MergeError::OutputIsInput(output.to_owned())),
        false => overlap::refuse(inputs),
    }
}

/// What is the same of one file under all its names.
pub(crate) fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// What links at `path` lead to, which need not exist.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    /// As many as the kernel follows.
    const MOST: usize = 40;
    let mut followed = path.to_owned();
    for _ in 0..MOST {
        match fs::read_link(&followed) {
            // Joined to it, an absolute target stands alone.
            Ok(target) => followed = followed.parent().unwrap_or(Path::new("")).join(target),
            // Not a link, or not there.
            Err(_) => return Ok(followed),
        }
    }
    Err(at(path, io::Error::from_raw_os_error(libc::ELOOP)))
}

/// A name beside the output, so that the rename stays in one file system.
fn partial_name(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.partial", std::process::id()));
    output.with_file_name(name)
}

pub(crate) fn metadata(path: &Path) -> io::Result<Metadata> {
    fs::metadata(path).map_err(|e| at(path, e))
}

fn writing(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("writing the merged trace: {e}"))
}

pub(crate) fn at(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}
