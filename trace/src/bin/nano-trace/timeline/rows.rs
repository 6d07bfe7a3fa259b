//! Which tracks are drawn, and which slices of them.

use nano_trace::{
    Event,
    timeline::{Hop, Through, Timeline, Track, TrackOf},
};
use std::collections::BTreeSet;

/// One track.
pub(super) struct Row<'a> {
    pub(super) process: &'a Track,
    pub(super) label: String,
    pub(super) slices: Vec<usize>,
    /// Moments at which something was called too slow, by their places in
    /// [`Timeline::instants`].
    pub(super) alarms: Vec<usize>,
    /// How many slices lie within each other.
    pub(super) depth: usize,
}

/// The hops of the flow that begins with this request.
pub(super) fn hops(timeline: &Timeline, request: usize) -> &[Hop] {
    timeline
        .flows
        .values()
        .find(|hops| {
            hops.iter()
                .any(|hop| hop.through == Through::Begin(request))
        })
        .map_or(&[], Vec::as_slice)
}

/// From the request's first byte until its first token is on its way out: what
/// the frontend does with it before it hears of the next one.
pub(super) fn window(timeline: &Timeline, request: usize) -> (u64, u64) {
    let whole = &timeline.slices[request];
    let end = whole.end.unwrap_or(whole.begin);
    let Some((_, streaming)) = timeline
        .slices_of(Event::Streaming)
        .find(|(_, slice)| slice.parent == Some(request))
    else {
        return (whole.begin, end);
    };
    let next = timeline
        .slices_of(Event::EngineReceive)
        .map(|(_, slice)| slice.begin)
        .find(|begin| *begin > streaming.begin)
        .unwrap_or(end);
    let first_token = timeline
        .slices_of(Event::Detokenize)
        .chain(timeline.slices_of(Event::SseWrite))
        .filter(|(_, slice)| (streaming.begin..next).contains(&slice.begin))
        .filter_map(|(_, slice)| slice.end)
        .max()
        .unwrap_or(streaming.begin);
    // A little more, so that what begins at the end is seen.
    let more = (first_token - whole.begin) / 50;
    (
        whole.begin,
        (first_token + more).clamp(whole.begin + 1, end),
    )
}

/// Rows of everything that happened in the window in the processes that the
/// request went through: its own tracks first, then threads.
pub(super) fn rows<'a>(
    timeline: &'a Timeline,
    request: usize,
    (from, to): (u64, u64),
) -> Vec<Row<'a>> {
    let hops = hops(timeline, request);
    let mut tracks = BTreeSet::from([timeline.slices[request].track]);
    tracks.extend(hops.iter().map(|hop| track(timeline, hop)));
    let mut processes: Vec<&Track> = Vec::new();
    let on_the_way = std::iter::once(timeline.slices[request].track);
    for track in on_the_way.chain(hops.iter().map(|hop| track(timeline, hop))) {
        if let Some(process) = timeline.process(track)
            && !processes.iter().any(|known| known.uuid == process.uuid)
        {
            processes.push(process);
        }
    }
    let mut rows = Vec::new();
    for process in processes {
        let of_process =
            |track: &&Track| timeline.process(track.uuid).map(|p| p.uuid) == Some(process.uuid);
        let mut drawn = timeline
            .tracks
            .values()
            .filter(of_process)
            .filter(|track| match track.of {
                TrackOf::Thread { .. } => true,
                TrackOf::Events => tracks.contains(&track.uuid),
                _ => false,
            })
            .collect::<Vec<_>>();
        drawn.sort_by_key(|track| (track.of != TrackOf::Events, track.at));
        rows.extend(drawn.into_iter().filter_map(|track| {
            let slices = slices(timeline, track.uuid, from, to);
            let depths = slices.iter().map(|place| timeline.slices[*place].depth + 1);
            Some(Row {
                process,
                label: track.name.clone(),
                depth: depths.max()?,
                slices,
                alarms: alarms(timeline, track.uuid, from, to),
            })
        }));
    }
    rows
}

/// Rows of all processes, in the order of a request's way: tracks of requests
/// first, then threads.
pub(super) fn all(timeline: &Timeline, (from, to): (u64, u64)) -> Vec<Row<'_>> {
    const WAY: [&str; 3] = ["frontend", "core", "worker"];
    let place = |process: &Track| WAY.iter().position(|role| process.name.contains(role));
    let is_drawn = |of: &TrackOf| matches!(of, TrackOf::Thread { .. } | TrackOf::Events);
    let tracks = timeline.tracks.values();
    let mut rows: Vec<(&Track, Row<'_>)> = tracks
        .filter(|track| is_drawn(&track.of))
        .filter_map(|track| {
            let process = timeline.process(track.uuid)?;
            let mut slices = slices(timeline, track.uuid, from, to);
            // The whole width, without anything to tell.
            slices.retain(|place| timeline.slices[*place].event != Some(Event::TraceRecording));
            let depths = slices.iter().map(|place| timeline.slices[*place].depth + 1);
            let row = Row {
                process,
                label: track.name.clone(),
                depth: depths.max()?,
                slices,
                alarms: alarms(timeline, track.uuid, from, to),
            };
            Some((track, row))
        })
        .collect();
    rows.sort_by_key(|(track, row)| {
        let is_thread = track.of != TrackOf::Events;
        (place(row.process), row.process.uuid, is_thread, track.at)
    });
    rows.into_iter().map(|(_, row)| row).collect()
}

/// From when to when something happened.
pub(super) fn recorded(timeline: &Timeline) -> (u64, u64) {
    let slices = timeline.slices.iter();
    let slices = slices.filter(|slice| slice.event != Some(Event::TraceRecording));
    let begins = slices.clone().map(|slice| slice.begin);
    let ends = slices.filter_map(|slice| slice.end);
    let (from, to) = (begins.min().unwrap_or(0), ends.max().unwrap_or(0));
    (from, to.max(from + 1))
}

/// It goes through something of a request's own.
pub(super) fn is_of_a_request(timeline: &Timeline, hop: &Hop) -> bool {
    let track = timeline.tracks.get(&track(timeline, hop));
    track.is_some_and(|track| track.of == TrackOf::Events)
}

/// Slices of a track that are open at some moment of the window.
pub(super) fn slices(timeline: &Timeline, track: u64, from: u64, to: u64) -> Vec<usize> {
    let all = timeline.slices.iter().enumerate();
    all.filter(|(_, slice)| slice.track == track)
        .filter(|(_, slice)| slice.begin < to && slice.end.is_none_or(|end| end > from))
        .map(|(place, _)| place)
        .collect()
}

/// The flight recorder's instants on a track, in the window.
fn alarms(timeline: &Timeline, track: u64, from: u64, to: u64) -> Vec<usize> {
    const ALARMS: [Event; 3] = [Event::SlowRequest, Event::SlowQueue, Event::SlowStep];
    let all = timeline.instants.iter().enumerate();
    all.filter(|(_, instant)| instant.track == track)
        .filter(|(_, instant)| (from..=to).contains(&instant.time))
        .filter(|(_, instant)| instant.event.is_some_and(|event| ALARMS.contains(&event)))
        .map(|(place, _)| place)
        .collect()
}

/// The track of what a flow goes through.
pub(super) fn track(timeline: &Timeline, hop: &Hop) -> u64 {
    match hop.through {
        Through::Begin(place) | Through::End(place) => timeline.slices[place].track,
        Through::Instant(place) => timeline.instants[place].track,
    }
}
