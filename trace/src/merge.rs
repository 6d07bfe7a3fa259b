//! Several trace files become one: whole packets, one file after another.

use crate::{
    EXTENSION, TraceFileName,
    read::{Source, Tail},
};
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Why nothing was merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A directory holds no trace of ours.
    #[error("{0}: no <session>.<role>.<run>-<pid>.{EXTENSION} files in this directory")]
    NothingIn(PathBuf),
    /// The result would replace what it is made of.
    #[error("{0}: is one of the inputs; choose another output")]
    OutputIsInput(PathBuf),
    /// Its packets would collide with themselves.
    #[error("{0}: given twice")]
    Twice(PathBuf),
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

/// Trace files under `paths`: files as they are, of a directory the traces of
/// the newest run, or of `all` runs, sorted by name.
pub fn trace_files(paths: &[PathBuf], all: bool) -> Result<Vec<PathBuf>, MergeError> {
    let mut files = Vec::new();
    for path in paths {
        match fs::metadata(path).map_err(|e| at(path, e))?.is_dir() {
            true => files.append(&mut in_directory(path, all)?),
            false => files.push(path.clone()),
        }
    }
    Ok(files)
}

fn in_directory(dir: &Path, all: bool) -> Result<Vec<PathBuf>, MergeError> {
    let mut runs: HashMap<String, (SystemTime, Vec<PathBuf>)> = HashMap::new();
    for entry in fs::read_dir(dir).map_err(|e| at(dir, e))? {
        let entry = entry.map_err(|e| at(dir, e))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|n| n.parse::<TraceFileName>().ok()) else {
            continue;
        };
        let path = entry.path();
        let modified = fs::metadata(&path)
            .and_then(|m| m.modified())
            .map_err(|e| at(&path, e))?;
        let run = runs
            .entry(name.run)
            .or_insert((SystemTime::UNIX_EPOCH, Vec::new()));
        run.0 = run.0.max(modified);
        run.1.push(path);
    }
    let mut files = match all {
        true => runs.into_values().flat_map(|(_, files)| files).collect(),
        false => runs
            .into_values()
            .max_by_key(|(newest, _)| *newest)
            .map(|(_, files)| files)
            .unwrap_or_default(),
    };
    if files.is_empty() {
        return Err(MergeError::NothingIn(dir.to_owned()));
    }
    files.sort();
    Ok(files)
}

/// Writes the whole packets of `inputs` to `output`, in constant memory. The
/// output appears under its name only when it is complete.
pub fn merge(inputs: &[PathBuf], output: &Path) -> Result<Vec<MergedFile>, MergeError> {
    refuse_collisions(inputs, output)?;
    let partial = partial_name(output);
    let result = write_partial(inputs, &partial).and_then(|merged| {
        fs::rename(&partial, output).map_err(|e| at(output, e))?;
        Ok(merged)
    });
    if result.is_err() {
        // It may not exist; the first error is the one to tell.
        let _ = fs::remove_file(&partial);
    }
    result
}

fn write_partial(inputs: &[PathBuf], partial: &Path) -> Result<Vec<MergedFile>, MergeError> {
    let mut out = BufWriter::new(File::create(partial).map_err(|e| at(partial, e))?);
    let mut merged = Vec::new();
    for input in inputs {
        merged.push(append(Source::File(input.clone()), &mut out)?);
    }
    out.flush().map_err(|e| at(partial, e))?;
    Ok(merged)
}

/// Writes the whole packets of one source to `out`.
pub fn append(source: Source, out: &mut impl Write) -> Result<MergedFile, MergeError> {
    let reading = |e: io::Error| io::Error::new(e.kind(), format!("{source}: {e}"));
    let writing = |e: io::Error| io::Error::new(e.kind(), format!("writing the merged trace: {e}"));
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

fn refuse_collisions(inputs: &[PathBuf], output: &Path) -> Result<(), MergeError> {
    let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
    let mut seen = HashMap::new();
    for input in inputs {
        let id = identity(input).map_err(|e| at(input, e))?;
        if seen.insert(id, input).is_some() {
            return Err(MergeError::Twice(input.clone()));
        }
    }
    match identity(output) {
        Ok(id) if seen.contains_key(&id) => Err(MergeError::OutputIsInput(output.to_owned())),
        _ => Ok(()),
    }
}

/// A name beside the output, so that the rename stays in one file system.
fn partial_name(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.partial", std::process::id()));
    output.with_file_name(name)
}

fn at(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}
