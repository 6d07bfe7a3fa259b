//! The second pass, in order of time: begins and ends become slices.

use super::{
    catalogue,
    rule::{Rule, Violations},
    scan::{Event, Kind},
};
use crate::encoder::EndReason;
use crate::timeline::{
    ArgValue, CounterValue, Hop, Moment, Name, Through, Timeline, TimelineSlice, Track, TrackOf,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Slices that readers keep open on one track.
const MAX_DEPTH: usize = 512;

/// Sorts the events and joins begins with ends. `may_stay_open` says of which
/// processes' tracks a slice may lack its end.
pub(super) fn timeline(
    mut events: Vec<Event>,
    tracks: BTreeMap<u64, Track>,
    may_stay_open: impl Fn(Option<&Track>) -> bool,
    out: &mut Violations,
) -> Timeline {
    // Stable: at equal times file order decides.
    events.sort_by_key(|event| event.time);
    let mut timeline = Timeline {
        tracks,
        ..Default::default()
    };
    let mut open: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut undescribed = HashSet::new();
    for mut event in events {
        match timeline.tracks.get(&event.track) {
            None if undescribed.insert(event.track) => {
                out.add(Rule::TrackDescribed, event.at, || {
                    format!("nothing describes track {:#x} of this event", event.track)
                })
            }
            Some(track)
                if track.of == TrackOf::Counter && !matches!(event.kind, Kind::Counter(_)) =>
            {
                out.add(Rule::CounterTrack, event.at, || {
                    format!("a slice or an instant is on counter {:?}", track.name)
                });
            }
            _ => {}
        }
        let stack = open.entry(event.track).or_default();
        let (time, at, flows) = (event.time, event.at, std::mem::take(&mut event.flows));
        let through = match event.kind {
            Kind::Begin => begin(&mut timeline, stack, event, out),
            Kind::End => match end(&mut timeline, stack, event, out) {
                Some(through) => through,
                None => continue,
            },
            Kind::Instant => instant(&mut timeline, stack, event),
            Kind::Counter(value) => {
                let track = event.track;
                timeline.counters.push(CounterValue {
                    track,
                    time,
                    value,
                    at,
                });
                continue;
            }
        };
        for flow in flows {
            let hops = timeline.flows.entry(flow).or_default();
            hops.push(Hop { time, through, at });
        }
    }
    let cut_short = cut_short(&timeline);
    let mut left_open = open.into_values().flatten().collect::<Vec<_>>();
    left_open.sort_unstable();
    for slice in left_open {
        let slice = &timeline.slices[slice];
        let process = timeline.process(slice.track);
        let is_cut_short = process.is_some_and(|process| cut_short.contains(&process.uuid));
        if !is_cut_short && !may_stay_open(process) {
            out.add(Rule::SliceOpen, slice.at, || {
                format!("{:?} has no end", slice.name)
            });
        }
    }
    timeline
}

/// Processes whose files say that they end before their processes did: what was
/// open then has no end that could be known.
fn cut_short(timeline: &Timeline) -> HashSet<u64> {
    let labels = EndReason::CUT_SHORT.map(EndReason::label);
    let last_words = timeline.instants.iter().filter(|instant| {
        let reason = instant.arg("reason").and_then(ArgValue::text);
        instant.event == Some(crate::Event::TraceEnd)
            && reason.is_some_and(|reason| labels.contains(&reason))
    });
    last_words
        .filter_map(|instant| Some(timeline.process(instant.track)?.uuid))
        .collect()
}

fn begin(
    timeline: &mut Timeline,
    stack: &mut Vec<usize>,
    event: Event,
    out: &mut Violations,
) -> Through {
    let (name, category) = (or_empty(event.name), or_empty(event.category));
    let index = timeline.slices.len();
    timeline.slices.push(TimelineSlice {
        event: catalogue::find(&name, &category),
        name,
        category,
        track: event.track,
        begin: event.time,
        end: None,
        args: event.args,
        parent: stack.last().copied(),
        depth: stack.len(),
        at: event.at,
    });
    stack.push(index);
    if stack.len() == MAX_DEPTH + 1 {
        out.add(Rule::Depth, event.at, || {
            format!("more than {MAX_DEPTH} slices are open on this track")
        });
    }
    Through::Begin(index)
}

fn end(
    timeline: &mut Timeline,
    stack: &mut Vec<usize>,
    event: Event,
    out: &mut Violations,
) -> Option<Through> {
    let Some(index) = stack.pop() else {
        out.add(Rule::EndWithoutBegin, event.at, || {
            let name = event.name.as_deref().unwrap_or("a slice");
            format!("an end of {name} finds no open slice")
        });
        return None;
    };
    let slice = &mut timeline.slices[index];
    slice.end = Some(event.time);
    slice.args.extend(event.args);
    // An end without a name ends whatever is innermost.
    if let Some(name) = event.name.filter(|name| *name != slice.name) {
        let slice = &timeline.slices[index];
        let hidden = slice.begin == event.time
            && stack
                .iter()
                .any(|outer| timeline.slices[*outer].name == name);
        let inner = &slice.name;
        match hidden {
            true => out.add(Rule::EqualStamps, event.at, || {
                format!(
                    "the end of {name} is written after the begin of {inner} at the same moment"
                )
            }),
            false => out.add(Rule::SliceOverlap, event.at, || {
                format!("the end of {name} ends {inner}, the innermost slice")
            }),
        }
    }
    Some(Through::End(index))
}

fn instant(timeline: &mut Timeline, stack: &[usize], event: Event) -> Through {
    let (name, category) = (or_empty(event.name), or_empty(event.category));
    let index = timeline.instants.len();
    timeline.instants.push(Moment {
        event: catalogue::find(&name, &category),
        name,
        category,
        track: event.track,
        time: event.time,
        args: event.args,
        parent: stack.last().copied(),
        at: event.at,
    });
    Through::Instant(index)
}

fn or_empty(text: Option<Name>) -> Name {
    text.unwrap_or_else(|| Name::from(""))
}
