//! The validator: reads traces as a viewer would, and says where they break a
//! rule of the format or differ from the catalogue.
//!
//! Two passes. In file order: framing, sequences, clocks, tracks
//! ([`Rule`] up to the events). In order of time: nesting, flows, catalogue.
//! Viewers drop or misplace what breaks a rule, most of it silently; so does
//! this reader, but it says so.

mod catalogue;
mod clocks;
mod flows;
mod intervals;
mod names;
mod nesting;
mod rule;
mod scan;
mod sequences;
mod stacks;
mod tracks;

pub use rule::{Rule, Violation, Violations};
pub use scan::FileSummary;

use crate::{
    Event,
    merge::MergeError,
    read::{Source, Tail},
    timeline::{ArgValue, Timeline, Track, TrackOf},
};
use intervals::Intervals;
use scan::Scan;
use std::{collections::BTreeSet, io};

/// What the caller knows to be no fault.
#[derive(Clone, Debug, Default)]
pub enum OpenSlices {
    /// Every slice must end, but where a trace says that it was cut short.
    #[default]
    None,
    /// Slices of these processes need not: they were killed.
    Of(Vec<i32>),
    /// No slice need end.
    Any,
}

impl OpenSlices {
    fn may_stay_open(&self, process: Option<&Track>) -> bool {
        match self {
            OpenSlices::None => false,
            OpenSlices::Any => true,
            OpenSlices::Of(pids) => process.is_some_and(
                |p| matches!(p.of, TrackOf::Process { pid, .. } if pids.contains(&pid)),
            ),
        }
    }
}

/// What a set of traces, read as one after another, breaks and shows.
#[derive(Debug)]
pub struct Report {
    /// Its files.
    pub files: Vec<FileSummary>,
    /// Broken rules.
    pub violations: Violations,
    /// What it shows.
    pub timeline: Timeline,
}

/// Reads `sources` as one trace, as if concatenated at their last whole packets.
/// An error means that a file could not be read, not that it is broken.
pub fn check(sources: &[Source], open_slices: &OpenSlices) -> io::Result<Report> {
    let mut violations = Violations::default();
    let mut scan = Scan::default();
    for source in sources {
        scan.file(source, &mut violations)?;
    }
    let Scan {
        events,
        tracks,
        facts,
        dropped,
        mut samples,
        thread_names,
        files,
        ..
    } = scan;
    let tracks = tracks.finish(&mut violations);
    let may_stay_open = |process: Option<&Track>| open_slices.may_stay_open(process);
    let mut timeline = nesting::timeline(events, tracks, may_stay_open, &mut violations);
    timeline.facts = facts;
    timeline.dropped = dropped + told_at_end(&timeline, "dropped");
    timeline.lost_samples = told_at_end(&timeline, "lost_samples");
    timeline.unsampled_threads = told_at_end(&timeline, "unsampled_threads");
    samples.sort_by_key(|sample| sample.time);
    timeline.samples = samples;
    timeline.thread_names = thread_names;
    expect_processes(&timeline, &mut violations);
    let intervals = Intervals::of(&timeline);
    // Records that were lost, and are counted, are what slices and flows lack.
    if timeline.dropped > 0 {
        violations.excuse(&[
            Rule::FlowLone,
            Rule::FlowPair,
            Rule::RequestWay,
            Rule::Nesting,
        ]);
    }
    flows::check(&timeline, &intervals, &mut violations);
    catalogue::check(&timeline, &intervals, &mut violations);
    Ok(Report {
        files,
        violations,
        timeline,
    })
}

/// Samples are of processes that a trace describes.
fn expect_processes(timeline: &Timeline, out: &mut Violations) {
    let pids = timeline.tracks.values().filter_map(|track| match track.of {
        TrackOf::Process { pid, .. } => Some(pid),
        _ => None,
    });
    let pids: BTreeSet<i32> = pids.collect();
    for sample in &timeline.samples {
        if !pids.contains(&sample.pid) {
            out.add(Rule::SampleProcess, sample.at, || {
                format!(
                    "a sample is of process {}, which nothing describes",
                    sample.pid
                )
            });
        }
    }
}

/// What the last words of all files say about what was lost.
fn told_at_end(timeline: &Timeline, what: &str) -> u64 {
    let instants = timeline.instants.iter();
    let ends = instants.filter(|instant| instant.event == Some(Event::TraceEnd));
    let told = ends.map(|end| end.arg(what).and_then(ArgValue::uint));
    told.map(Option::unwrap_or_default).sum()
}

impl Report {
    /// # Errors
    /// The first of its files that is no trace at all.
    pub fn only_traces(&self) -> Result<(), MergeError> {
        let broken = |file: &FileSummary| match (file.packets, &file.tail) {
            (0, Tail::Broken { why, .. }) => Some(MergeError::NotATrace {
                file: file.source.to_string(),
                why: why.clone(),
            }),
            _ => None,
        };
        self.files.iter().find_map(broken).map_or(Ok(()), Err)
    }

    /// One line a violation: file, packet and byte, rule, what is there; and
    /// one for those left out.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for Violation { rule, at, what } in self.violations.kept() {
            let file = match self.files.get(at.file as usize) {
                Some(file) => file.source.to_string(),
                None => String::new(),
            };
            lines.push(format!(
                "{file}: packet {} at byte {}: {rule}: {what}",
                at.packet, at.offset
            ));
        }
        for (rule, count) in self.violations.counts() {
            if *count > Violations::KEPT {
                lines.push(format!("{rule}: {} more", count - Violations::KEPT));
            }
        }
        lines
    }

    /// Panics with every violation, if there is one. For tests.
    pub fn assert_clean(&self) {
        assert!(self.violations.is_empty(), "{}", self.lines().join("\n"));
    }
}
