//! Which files a command is about.

use nano_trace::merge::MergeError;
use nano_trace::read::Source;
use nano_trace::selection::{Selection, SessionOfRun, Wanted, select};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Choice {
    /// Trace files, or directories that hold them
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Of a directory take the session of this name, of the newest run that has it, and the clients that ran meanwhile
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Of a directory take all sessions of all runs
    #[arg(long, conflicts_with = "session")]
    all: bool,
}

impl Choice {
    /// Where there is a choice, says on standard error what it took and left out.
    pub(crate) fn select(&self, without_flags: Wanted) -> Result<Selection, MergeError> {
        let wanted = match (&self.session, self.all) {
            (Some(name), _) => Wanted::Named(name.clone()),
            (None, true) => Wanted::All,
            (None, false) => without_flags,
        };
        let selection = select(&self.paths, &wanted)?;
        if !selection.left_out.is_empty() {
            eprintln!("nano-trace: took session {}", list(&selection.taken));
            eprintln!("nano-trace: left out {}", list(&selection.left_out));
        }
        Ok(selection)
    }

    /// The files of [`Choice::select`], to be read.
    pub(crate) fn sources(&self, without_flags: Wanted) -> Result<Vec<Source>, MergeError> {
        let files = self.select(without_flags)?.files;
        Ok(files.into_iter().map(Source::File).collect())
    }
}

/// The newest by name, and how many there are before.
fn list(sessions: &[SessionOfRun]) -> String {
    /// A directory of a long life holds many.
    const NAMED: usize = 4;
    let (others, newest) = sessions.split_at(sessions.len().saturating_sub(NAMED));
    let names: Vec<String> = newest.iter().map(ToString::to_string).collect();
    match others.len() {
        0 => names.join(", "),
        others => format!("{others} older ones, {}", names.join(", ")),
    }
}

/// A name for what was selected, in one file.
pub(crate) fn merged_name(selection: &Selection) -> String {
    let of_directories = selection.taken.iter().map(|session| session.files.len());
    let is_all = of_directories.sum::<usize>() == selection.files.len();
    let servers = || selection.taken.iter().filter(|session| !session.is_client);
    let name = match (servers().count(), &selection.taken[..]) {
        // Clients go by the name of what they drove.
        (1, _) if is_all => servers().next().map(|session| &*session.session),
        (0, [client]) if is_all => Some(&*client.session),
        _ => None,
    };
    let name = name.unwrap_or("merged");
    // Not the ending of a process's file: no directory counts it among them.
    format!("{name}.perfetto-trace")
}
