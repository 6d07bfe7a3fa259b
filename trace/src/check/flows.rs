//! Arrows between processes.
//!
//! Readers draw a flow through its events in order of time, whatever that is.
//! Which order is right follows from what the events mean: a request is
//! submitted before the core plans it, planned before a worker computes it,
//! computed before its answer is written.

use super::intervals::{Intervals, Recorded};
use super::rule::{Rule, Violations};
use crate::{
    Event, Flow,
    timeline::{Hop, Through, Timeline, TrackOf},
};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The layers of a request's way, each an event's category.
const LAYERS: [&str; 3] = ["frontend", "core", "worker"];

/// Where on its way a flow is; later stages come later in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// A client sends the request.
    Send,
    /// The frontend makes the request and submits it.
    Submit,
    /// The core takes it in.
    Admit,
    /// The core plans a step.
    Plan,
    /// A worker computes it.
    Work,
    /// The core takes the result.
    Result,
    /// The frontend answers.
    Answer,
    /// The client has a token.
    Read,
}

/// The stage of what a flow goes through. Slices that span several stages
/// count as the one they begin, or end, in.
fn stage(timeline: &Timeline, hop: &Hop) -> Option<Stage> {
    let ends = matches!(hop.through, Through::End(_));
    Some(match timeline.hop(hop).0? {
        Event::ClientSend => Stage::Send,
        Event::ClientToken => Stage::Read,
        Event::Request | Event::Waiting if ends => Stage::Answer,
        Event::HttpParse
        | Event::ChatTemplate
        | Event::Tokenize
        | Event::EngineSubmit
        | Event::Request
        | Event::Preprocess
        | Event::Waiting => Stage::Submit,
        Event::Queued if ends => Stage::Plan,
        Event::CoreReceive | Event::Queued => Stage::Admit,
        Event::Prefill if ends => Stage::Result,
        Event::CoreStep | Event::Schedule | Event::Dispatch | Event::Prefill => Stage::Plan,
        Event::WorkerStep
        | Event::WorkerReceive
        | Event::PrepareInputs
        | Event::Forward
        | Event::Sample
        | Event::WorkerSend => Stage::Work,
        Event::WaitWorkers | Event::Update | Event::CoreSend | Event::Decode => Stage::Result,
        Event::EngineReceive
        | Event::Detokenize
        | Event::SseWrite
        | Event::Streaming
        | Event::Finish => Stage::Answer,
        _ => return None,
    })
}

pub(super) fn check(timeline: &Timeline, intervals: &Intervals, out: &mut Violations) {
    let spans = spans(timeline);
    let clipped = Clipped::of(timeline);
    let of_clients = of_clients(timeline);
    for (id, hops) in &timeline.flows {
        check_order(timeline, *id, hops, out);
        if of_clients.contains(id) {
            continue;
        }
        if !LAYERS.iter().all(|layer| spans.contains_key(layer)) || has_failed(timeline, hops) {
            continue;
        }
        match hops.as_slice() {
            [lone] => {
                if !is_cut(timeline, intervals, &clipped, lone) {
                    check_lone(timeline, &spans, *id, lone, out);
                }
            }
            hops if is_between_step_and_rank(timeline, hops) => {
                check_pair(timeline, *id, hops, out);
            }
            [first, .., last] if intervals.any_begins_within(first.time, last.time) => {}
            hops => check_way(timeline, &spans, *id, hops, out),
        }
    }
}

/// Flows that begin at clients. Who sends a `traceparent` need not record
/// anything, and its flow goes no deeper than to the frontend.
fn of_clients(timeline: &Timeline) -> HashSet<u64> {
    let requests = timeline
        .slices
        .iter()
        .filter(|slice| matches!(slice.event, Some(Event::Request | Event::ClientRequest)));
    requests
        .flat_map(|slice| &slice.args)
        .filter(|arg| &*arg.name == "traceparent")
        // The run does not count.
        .filter_map(|arg| Some(Flow::of_traceparent(arg.value.text()?)?.id(0)))
        .collect()
}

