//! `nano-trace check`.

use crate::choice::Choice;
use nano_trace::{
    check::{OpenSlices, Report, check},
    merge::MergeError,
    selection::Wanted,
};
use std::process::ExitCode;

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
        let sources = self.choice.sources(Wanted::NewestRun)?;
        let mut is_clean = true;
        for source in &sources {
            let report = check(std::slice::from_ref(source), &open_slices)?;
            is_clean &= tell(&source.to_string(), &report);
        }
        if sources.len() > 1 {
            let report = check(&sources, &open_slices)?;
            is_clean &= tell("all together", &report);
        }
        Ok(match is_clean {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(crate::FAULTS),
        })
    }
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
    violations == 0
}
