//! `nano-trace info`.

use crate::choice::Choice;
use nano_trace::{
    Event, TraceFileName,
    check::{OpenSlices, Report, check},
    merge::MergeError,
    read::{Source, Tail},
    selection::{SessionOfRun, Wanted},
    timeline::{ArgValue, Timeline, TrackOf},
};
use std::{fmt::Write, path::Path, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Info {
    #[command(flatten)]
    choice: Choice,
}

impl Info {
    pub(crate) fn run(self) -> Result<ExitCode, MergeError> {
        let selection = self.choice.select(Wanted::NewestRun)?;
        let reports = selection
            .files
            .iter()
            .map(|path| {
                Ok((
                    path,
                    check(&[Source::File(path.clone())], &OpenSlices::Any)?,
                ))
            })
            .collect::<Result<Vec<_>, MergeError>>()?;
        for session in &selection.taken {
            let of_session = reports
                .iter()
                .filter(|(path, _)| session.files.contains(path));
            let timelines: Vec<&Timeline> = of_session.map(|(_, r)| &r.timeline).collect();
            println!("{}", summary(session, &timelines));
        }
        for (place, (path, report)) in reports.iter().enumerate() {
            if place > 0 || !selection.taken.is_empty() {
                println!();
            }
            print!("{}", describe(path, report));
        }
        for (_, report) in &reports {
            report.only_traces()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A session in one line.
fn summary(session: &SessionOfRun, timelines: &[&Timeline]) -> String {
    let recorded = timelines.iter().map(|timeline| recorded_ns(timeline));
    let recorded = recorded.max().unwrap_or(0) as f64 / 1e9;
    let requests = timelines
        .iter()
        .map(|t| t.slices_of(Event::Request).count());
    let requests: usize = requests.sum();
    let drops: u64 = timelines.iter().map(|timeline| timeline.dropped).sum();
    let mut ends: Vec<&str> = timelines.iter().flat_map(|t| ends(t)).collect();
    ends.sort_unstable();
    ends.dedup();
    let ends = match ends[..] {
        [] => "not ended".to_owned(),
        _ => ends.join(", "),
    };
    format!(
        "session {session}: {recorded:.3} s recorded, {requests} requests, {drops} drops, {ends}"
    )
}

/// How long the session was on.
fn recorded_ns(timeline: &Timeline) -> u64 {
    let intervals = timeline.slices_of(Event::TraceRecording);
    intervals
        .filter_map(|(_, interval)| interval.duration())
        .sum()
}

/// Why files say that they end.
fn ends(timeline: &Timeline) -> impl Iterator<Item = &str> {
    let instants = timeline.instants.iter();
    let ends = instants.filter(|instant| instant.event == Some(Event::TraceEnd));
    ends.filter_map(|end| end.arg("reason").and_then(ArgValue::text))
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
        line("interval", span(from, to));
    }
    for (_, interval) in timeline.slices_of(Event::TraceRecording) {
        let end = interval.end.or(timeline.interval().map(|(_, to)| to));
        line(
            "recorded",
            span(interval.begin, end.unwrap_or(interval.begin)),
        );
    }
    for end in ends(timeline) {
        line("ended", end.to_owned());
    }
    let open = timeline.slices.iter().filter(|s| s.end.is_none()).count();
    let open = match open {
        0 => String::new(),
        n => format!(", {n} without an end"),
    };
    line("slices", format!("{}{open}", timeline.slices.len()));
    line("instants", timeline.instants.len().to_string());
    line("counters", format!("{} values", timeline.counters.len()));
    if !timeline.samples.is_empty() {
        let lost = timeline.lost_samples;
        let unsampled = match timeline.unsampled_threads {
            0 => String::new(),
            threads => format!(", {threads} threads could not be sampled"),
        };
        line(
            "samples",
            format!("{}, {lost} lost{unsampled}", timeline.samples.len()),
        );
    }
    line("flows", timeline.flows.len().to_string());
    let requests = timeline.slices_of(Event::Request).count();
    if requests > 0 {
        let clipped = timeline
            .slices_of(Event::Request)
            .filter(|(_, request)| request.arg("clipped").is_some())
            .count();
        let clipped = match clipped {
            0 => String::new(),
            n => format!(", {n} clipped"),
        };
        line("requests", format!("{requests}{clipped}"));
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

fn span(from: u64, to: u64) -> String {
    let (from, to) = (from as f64 / 1e9, to as f64 / 1e9);
    let length = to - from;
    format!("{length:.3} s, from {from:.6} to {to:.6} s after boot")
}

fn processes(timeline: &Timeline) -> impl Iterator<Item = (i32, &str)> {
    timeline.tracks.values().filter_map(|track| match track.of {
        TrackOf::Process { pid, .. } => Some((pid, track.name.as_str())),
        _ => None,
    })
}
