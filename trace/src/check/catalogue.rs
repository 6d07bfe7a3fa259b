//! What the catalogue says about names, arguments, tracks and nesting.

use super::intervals::Intervals;
use super::rule::{Rule, Violations};
use crate::{
    ArgKind, Event, TrackKind,
    timeline::{Arg, ArgValue, Position, Timeline, TimelineSlice, TrackOf},
};
use std::{collections::HashMap, sync::LazyLock};

/// Name of every request's track.
const REQUEST_TRACK: &str = "request";

/// Texts that a request's track carries beside the arguments of its events.
const REQUEST_TEXTS: &[&str] = &["request_id", "x_request_id", "traceparent"];

/// What a slice says that goes on beyond its session.
const CLIPPED: &str = "clipped";

/// The slice or instant of the catalogue with this name and category.
pub(super) fn find(name: &str, category: &str) -> Option<Event> {
    static BY_NAME: LazyLock<HashMap<(&str, &str), Event>> = LazyLock::new(|| {
        let events = Event::ALL.iter().copied();
        events
            .filter(|event| event.track() != TrackKind::Counter)
            .map(|event| ((event.name(), event.category()), event))
            .collect()
    });
    BY_NAME.get(&(name, category)).copied()
}

/// Where on its track a slice lies.
enum Place {
    /// In no other.
    Outermost,
    /// Directly in one of this event.
    In(Event),
    /// Directly in one of this event, or in no other.
    InOrAlone(Event),
    /// Wherever it happens.
    Anywhere,
}

fn place(event: Event) -> Place {
    match event {
        Event::CoreStep
        | Event::WorkerStep
        | Event::Load
        | Event::Request
        | Event::TraceRecording
        | Event::ClientRequest => Place::Outermost,
        Event::Schedule | Event::Dispatch | Event::WaitWorkers | Event::Update => {
            Place::In(Event::CoreStep)
        }
        // An idle core takes messages in, too.
        Event::CoreReceive | Event::CoreSend => Place::InOrAlone(Event::CoreStep),
        Event::WorkerReceive
        | Event::PrepareInputs
        | Event::Forward
        | Event::Sample
        | Event::WorkerSend => Place::In(Event::WorkerStep),
        Event::Layer => Place::In(Event::Forward),
        Event::LoadOpen | Event::LoadWeights | Event::LoadKvCache => Place::In(Event::Load),
        Event::Preprocess | Event::Waiting | Event::Streaming => Place::In(Event::Request),
        Event::ClientConnect
        | Event::ClientSend
        | Event::ClientWait
        | Event::ClientStream
        | Event::ClientToken => Place::In(Event::ClientRequest),
        _ => Place::Anywhere,
    }
}

/// What is known of the edges of sessions.
struct Edges<'a> {
    intervals: &'a Intervals,
    begins: Begins,
}

pub(super) fn check(timeline: &Timeline, intervals: &Intervals, out: &mut Violations) {
    let begins = Begins::of(timeline);
    let edges = Edges { intervals, begins };
    for slice in &timeline.slices {
        let Some(event) = slice.event else {
            unknown(&slice.name, &slice.category, slice.at, out);
            continue;
        };
        check_args(event, &slice.args, slice.at, out);
        check_track(timeline, event, slice.track, slice.at, out);
        check_place(timeline, &edges, event, slice, out);
    }
    for instant in &timeline.instants {
        let Some(event) = instant.event else {
            unknown(&instant.name, &instant.category, instant.at, out);
            continue;
        };
        check_args(event, &instant.args, instant.at, out);
        check_track(timeline, event, instant.track, instant.at, out);
    }
    let counters = Event::ALL
        .iter()
        .filter(|event| event.track() == TrackKind::Counter);
    let names = counters.map(|event| event.name()).collect::<Vec<_>>();
    for track in timeline.tracks.values() {
        if track.of == TrackOf::Counter && !names.contains(&track.name.as_str()) {
            unknown(&track.name, "counter", track.at, out);
        }
    }
}

fn unknown(name: &str, category: &str, at: Position, out: &mut Violations) {
    out.add(Rule::EventKnown, at, || {
        format!("{name:?} ({category}) is not in the catalogue")
    });
}

