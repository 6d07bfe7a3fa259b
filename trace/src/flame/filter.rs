//! Which samples count.

use crate::timeline::{CpuSample, Timeline, TrackOf};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// What a sample must have to count; what is `None` is not asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// A part of the process's name.
    pub process: Option<String>,
    /// A part of the thread's name.
    pub thread: Option<String>,
    /// Seconds since the begin of the trace: not before.
    pub from: Option<f64>,
    /// Seconds since the begin of the trace: before.
    pub to: Option<f64>,
    /// The thread is in a slice of this name.
    pub inside: Option<String>,
    /// Some thread or request of any process is in a slice of this name.
    pub during: Option<String>,
}

/// Why no sample counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Nothing was sampled.
    #[error(
        "no stack samples in these traces; they are recorded with NANO_PROFILER_SAMPLE_HZ=99 or by a session with activities [\"samples\"]"
    )]
    NoSamples,
    /// A filter leaves none of those that the filters before it left.
    #[error("no stack samples {missed}; there are {there}")]
    NothingLeft {
        /// What was asked for.
        missed: String,
        /// What there is.
        there: String,
    },
    /// A name that no slice has.
    #[error("no slice {name:?} in these traces; there are {there}")]
    UnknownSlice {
        /// The name.
        name: String,
        /// Names that there are.
        there: String,
    },
}

/// A filter, with the times that its slices take.
pub(super) struct Selection<'f> {
    filter: &'f Filter,
    /// Of the trace.
    begin: u64,
    from: u64,
    to: u64,
    inside: Option<HashMap<(i32, i64), Times>>,
    during: Option<Times>,
}

impl Filter {
    pub(super) fn resolve(&self, timeline: &Timeline) -> Result<Selection<'_>, FilterError> {
        let begin = timeline.interval().map_or(0, |(begin, _)| begin);
        let moment = |seconds: f64| begin.saturating_add((seconds.max(0.0) * 1e9) as u64);
        let inside = self.inside.as_deref();
        let during = self.during.as_deref();
        Ok(Selection {
            filter: self,
            begin,
            from: self.from.map_or(0, moment),
            to: self.to.map_or(u64::MAX, moment),
            inside: inside.map(|name| by_thread(timeline, name)).transpose()?,
            during: during.map(|name| at_all(timeline, name)).transpose()?,
        })
    }
}

/// What a sample lacks first, in the order in which filters are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lack {
    Process,
    Thread,
    Time,
    Inside,
    During,
}

impl Selection<'_> {
    /// `None`: the sample counts.
    pub(super) fn lack(&self, sample: &CpuSample, process: &str, thread: &str) -> Option<Lack> {
        let is_part = |wanted: &Option<String>, name: &str| {
            wanted
                .as_ref()
                .is_none_or(|wanted| name.contains(wanted.as_str()))
        };
        let of_thread = |threads: &HashMap<(i32, i64), Times>| {
            let times = threads.get(&(sample.pid, sample.tid));
            times.is_some_and(|times| times.contain(sample.time))
        };
        let during = self.during.as_ref();
        let has = [
            (Lack::Process, is_part(&self.filter.process, process)),
            (Lack::Thread, is_part(&self.filter.thread, thread)),
            (Lack::Time, (self.from..self.to).contains(&sample.time)),
            (Lack::Inside, self.inside.as_ref().is_none_or(of_thread)),
            (
                Lack::During,
                during.is_none_or(|times| times.contain(sample.time)),
            ),
        ];
        has.into_iter().find(|(_, has)| !has).map(|(lack, _)| lack)
    }

    /// What a filter wanted that left nothing.
    pub(super) fn wanted(&self, lack: Lack) -> String {
        let Filter {
            process,
            thread,
            from,
            to,
            inside,
            during,
        } = self.filter;
        let name = |name: &Option<String>| format!("{:?}", name.as_deref().unwrap_or_default());
        match lack {
            Lack::Process => format!("of a process with {} in its name", name(process)),
            Lack::Thread => format!("of a thread with {} in its name", name(thread)),
            Lack::Time => {
                let to = to.map_or_else(|| "the end".to_owned(), |to| format!("{to} s"));
                format!("from {} s to {to}", from.unwrap_or(0.0))
            }
            Lack::Inside => format!("of a thread inside {}", name(inside)),
            Lack::During => format!("while {} runs", name(during)),
        }
    }

    /// A moment, in seconds as filters have them.
    pub(super) fn seconds(&self, time: u64) -> f64 {
        time.saturating_sub(self.begin) as f64 / 1e9
    }
}

/// Times, merged and in order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Times(Vec<Range<u64>>);

impl Times {
    fn new(mut ranges: Vec<Range<u64>>) -> Times {
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Times(merged)
    }

    fn contain(&self, time: u64) -> bool {
        let after = self.0.partition_point(|range| range.start <= time);
        after > 0 && self.0[after - 1].contains(&time)
    }
}

/// Slices with a name: their track, and from when to when. Those that never
/// ended last until the trace's end.
fn slices<'t>(
    timeline: &'t Timeline,
    name: &'t str,
) -> Result<Vec<(u64, Range<u64>)>, FilterError> {
    let end = timeline.interval().map_or(0, |(_, end)| end + 1);
    let named = timeline.slices.iter().filter(|slice| &*slice.name == name);
    let found: Vec<_> = named
        .map(|slice| (slice.track, slice.begin..slice.end.unwrap_or(end)))
        .collect();
    if found.is_empty() {
        let names: BTreeSet<&str> = timeline.slices.iter().map(|slice| &*slice.name).collect();
        let mut there = names.into_iter().collect::<Vec<_>>().join(", ");
        if there.is_empty() {
            there = "none at all".to_owned();
        }
        let name = name.to_owned();
        return Err(FilterError::UnknownSlice { name, there });
    }
    Ok(found)
}

fn by_thread(timeline: &Timeline, name: &str) -> Result<HashMap<(i32, i64), Times>, FilterError> {
    let mut ranges: HashMap<(i32, i64), Vec<Range<u64>>> = HashMap::new();
    for (track, range) in slices(timeline, name)? {
        let of = timeline.tracks.get(&track).map(|track| &track.of);
        if let Some(&TrackOf::Thread { pid, tid }) = of {
            ranges.entry((pid, tid)).or_default().push(range);
        }
    }
    let times = |(thread, ranges)| (thread, Times::new(ranges));
    Ok(ranges.into_iter().map(times).collect())
}

fn at_all(timeline: &Timeline, name: &str) -> Result<Times, FilterError> {
    let ranges = slices(timeline, name)?.into_iter().map(|(_, range)| range);
    Ok(Times::new(ranges.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_merged_and_end_before_their_end() {
        let times = Times::new(vec![50..60, 10..30, 20..25, 30..35]);
        assert_eq!(times, Times(vec![10..35, 50..60]));
        for (time, is_in) in [
            (9, false),
            (10, true),
            (34, true),
            (35, false),
            (59, true),
            (60, false),
        ] {
            assert_eq!(times.contain(time), is_in, "{time}");
        }
        assert!(!Times::default().contain(0));
    }
}
