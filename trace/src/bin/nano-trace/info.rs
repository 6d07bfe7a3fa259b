//! `nano-trace info`.

use nano_trace::{
    Event, TraceFileName,
    check::{OpenSlices, Report, check},
    merge::{MergeError, trace_files},
    read::{Source, Tail},
    timeline::{Timeline, TrackOf},
};
use std::{
    fmt::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Info {
    /// Trace files, or directories that hold them
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Of a directory take the traces of all runs, not of the newest one alone
    #[arg(long)]
    all: bool,
}

impl Info {
    pub(crate) fn run(self) -> Result<ExitCode, MergeError> {
        for (place, path) in trace_files(&self.paths, self.all)?.into_iter().enumerate() {
            let report = check(&[Source::File(path.clone())], &OpenSlices::Any)?;
            if place > 0 {
                println!();
            }
            print!("{}", describe(&path, &report));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn describe(path: &Path, report: &Report) -> String {
    let timeline = &report.timeline;
    let mut text = format!("{}\n", path.display());
    let mut line = |key: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {key:<10} {value}");
    };
    let name = path.file_name().and_then(|name| name.to_str());
    if let Some(name) = name.and_then(|name| name.parse::<TraceFileName>().ok()) {
        let rank = name.rank.map(|rank| format!(" {rank}")).unwrap_or_default();
        line("role", format!("{}{rank}", name.role));
        line("session", name.session);
        line("run", name.run);
    }
    for (pid, name) in processes(timeline) {
        line("process", format!("{pid} {name}"));
    }
    for file in &report.files {
        let tail = match file.tail {
            Tail::Whole => "",
            Tail::Cut { .. } => ", then a cut packet",
            Tail::Zeros { .. } => ", then zeros",
            Tail::Broken { .. } => ", then something that is no packet",
        };
        line("bytes", format!("{} in whole packets{tail}", file.bytes));
        line("packets", file.packets.to_string());
    }
    if let Some((from, to)) = timeline.interval() {
        let (from, to) = (from as f64 / 1e9, to as f64 / 1e9);
        let length = to - from;
        line(
            "interval",
            format!("{length:.3} s, from {from:.6} to {to:.6} s after boot"),
        );
    }
    let open = timeline.slices.iter().filter(|s| s.end.is_none()).count();
    let open = match open {
        0 => String::new(),
        n => format!(", {n} without an end"),
    };
    line("slices", format!("{}{open}", timeline.slices.len()));
    line("instants", timeline.instants.len().to_string());
    line("counters", format!("{} values", timeline.counters.len()));
    line("flows", timeline.flows.len().to_string());
    let requests = timeline.slices_of(Event::Request).count();
    if requests > 0 {
        line("requests", requests.to_string());
    }
    line("drops", timeline.dropped.to_string());
    let violations: usize = report.violations.counts().values().sum();
    if violations > 0 {
        line(
            "violations",
            format!("{violations}; nano-trace check tells them"),
        );
    }
    for (key, value) in &timeline.facts {
        line("fact", format!("{key} = {value}"));
    }
    text
}

fn processes(timeline: &Timeline) -> impl Iterator<Item = (i32, &str)> {
    timeline.tracks.values().filter_map(|track| match track.of {
        TrackOf::Process { pid, .. } => Some((pid, track.name.as_str())),
        _ => None,
    })
}
