//! What a set of traces shows: tracks, slices, instants, counters and flows,
//! with names resolved and times on one clock.

use crate::Event;
use std::{collections::BTreeMap, sync::Arc};

/// A name or text; equal ones share their bytes.
pub type Name = Arc<str>;

/// Where in which file something was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Number of the file among those read together.
    pub file: u32,
    /// Number of the packet in the file, from 0.
    pub packet: u64,
    /// Offset of the packet's first byte in the file.
    pub offset: u64,
}

/// All that a set of traces shows. Times are nanoseconds of `CLOCK_BOOTTIME`.
#[derive(Debug, Default)]
pub struct Timeline {
    /// By uuid.
    pub tracks: BTreeMap<u64, Track>,
    /// In order of their begin.
    pub slices: Vec<TimelineSlice>,
    /// In order of time.
    pub instants: Vec<Moment>,
    /// In order of time.
    pub counters: Vec<CounterValue>,
    /// In order of time.
    pub samples: Vec<CpuSample>,
    /// Names of threads that were sampled, by process and thread.
    pub thread_names: BTreeMap<(i32, i64), String>,
    /// By flow id, each in order of time.
    pub flows: BTreeMap<u64, Vec<Hop>>,
    /// Facts of the run, in order of the files, each once.
    pub facts: Vec<(String, String)>,
    /// Records that the writers say were lost.
    pub dropped: u64,
    /// Stack samples that were lost.
    pub lost_samples: u64,
    /// Threads that were not sampled, or not all the time.
    pub unsampled_threads: u64,
}

/// One track.
#[derive(Clone, Debug)]
pub struct Track {
    /// Its identity over all files.
    pub uuid: u64,
    /// The track above it; 0 if none.
    pub parent: u64,
    /// Its name, or that of its process or thread.
    pub name: String,
    /// What the user reads on demand.
    pub description: String,
    /// What it is a track of.
    pub of: TrackOf,
    /// Where it was described first.
    pub at: Position,
}

/// What a track is a track of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrackOf {
    /// A process.
    Process {
        /// Its number.
        pid: i32,
        /// When it started, if its descriptor says so.
        start: Option<i64>,
    },
    /// A thread.
    Thread {
        /// Number of its process.
        pid: i32,
        /// Its number.
        tid: i64,
    },
    /// A counter.
    Counter,
    /// Anything else: a request.
    Events,
}

/// One slice.
#[derive(Clone, Debug)]
pub struct TimelineSlice {
    /// Its name.
    pub name: Name,
    /// Its category.
    pub category: Name,
    /// The entry of the catalogue with this name and category.
    pub event: Option<Event>,
    /// Its track.
    pub track: u64,
    /// When it begins.
    pub begin: u64,
    /// When it ends; never, if its process was killed in it.
    pub end: Option<u64>,
    /// Arguments given at its begin, then those given at its end.
    pub args: Vec<Arg>,
    /// The slice around it, by its place in [`Timeline::slices`].
    pub parent: Option<usize>,
    /// How many slices are around it.
    pub depth: usize,
    /// Where its begin was written.
    pub at: Position,
}

/// One instant.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Its name.
    pub name: Name,
    /// Its category.
    pub category: Name,
    /// The entry of the catalogue with this name and category.
    pub event: Option<Event>,
    /// Its track.
    pub track: u64,
    /// When.
    pub time: u64,
    /// Its arguments.
    pub args: Vec<Arg>,
    /// The slice around it, by its place in [`Timeline::slices`].
    pub parent: Option<usize>,
    /// Where it was written.
    pub at: Position,
}

/// One value of a counter.
#[derive(Clone, Debug)]
pub struct CounterValue {
    /// Its track.
    pub track: u64,
    /// Since when it holds.
    pub time: u64,
    /// The value.
    pub value: f64,
    /// Where it was written.
    pub at: Position,
}

/// Where a thread was at one moment.
#[derive(Clone, Debug)]
pub struct CpuSample {
    /// When.
    pub time: u64,
    /// Number of the process.
    pub pid: i32,
    /// Number of the thread.
    pub tid: i64,
    /// CPU time that it stands for, in nanoseconds.
    pub weight: u64,
    /// Functions, the outermost first.
    pub stack: Arc<[Name]>,
    /// The outermost function is where the thread began.
    pub is_whole: bool,
    /// Where it was written.
    pub at: Position,
}

/// One argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    /// Its name.
    pub name: Name,
    /// Its value.
    pub value: ArgValue,
}