/// First and last moment of each layer.
type Spans<'a> = BTreeMap<&'a str, (u64, u64)>;

/// When each layer was recording: from its first slice on until its process
/// says that the trace ends, or else until its last slice. A process that is
/// named after a layer and shows nothing of it recorded from the beginning.
fn spans(timeline: &Timeline) -> Spans<'_> {
    let mut spans = Spans::new();
    let mut layers = BTreeSet::new();
    let process = |track| timeline.process(track).map_or(0, |process| process.uuid);
    for slice in &timeline.slices {
        let (begin, end) = (slice.begin, slice.end.unwrap_or(slice.begin));
        let span = spans.entry(&*slice.category).or_insert((begin, end));
        *span = (span.0.min(begin), span.1.max(end));
        layers.insert((process(slice.track), &*slice.category));
    }
    for layer in LAYERS {
        let silent = timeline.tracks.values().find(|track| {
            matches!(track.of, TrackOf::Process { .. }) && track.name.contains(layer)
        });
        if let Some(silent) = silent
            && !spans.contains_key(layer)
        {
            spans.insert(layer, (0, 0));
            layers.insert((silent.uuid, layer));
        }
    }
    for instant in &timeline.instants {
        if instant.event != Some(Event::TraceEnd) {
            continue;
        }
        let ended = process(instant.track);
        for (_, layer) in layers.iter().filter(|(process, _)| *process == ended) {
            if let Some(span) = spans.get_mut(layer) {
                span.1 = span.1.max(instant.time);
            }
        }
    }
    spans
}

/// Each stage is first reached after the stage before it.
fn check_order(timeline: &Timeline, id: u64, hops: &[Hop], out: &mut Violations) {
    let mut first: BTreeMap<Stage, &Hop> = BTreeMap::new();
    for hop in hops {
        if let Some(stage) = stage(timeline, hop) {
            first.entry(stage).or_insert(hop);
        }
    }
    let stages = first.into_iter().collect::<Vec<_>>();
    for pair in stages.windows(2) {
        let [(earlier, before), (later, after)] = pair else {
            continue;
        };
        if after.time < before.time {
            out.add(Rule::FlowBackwards, after.at, || {
                let early = before.time - after.time;
                format!("flow {id:#x} reaches {later:?} {early} ns before {earlier:?}")
            });
        }
    }
}

/// A flow that ended early because its request did.
fn has_failed(timeline: &Timeline, hops: &[Hop]) -> bool {
    let mut reasons = hops.iter().filter_map(|hop| {
        let args = timeline.hop(hop).2;
        args.iter().find(|arg| &*arg.name == "finish_reason")
    });
    reasons.any(|reason| !matches!(reason.value.text(), Some("stop" | "length")))
}

/// Whether requests went on beyond the sessions.
struct Clipped {
    at_begin: bool,
    at_end: bool,
}

impl Clipped {
    fn of(timeline: &Timeline) -> Clipped {
        let slices = timeline.slices.iter();
        let clipped = slices.filter(|slice| slice.arg("clipped").is_some());
        let starts: BTreeSet<u64> = timeline
            .slices_of(Event::TraceRecording)
            .map(|(_, recording)| recording.begin)
            .collect();
        let (at_begin, at_end) =
            clipped.partition::<Vec<_>, _>(|slice| starts.contains(&slice.begin));
        Clipped {
            at_begin: !at_begin.is_empty(),
            // One that is clipped on both sides says so once.
            at_end: !at_end.is_empty() || !at_begin.is_empty(),
        }
    }
}

/// Steps that the core has in flight: of so many the other end of a flow may
/// lie beyond the edge of a recording.
const STEPS_IN_FLIGHT: usize = 2;

