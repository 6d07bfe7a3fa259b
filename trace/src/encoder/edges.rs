//! Where a session begins and ends, within a process that goes on.

use super::{Arg, EMPTY, Encoder, EventPacket, Track, arg};
use crate::event::TRACE_END_REASONS;
use crate::interning;
use crate::proto::track_event::Type;
use crate::request_tracks::RequestTracks;
use crate::sampler::Missed;
use crate::{Event, RequestTrack};

/// Why a file tells of nothing more; the number is the place among
/// [`TRACE_END_REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Finished,
    ByteCap,
    ProcessDied,
    WriteFailed,
    Duration,
}

const _: () = assert!(EndReason::Duration as usize + 1 == TRACE_END_REASONS.len());

impl EndReason {
    /// What is open in such a file ended beyond it.
    pub(crate) const CUT_SHORT: [EndReason; 2] = [EndReason::ByteCap, EndReason::WriteFailed];

    pub(crate) fn label(self) -> &'static str {
        TRACE_END_REASONS[self as usize]
    }
}

impl Encoder {
    /// The session is on from now on: shows the requests that are under way,
    /// and what counters stand at. `false`: there was not room enough.
    pub(crate) fn switch_on(
        &mut self,
        ns: u64,
        requests: &RequestTracks,
        counters: &[(Event, u64)],
    ) -> bool {
        let own = self.own();
        self.progress.last_ns = self.progress.last_ns.max(ns);
        self.own_event(Type::SliceBegin, Event::TraceRecording, ns);
        self.progress.is_on = true;
        for &(event, value) in counters {
            self.own_counter(event, value, ns);
        }
        for (uuid, request) in requests.open() {
            if self.of.marked_only && !RequestTrack::is_marked(request.trace_key) {
                continue;
            }
            if self.is_full() {
                return false;
            }
            self.describe_request(own, uuid);
            let open = request.open.len();
            self.tracks.insert(
                uuid,
                Track {
                    open,
                    clipped: open,
                },
            );
            let mut texts = self.tell_texts(own, requests, uuid, true);
            self.tell_clipped(own);
            for slice in &request.open {
                self.tell_event(own, slice.event);
                let iids = interning::event(slice.event);
                let rows = slice.args().iter().zip(&iids.args);
                let args: Vec<Arg> = rows.map(|(&value, row)| arg(row, value)).collect();
                EventPacket {
                    timestamp: ns,
                    sequence_id: self.id(own),
                    kind: Type::SliceBegin,
                    name: Some((iids.category, iids.name)),
                    args: &args,
                    texts: &std::mem::take(&mut texts),
                    track: Some(uuid),
                    clipped: true,
                    ..EMPTY
                }
                .append(&mut self.out);
            }
        }
        !self.is_full()
    }

    /// The session is off from `ns` on: ends what is open, innermost first.
    /// `false`: there was not room enough.
    pub(crate) fn switch_off(&mut self, ns: u64) -> bool {
        let ns = self.progress.last_ns.max(ns.saturating_sub(1));
        self.progress.last_ns = ns;
        let own = self.own();
        // Of a file that is gone on with: threads that recorded nothing since.
        self.open_before.clear();
        for ring in 0..own {
            let open = self.sequences[ring]
                .as_mut()
                .map(|s| std::mem::take(&mut s.open));
            for _ in 0..open.unwrap_or(0) {
                self.bare_end(ring, None, ns, true);
            }
        }
        let tracks = self.tracks.iter_mut().filter(|(_, track)| track.open > 0);
        let open: Vec<(u64, Track)> = tracks
            .map(|(&uuid, track)| (uuid, std::mem::take(track)))
            .collect();
        for (uuid, track) in open {
            if self.is_full() {
                return false;
            }
            for place in (0..track.open).rev() {
                // A slice that is clipped on both sides says so once.
                self.bare_end(own, Some(uuid), ns, place >= track.clipped);
            }
        }
        self.tell_off(ns);
        !self.is_full()
    }

    /// Tells how many records were lost so far.
    pub(crate) fn tell_dropped(&mut self, dropped: u64, ns: u64) {
        self.own_counter(Event::DroppedRecords, dropped, ns);
    }

    fn tell_off(&mut self, ns: u64) {
        if std::mem::replace(&mut self.progress.is_on, false) {
            self.own_event(Type::SliceEnd, Event::TraceRecording, ns);
        }
    }

    /// Says that the file tells of nothing after `ns`, and why, and how many
    /// records, samples and threads it lacks.
    pub(crate) fn tell_end(
        &mut self,
        reason: EndReason,
        (dropped, missed): (u64, Missed),
        ns: u64,
    ) {
        self.tell_off(ns);
        let event = Event::TraceEnd;
        // Whether it was told or not: it may be lost with a write that failed.
        self.tell(self.own(), interning::interned(event));
        let iids = interning::event(event);
        let values = [
            reason as u64,
            self.progress.events,
            dropped,
            missed.samples,
            missed.threads,
        ];
        let rows = iids.args.iter().zip(values);
        let args: Vec<Arg> = rows.map(|(row, value)| arg(row, value)).collect();
        EventPacket {
            timestamp: ns,
            sequence_id: self.id(self.own()),
            name: Some((iids.category, iids.name)),
            args: &args,
            ..EMPTY
        }
        .append(&mut self.out);
    }

    /// Begin or end of a slice of the drainer's own, without arguments.
    fn own_event(&mut self, kind: Type, event: Event, ns: u64) {
        let own = self.own();
        self.tell_event(own, event);
        let iids = interning::event(event);
        EventPacket {
            timestamp: ns,
            sequence_id: self.id(own),
            kind,
            name: (kind == Type::SliceBegin).then_some((iids.category, iids.name)),
            ..EMPTY
        }
        .append(&mut self.out);
    }

    fn own_counter(&mut self, event: Event, value: u64, ns: u64) {
        let own = self.own();
        let track = self.counter_track(own, event);
        EventPacket {
            timestamp: ns,
            sequence_id: self.id(own),
            kind: Type::Counter,
            track: Some(track),
            counter: Some(value),
            ..EMPTY
        }
        .append(&mut self.out);
    }
}