/// An argument's value.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgValue {
    /// Yes or no.
    Bool(bool),
    /// A number that is never negative.
    Uint(u64),
    /// A number.
    Int(i64),
    /// A text.
    Text(Name),
}

/// One place that a flow goes through.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// When.
    pub time: u64,
    /// What it goes through there.
    pub through: Through,
    /// Where it was written.
    pub at: Position,
}

/// What a flow goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// The begin of a slice, by its place in [`Timeline::slices`].
    Begin(usize),
    /// The end of a slice, by its place in [`Timeline::slices`].
    End(usize),
    /// An instant, by its place in [`Timeline::instants`].
    Instant(usize),
}

impl Timeline {
    /// First and last moment of everything, if anything is in it.
    pub fn interval(&self) -> Option<(u64, u64)> {
        let slices = self
            .slices
            .iter()
            .map(|s| (s.begin, s.end.unwrap_or(s.begin)));
        let instants = self.instants.iter().map(|i| (i.time, i.time));
        let counters = self.counters.iter().map(|c| (c.time, c.time));
        let samples = self.samples.iter().map(|s| (s.time, s.time));
        slices
            .chain(instants)
            .chain(counters)
            .chain(samples)
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// The process that a track belongs to.
    pub fn process(&self, track: u64) -> Option<&Track> {
        let mut track = self.tracks.get(&track)?;
        // Parents may form a circle in a broken trace.
        for _ in 0..self.tracks.len() {
            match track.of {
                TrackOf::Process { .. } => return Some(track),
                _ => track = self.tracks.get(&track.parent)?,
            }
        }
        None
    }

    /// All slices of an event, in order of their begin.
    pub fn slices_of(&self, event: Event) -> impl Iterator<Item = (usize, &TimelineSlice)> {
        self.slices
            .iter()
            .enumerate()
            .filter(move |(_, slice)| slice.event == Some(event))
    }

    /// Slices directly inside the one at `parent`, in order of their begin.
    pub fn children(&self, parent: usize) -> impl Iterator<Item = (usize, &TimelineSlice)> {
        let end = self.slices[parent].end.unwrap_or(u64::MAX);
        self.slices
            .iter()
            .enumerate()
            .skip(parent + 1)
            .take_while(move |(_, slice)| slice.begin <= end)
            .filter(move |(_, slice)| slice.parent == Some(parent))
    }

    /// The values of all counters of an event, in order of time.
    pub fn counter_values(&self, event: Event) -> impl Iterator<Item = &CounterValue> {
        self.counters.iter().filter(move |value| {
            self.tracks
                .get(&value.track)
                .is_some_and(|track| track.name == event.name())
        })
    }

    /// The catalogue's entry, category and arguments of what a flow goes through.
    pub fn hop(&self, hop: &Hop) -> (Option<Event>, &Name, &[Arg]) {
        match hop.through {
            Through::Begin(i) | Through::End(i) => {
                let slice = &self.slices[i];
                (slice.event, &slice.category, &slice.args)
            }
            Through::Instant(i) => {
                let instant = &self.instants[i];
                (instant.event, &instant.category, &instant.args)
            }
        }
    }
}

impl TimelineSlice {
    /// How long it took, in nanoseconds, if it ended.
    pub fn duration(&self) -> Option<u64> {
        self.end.map(|end| end - self.begin)
    }

    /// The argument with this name.
    pub fn arg(&self, name: &str) -> Option<&ArgValue> {
        find(&self.args, name)
    }
}

impl Moment {
    /// The argument with this name.
    pub fn arg(&self, name: &str) -> Option<&ArgValue> {
        find(&self.args, name)
    }
}

fn find<'a>(args: &'a [Arg], name: &str) -> Option<&'a ArgValue> {
    args.iter()
        .find(|arg| &*arg.name == name)
        .map(|arg| &arg.value)
}

impl ArgValue {
    /// As an unsigned number.
    pub fn uint(&self) -> Option<u64> {
        match self {
            ArgValue::Uint(value) => Some(*value),
            ArgValue::Int(value) => u64::try_from(*value).ok(),
            ArgValue::Bool(_) | ArgValue::Text(_) => None,
        }
    }

    /// As a text.
    pub fn text(&self) -> Option<&str> {
        match self {
            ArgValue::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl std::fmt::Display for ArgValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ArgValue::Bool(value) => value.fmt(f),
            ArgValue::Uint(value) => value.fmt(f),
            ArgValue::Int(value) => value.fmt(f),
            ArgValue::Text(text) => f.write_str(text),
        }
    }
}