fn check_place(
    timeline: &Timeline,
    edges: &Edges<'_>,
    event: Event,
    slice: &TimelineSlice,
    out: &mut Violations,
) {
    let parent = slice.parent.map(|parent| &timeline.slices[parent]);
    let (wanted, may_be_alone) = match place(event) {
        Place::Anywhere => return,
        Place::Outermost => (None, true),
        Place::In(whole) => (Some(whole), false),
        Place::InOrAlone(whole) => (Some(whole), true),
    };
    let fits = match parent {
        None if may_be_alone => true,
        // Where its session began, what was around it may have been under way.
        None => wanted.is_some_and(|wanted| {
            let (track, begin) = (slice.track, slice.begin);
            let interval = edges.intervals.around(timeline, track, begin);
            interval.is_some_and(|interval| {
                !edges
                    .begins
                    .any_between(track, wanted, interval.begin, begin)
            })
        }),
        Some(parent) => parent.event.is_some() && parent.event == wanted,
    };
    if !fits {
        out.add(Rule::Nesting, slice.at, || {
            let found = parent.map_or("nothing", |parent| &parent.name);
            let wanted = wanted.map_or("nothing", Event::name);
            format!("{} lies in {found}, not in {wanted}", event.name())
        });
    }
}

/// When slices of each event begin on each track, in order of time.
struct Begins(HashMap<(u64, Event), Vec<u64>>);

impl Begins {
    fn of(timeline: &Timeline) -> Begins {
        let mut begins: HashMap<_, Vec<u64>> = HashMap::new();
        for slice in &timeline.slices {
            if let Some(event) = slice.event {
                begins
                    .entry((slice.track, event))
                    .or_default()
                    .push(slice.begin);
            }
        }
        Begins(begins)
    }

    fn any_between(&self, track: u64, event: Event, from: u64, to: u64) -> bool {
        self.0.get(&(track, event)).is_some_and(|begins| {
            let first = begins.get(begins.partition_point(|begin| *begin < from));
            first.is_some_and(|begin| *begin <= to)
        })
    }
}

fn check_args(event: Event, args: &[Arg], at: Position, out: &mut Violations) {
    for (place, arg) in args.iter().enumerate() {
        let known = event.args().iter().find(|(name, _)| *name == &*arg.name);
        let is_text = event.track() == TrackKind::Request && REQUEST_TEXTS.contains(&&*arg.name)
            || &*arg.name == CLIPPED && arg.value == ArgValue::Bool(true);
        let is_repeated = args[..place].iter().any(|before| before.name == arg.name);
        let Some((_, kind)) = known.filter(|_| !is_repeated) else {
            if !is_text || is_repeated {
                out.add(Rule::ArgumentKnown, at, || {
                    let again = if is_repeated { " a second" } else { " no" };
                    format!("{} has{again} argument {:?}", event.name(), arg.name)
                });
            }
            continue;
        };
        let fits = match (kind, &arg.value) {
            (ArgKind::Int, ArgValue::Uint(_)) => true,
            (ArgKind::Label(labels), ArgValue::Text(text)) => labels.contains(&&**text),
            _ => false,
        };
        if !fits {
            out.add(Rule::ArgumentKind, at, || {
                format!(
                    "argument {} of {} is {:?}, not of kind {kind:?}",
                    arg.name,
                    event.name(),
                    arg.value
                )
            });
        }
    }
}

fn check_track(timeline: &Timeline, event: Event, track: u64, at: Position, out: &mut Violations) {
    // That a track is described at all is another rule.
    let Some(track) = timeline.tracks.get(&track) else {
        return;
    };
    let fits = match event.track() {
        TrackKind::Thread => matches!(track.of, TrackOf::Thread { .. }),
        TrackKind::Request => track.of == TrackOf::Events && track.name == REQUEST_TRACK,
        TrackKind::Counter => track.of == TrackOf::Counter,
    };
    if !fits {
        out.add(Rule::TrackKind, at, || {
            format!(
                "{} is on {:?} {:?}, not on a {:?} track",
                event.name(),
                track.of,
                track.name,
                event.track()
            )
        });
    }
}