/// The flow's other end may lie outside of its session.
fn is_cut(timeline: &Timeline, intervals: &Intervals, clipped: &Clipped, hop: &Hop) -> bool {
    let (event, track) = match hop.through {
        Through::Begin(i) | Through::End(i) => (timeline.slices[i].event, timeline.slices[i].track),
        Through::Instant(i) => (timeline.instants[i].event, timeline.instants[i].track),
    };
    let interval = match intervals.of_all(hop.time) {
        Recorded::Unknown => return false,
        Recorded::NotByAll => return true,
        Recorded::ByAll(interval) => interval,
    };
    let alike_within = |from: u64, to: u64| {
        let slices = timeline.slices.iter();
        slices
            .filter(|slice| slice.event == event && slice.track == track)
            .filter(|slice| from < slice.begin && slice.begin < to)
            .count()
    };
    match event {
        Some(Event::WorkerStep | Event::Update) => {
            alike_within(interval.begin, hop.time) < STEPS_IN_FLIGHT
        }
        Some(Event::Dispatch | Event::WorkerSend) => {
            alike_within(hop.time, interval.end) < STEPS_IN_FLIGHT
        }
        _ => match stage(timeline, hop) {
            Some(Stage::Submit) => clipped.at_end,
            Some(Stage::Answer) => clipped.at_begin,
            _ => clipped.at_begin || clipped.at_end,
        },
    }
}

/// At the edges of a recording a flow's other end may lie outside, and the
/// engine may end between a step's dispatch, its run and its result: for each
/// of the two steps that the core has in flight.
fn check_lone(timeline: &Timeline, spans: &Spans<'_>, id: u64, hop: &Hop, out: &mut Violations) {
    let all_record = spans
        .values()
        .all(|(from, to)| *from < hop.time && hop.time < *to);
    let event = timeline.hop(hop).0;
    let cut_by_the_end = matches!(event, Some(Event::Dispatch | Event::WorkerSend))
        && timeline
            .slices
            .iter()
            .filter(|slice| slice.event == event && slice.begin > hop.time)
            .count()
            < STEPS_IN_FLIGHT;
    if all_record && !cut_by_the_end {
        out.add(Rule::FlowLone, hop.at, || {
            let (event, category, _) = timeline.hop(hop);
            let name = event.map_or("an event", Event::name);
            format!("flow {id:#x} has one end only, in {name} ({category})")
        });
    }
}

/// A flow that no request's event is part of.
fn is_between_step_and_rank(timeline: &Timeline, hops: &[Hop]) -> bool {
    hops.iter().all(|hop| {
        matches!(
            timeline.hop(hop).0,
            Some(
                Event::Dispatch
                    | Event::WaitWorkers
                    | Event::Update
                    | Event::WorkerStep
                    | Event::WorkerReceive
                    | Event::WorkerSend
            )
        )
    })
}

fn check_pair(timeline: &Timeline, id: u64, hops: &[Hop], out: &mut Violations) {
    let count = |layer: &str| {
        let of_layer = |hop: &&Hop| &**timeline.hop(hop).1 == layer;
        hops.iter().filter(of_layer).count()
    };
    let (core, worker) = (count("core"), count("worker"));
    if (core, worker) != (1, 1) {
        out.add(Rule::FlowPair, hops[0].at, || {
            format!(
                "flow {id:#x} has {core} ends in the core and {worker} in workers, not one in each"
            )
        });
    }
}

/// A request that was submitted and answered came through every layer.
fn check_way(timeline: &Timeline, spans: &Spans<'_>, id: u64, hops: &[Hop], out: &mut Violations) {
    let reached = |wanted: Stage| hops.iter().any(|hop| stage(timeline, hop) == Some(wanted));
    let ([first, ..], [.., last]) = (hops, hops) else {
        return;
    };
    if !reached(Stage::Submit) || !reached(Stage::Answer) {
        return;
    }
    let missing = LAYERS
        .iter()
        .filter(|layer| !hops.iter().any(|hop| &**timeline.hop(hop).1 == **layer))
        .filter(|layer| {
            let recorded_then = |(from, to): &(u64, u64)| *from < last.time && first.time < *to;
            spans.get(**layer).is_some_and(recorded_then)
        })
        .copied()
        .collect::<Vec<_>>();
    if !missing.is_empty() {
        out.add(Rule::RequestWay, first.at, || {
            let missing = missing.join(" and ");
            format!("flow {id:#x} was answered without going through {missing}")
        });
    }
}
