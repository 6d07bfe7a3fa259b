//! Which files of a directory belong together: those of a run's session.

use crate::TraceFileName;
use crate::merge::{MergeError, at, identity, metadata};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What is wanted of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest session of the newest run.
    Newest,
    /// All sessions of the newest run.
    NewestRun,
    /// The session of this name, of the newest run that has it.
    Named(String),
    /// All sessions of all runs.
    All,
}

/// A session of one run of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOfRun {
    /// Its name.
    pub session: String,
    /// The run's random word.
    pub run: String,
    /// Its files in the directory, sorted by name.
    pub files: Vec<PathBuf>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Files as they were given, and those of the sessions that were taken,
    /// each once.
    pub files: Vec<PathBuf>,
    /// Of directories; in order of time.
    pub taken: Vec<SessionOfRun>,
    /// Of directories; in order of time.
    pub left_out: Vec<SessionOfRun>,
}

impl fmt::Display for SessionOfRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionOfRun {
            session,
            run,
            files,
        } = self;
        let plural = if files.len() == 1 { "" } else { "s" };
        write!(f, "{session} of run {run} ({} file{plural})", files.len())
    }
}

/// Trace files under `paths`: files as they are, of directories what is wanted.
///
/// # Errors
/// When something cannot be read, or a directory has nothing that is wanted.
pub fn select(paths: &[PathBuf], wanted: &Wanted) -> Result<Selection, MergeError> {
    let mut selection = Selection::default();
    let mut seen = HashSet::new();
    for path in paths {
        if !metadata(path)?.is_dir() {
            if seen.insert(identity(&metadata(path)?)) {
                selection.files.push(path.clone());
            }
            continue;
        }
        let (taken, left_out) = in_directory(path, wanted)?;
        for mut session in taken {
            let mut new = Vec::new();
            for file in session.files {
                if seen.insert(identity(&metadata(&file)?)) {
                    new.push(file);
                }
            }
            session.files = new;
            if !session.files.is_empty() {
                selection.files.extend(session.files.iter().cloned());
                selection.taken.push(session);
            }
        }
        selection.left_out.extend(left_out);
    }
    Ok(selection)
}

/// Sessions by what is wanted, each in order of time.
type Split = (Vec<SessionOfRun>, Vec<SessionOfRun>);

fn in_directory(dir: &Path, wanted: &Wanted) -> Result<Split, MergeError> {
    let mut found: BTreeMap<(String, String), (SystemTime, Vec<PathBuf>)> = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(|e| at(dir, e))? {
        let entry = entry.map_err(|e| at(dir, e))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|n| n.parse::<TraceFileName>().ok()) else {
            continue;
        };
        let path = entry.path();
        let modified = metadata(&path)?.modified().map_err(|e| at(&path, e))?;
        let empty = (SystemTime::UNIX_EPOCH, Vec::new());
        let session = found.entry((name.run, name.session)).or_insert(empty);
        session.0 = session.0.max(modified);
        session.1.push(path);
    }
    let mut sessions: Vec<(SystemTime, SessionOfRun)> = found
        .into_iter()
        .map(|((run, session), (modified, mut files))| {
            files.sort();
            let session = SessionOfRun {
                session,
                run,
                files,
            };
            (modified, session)
        })
        .collect();
    sessions.sort_by_key(|(modified, _)| *modified);
    let sessions: Vec<SessionOfRun> = sessions.into_iter().map(|(_, s)| s).collect();
    let Some(newest) = sessions.last().cloned() else {
        return Err(MergeError::NothingIn(dir.to_owned()));
    };
    let is_wanted: Box<dyn Fn(&SessionOfRun) -> bool> = match wanted {
        Wanted::All => Box::new(|_| true),
        Wanted::Newest => Box::new(move |session| *session == newest),
        Wanted::NewestRun => Box::new(move |session| session.run == newest.run),
        Wanted::Named(name) => {
            let named = sessions.iter().rfind(|session| session.session == *name);
            let Some(named) = named.cloned() else {
                let there = sessions.iter().map(ToString::to_string).collect();
                return Err(MergeError::NoSuchSession {
                    dir: dir.to_owned(),
                    name: name.clone(),
                    there,
                });
            };
            Box::new(move |session| *session == named)
        }
    };
    Ok(sessions.into_iter().partition(|session| is_wanted(session)))
}

impl MergeError {
    pub(crate) fn list(there: &[String]) -> String {
        // A directory of a long life holds many.
        const SHOWN: usize = 8;
        let mut text = there[there.len().saturating_sub(SHOWN)..].join(", ");
        if there.len() > SHOWN {
            text.insert_str(0, "..., ");
        }
        text
    }
}
