//! Which files of a directory belong together: those of a run's session, and
//! those of the clients that ran meanwhile.

use crate::TraceFileName;
use crate::merge::{MergeError, at, identity, metadata};
use crate::proto::{BuiltinClock, trace_packet::Data};
use crate::read::Source;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The role of a client that measures. Its trace is a run of its own, and goes
/// with every session of a server that it overlaps in time.
pub const CLIENT_ROLE: &str = "bench";

/// What is wanted of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest session of the newest run of a server, or else of a client.
    Newest,
    /// All sessions of the newest run.
    NewestRun,
    /// The session of this name, of the newest run that has it.
    Named(String),
    /// All sessions of all runs.
    All,
}

/// A session of one run of a server, or of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOfRun {
    /// Its name.
    pub session: String,
    /// The run's random word.
    pub run: String,
    /// A client's, by its role.
    pub is_client: bool,
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
            ..
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

/// A session, and when its last file was written last.
#[derive(Debug)]
struct Found {
    modified: SystemTime,
    session: SessionOfRun,
}

impl Found {
    /// From when to when it may have recorded.
    fn interval(&self) -> io::Result<(SystemTime, SystemTime)> {
        let mut begun = self.modified;
        for file in &self.session.files {
            begun = begun.min(begin_of(file)?.unwrap_or(self.modified));
        }
        Ok((begun, self.modified))
    }
}

/// Sessions by what is wanted, each in order of time.
type Split = (Vec<SessionOfRun>, Vec<SessionOfRun>);

fn in_directory(dir: &Path, wanted: &Wanted) -> Result<Split, MergeError> {
    let sessions = sessions(dir)?;
    let mut from_last = sessions.iter().map(|found| &found.session).rev();
    let of_server = from_last.clone().find(|session| !session.is_client);
    let Some(newest) = of_server.or(from_last.next()) else {
        return Err(MergeError::NothingIn(dir.to_owned()));
    };
    let is_wanted: Box<dyn Fn(&SessionOfRun) -> bool> = match wanted {
        Wanted::All => Box::new(|_| true),
        Wanted::Newest => Box::new(move |session| session == newest),
        Wanted::NewestRun => Box::new(move |session| session.run == newest.run),
        Wanted::Named(name) => {
            let mut from_last = sessions.iter().map(|found| &found.session).rev();
            let Some(named) = from_last.find(|session| session.session == *name) else {
                let there = sessions.iter().map(|found| found.session.to_string());
                return Err(MergeError::NoSuchSession {
                    dir: dir.to_owned(),
                    name: name.clone(),
                    there: there.collect(),
                });
            };
            Box::new(move |session| session == named)
        }
    };
    let mut served = Vec::new();
    for found in &sessions {
        if is_wanted(&found.session) && !found.session.is_client {
            served.push(found);
        }
    }
    let mut split = Split::default();
    for found in &sessions {
        let is_taken =
            is_wanted(&found.session) || (found.session.is_client && overlaps(found, &served)?);
        let side = if is_taken { &mut split.0 } else { &mut split.1 };
        side.push(found.session.clone());
    }
    Ok(split)
}

/// All of a directory, in order of time.
fn sessions(dir: &Path) -> Result<Vec<Found>, MergeError> {
    let mut by_name: BTreeMap<(String, String), Found> = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(|e| at(dir, e))? {
        let entry = entry.map_err(|e| at(dir, e))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|n| n.parse::<TraceFileName>().ok()) else {
            continue;
        };
        let path = entry.path();
        let modified = metadata(&path)?.modified().map_err(|e| at(&path, e))?;
        let key = (name.run.clone(), name.session.clone());
        let found = by_name.entry(key).or_insert_with(|| Found {
            modified,
            session: SessionOfRun {
                session: name.session,
                run: name.run,
                is_client: name.role == CLIENT_ROLE,
                files: Vec::new(),
            },
        });
        found.modified = found.modified.max(modified);
        found.session.files.push(path);
    }
    let mut sessions: Vec<Found> = by_name.into_values().collect();
    for found in &mut sessions {
        found.session.files.sort();
    }
    sessions.sort_by_key(|found| found.modified);
    Ok(sessions)
}

fn overlaps(client: &Found, served: &[&Found]) -> io::Result<bool> {
    let client = client.interval()?;
    for server in served {
        let server = server.interval()?;
        if client.0 <= server.1 && server.0 <= client.1 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// When a file was begun, by the first clocks that it tells; `None` if it is cut
/// before.
fn begin_of(path: &Path) -> io::Result<Option<SystemTime>> {
    let mut packets = Source::File(path.to_owned()).packets()?;
    while let Some(packet) = packets.next_packet().map_err(|e| at(path, e))? {
        let Some(Data::ClockSnapshot(snapshot)) = packet.content.data else {
            continue;
        };
        let mut clocks = snapshot.clocks.into_iter();
        let utc = clocks.find(|clock| clock.clock_id == Some(BuiltinClock::Realtime as u32));
        if let Some(ns) = utc.and_then(|clock| clock.timestamp) {
            return Ok(Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)));
        }
    }
    Ok(None)
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
