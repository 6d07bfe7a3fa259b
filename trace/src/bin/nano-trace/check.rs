//! `nano-trace check`.

use crate::choice::Choice;
use nano_trace::{
    check::{OpenSlices, Report, Rule, check},
    merge::MergeError,
    read::Source,
    selection::{Selection, SessionOfRun, Wanted},
};
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Check {
    #[command(flatten)]
    choice: Choice,
    /// This process was killed: slices of it may lack their end (can be repeated)
    #[arg(long, value_name = "PID")]
    killed: Vec<i32>,
    /// Any slice may lack its end
    #[arg(long, conflicts_with = "killed")]
    allow_open: bool,
}

impl Check {
    pub(crate) fn run(self) -> Result<ExitCode, MergeError> {
        let open_slices = match self.allow_open {
            true => OpenSlices::Any,
            false => OpenSlices::Of(self.killed),
        };
        let selection = self.choice.select(Wanted::NewestRun)?;
        let mut is_clean = true;
        let mut judge = |what: &str, files: &[PathBuf]| -> Result<(), MergeError> {
            let sources: Vec<Source> = files.iter().cloned().map(Source::File).collect();
            is_clean &= tell(what, &check(&sources, &open_slices)?);
            Ok(())
        };
        for file in &selection.files {
            judge(&file.display().to_string(), std::slice::from_ref(file))?;
        }
        for (what, files) in together(&selection) {
            judge(&what, &files)?;
        }
        Ok(match is_clean {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(crate::FAULTS),
        })
    }
}

/// Files that are one timeline: those of a session, and of the clients beside it.
/// Sessions are not, since two of them may show the same moment.
fn together(selection: &Selection) -> Vec<(String, Vec<PathBuf>)> {
    let of_directories = selection.taken.iter().map(|session| session.files.len());
    let is_all = of_directories.sum::<usize>() == selection.files.len();
    let (clients, servers): (Vec<_>, Vec<_>) = selection
        .taken
        .iter()
        .partition(|session| session.is_client);
    if !is_all || servers.len() < 2 {
        let is_one = selection.files.len() < 2;
        let all = ("all together".to_owned(), selection.files.clone());
        return if is_one { Vec::new() } else { vec![all] };
    }
    let with_clients = |server: &&SessionOfRun| {
        let sessions = std::iter::once(*server).chain(clients.iter().copied());
        let files = sessions.flat_map(|session| session.files.iter().cloned());
        (server.to_string(), files.collect())
    };
    servers.iter().map(with_clients).collect()
}

fn tell(what: &str, report: &Report) -> bool {
    for line in report.lines() {
        println!("{line}");
    }
    let packets: u64 = report.files.iter().map(|file| file.packets).sum();
    let slices = report.timeline.slices.len();
    let flows = report.timeline.flows.len();
    let violations: usize = report.violations.counts().values().sum();
    let verdict = match violations {
        0 => "ok".to_owned(),
        1 => "1 violation".to_owned(),
        n => format!("{n} violations"),
    };
    if report.timeline.dropped > 0 {
        let dropped = report.timeline.dropped;
        println!("{what}: {dropped} records were lost: what lacks its counterpart is not judged");
    }
    println!("{what}: {verdict} ({packets} packets, {slices} slices, {flows} flows)");
    let open = report.violations.counts().get(&Rule::SliceOpen);
    if open == Some(&violations) {
        println!(
            "{what}: slices are open where a process was killed or is still running; \
             --allow-open lets them be"
        );
    }
    violations == 0
}
