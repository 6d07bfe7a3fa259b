//! When each process's sessions recorded. What lies beside was left out on
//! purpose: at the edges slices lack what is around them, and flows their other ends.

use crate::Event;
use crate::timeline::Timeline;
use std::collections::HashMap;

/// By process, in order of time. Traces that do not say when they recorded are
/// taken for whole.
pub(super) struct Intervals(HashMap<u64, Vec<Interval>>);

/// Who recorded at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recorded {
    /// No process says when it did.
    Unknown,
    /// Not all that did at some time.
    NotByAll,
    /// All, and in this interval around it.
    ByAll(Interval),
}

/// From begin to end, both included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl Intervals {
    pub(super) fn of(timeline: &Timeline) -> Intervals {
        let mut intervals: HashMap<u64, Vec<Interval>> = HashMap::new();
        for (_, slice) in timeline.slices_of(Event::TraceRecording) {
            let (begin, end) = (slice.begin, slice.end.unwrap_or(u64::MAX));
            if let Some(process) = timeline.process(slice.track) {
                let of_process = intervals.entry(process.uuid).or_default();
                of_process.push(Interval { begin, end });
            }
        }
        Intervals(intervals)
    }

    /// The interval of a track's process that a moment lies in.
    pub(super) fn around(&self, timeline: &Timeline, track: u64, time: u64) -> Option<Interval> {
        let process = timeline.process(track)?;
        around(self.0.get(&process.uuid)?, time)
    }

    /// How long around a moment all processes recorded.
    pub(super) fn of_all(&self, time: u64) -> Recorded {
        let mut common = Interval {
            begin: 0,
            end: u64::MAX,
        };
        for intervals in self.0.values() {
            let Some(around) = around(intervals, time) else {
                return Recorded::NotByAll;
            };
            common.begin = common.begin.max(around.begin);
            common.end = common.end.min(around.end);
        }
        match self.0.is_empty() {
            true => Recorded::Unknown,
            false => Recorded::ByAll(common),
        }
    }

    /// Some process began to record in between.
    pub(super) fn any_begins_within(&self, from: u64, to: u64) -> bool {
        let mut intervals = self.0.values().flatten();
        intervals.any(|interval| from < interval.begin && interval.begin <= to)
    }
}

fn around(intervals: &[Interval], time: u64) -> Option<Interval> {
    let after = intervals.partition_point(|interval| interval.begin <= time);
    let last = intervals.get(after.checked_sub(1)?)?;
    (time <= last.end).then_some(*last)
}
