//! `nano-trace flame`: where CPU time went, as a picture or as text.

use crate::{choice::Choice, reading};
use inferno::flamegraph::{self, color};
use nano_trace::{
    flame::{Filter, FilterError, folded},
    merge::MergeError,
    selection::Wanted,
};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Flame {
    #[command(flatten)]
    choice: Choice,
    /// Where the picture goes, as SVG: an existing file is replaced, `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write folded stacks instead, a line each: functions joined by semicolons, and microseconds
    #[arg(long)]
    folded: bool,
    /// Only processes with this in their name
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    /// Only threads with this in their name
    #[arg(long, value_name = "NAME")]
    thread: Option<String>,
    /// Only from so many seconds after the trace's begin on
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    from: Option<f64>,
    /// Only until so many seconds after the trace's begin
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    to: Option<f64>,
    /// Only threads that are in a slice of this name
    #[arg(long, value_name = "SLICE")]
    inside: Option<String>,
    /// Only while anyone is in a slice of this name
    #[arg(long, value_name = "SLICE")]
    r#while: Option<String>,
}

fn seconds(text: &str) -> Result<f64, &'static str> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or("must be seconds after the trace's begin, such as 1.5")
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlameError {
    #[error(transparent)]
    Read(#[from] MergeError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("{path}: {error}")]
    Write { path: String, error: io::Error },
}

impl Flame {
    pub(crate) fn run(self) -> Result<ExitCode, FlameError> {
        let sources = self.choice.sources(Wanted::Newest)?;
        let timeline = reading::timeline(&sources)?;
        let filter = Filter {
            process: self.process,
            thread: self.thread,
            from: self.from,
            to: self.to,
            inside: self.inside,
            during: self.r#while,
        };
        let lines = lines(&folded(&timeline, &filter)?);
        if timeline.lost_samples > 0 {
            let (lost, kept) = (timeline.lost_samples, timeline.samples.len());
            eprintln!("{lost} samples were lost, beside {kept} that are there");
        }
        if timeline.unsampled_threads > 0 {
            let threads = timeline.unsampled_threads;
            eprintln!("{threads} threads could not be sampled, for a while or at all");
        }
        let text = match self.folded {
            true => lines.iter().map(|line| format!("{line}\n")).collect(),
            false => picture(&lines, &title(&filter))?,
        };
        let write = match self.output == Path::new("-") {
            true => io::stdout().write_all(text.as_bytes()),
            false => fs::write(&self.output, text),
        };
        let path = self.output.display().to_string();
        write.map_err(|error| FlameError::Write { path, error })?;
        if self.output != Path::new("-") {
            println!("{}", self.output.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// In microseconds: a picture counts in whole numbers. In order of functions,
/// not of characters, so that what a function called stands right behind it, and
/// not after another one whose name begins with its own.
fn lines(folded: &BTreeMap<String, u64>) -> Vec<String> {
    let mut stacks: Vec<_> = folded.iter().collect();
    stacks.sort_by(|(a, _), (b, _)| a.split(';').cmp(b.split(';')));
    let line = |(stack, ns): (&String, &u64)| format!("{stack} {}", ns.div_ceil(1000));
    stacks.into_iter().map(line).collect()
}

fn title(filter: &Filter) -> String {
    let part = |word: &str, name: &Option<String>| {
        let name = name.as_ref()?;
        Some(format!(", {word} {name}"))
    };
    let time = |word: &str, seconds: Option<f64>| seconds.map(|s| format!(", {word} {s} s"));
    let parts = [
        part("processes", &filter.process),
        part("threads", &filter.thread),
        part("inside", &filter.inside),
        part("while", &filter.during),
        time("from", filter.from),
        time("to", filter.to),
    ];
    let parts: String = parts.into_iter().flatten().collect();
    format!("CPU time{parts}")
}

fn picture(lines: &[String], title: &str) -> io::Result<String> {
    let mut options = flamegraph::Options::default();
    options.title = title.to_owned();
    options.count_name = "microseconds".to_owned();
    options.colors = color::Palette::Multi(color::MultiPalette::Rust);
    // The same picture of the same trace.
    options.deterministic = true;
    // Draws lines from the last to the first, and does not sort them by characters.
    options.flame_chart = true;
    let mut svg = Vec::new();
    let lines = lines.iter().rev().map(String::as_str);
    flamegraph::from_lines(&mut options, lines, &mut svg)?;
    String::from_utf8(svg).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_one_box_whatever_others_are_called() {
        let stacks = [("a;foo", 10_000), ("a;foo::x", 5_000), ("a;foo;bar", 3_000)];
        let folded = stacks.map(|(stack, ns)| (stack.to_owned(), ns)).into();
        let lines = lines(&folded);
        assert_eq!(lines, ["a;foo 10", "a;foo;bar 3", "a;foo::x 5"]);
        let svg = picture(&lines, "").unwrap();
        assert!(svg.contains("foo (13 microseconds"), "{svg}");
    }
}
