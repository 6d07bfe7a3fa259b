//! From records to the packets of one session's file.
//!
//! Invariants of what is written, whatever the rings held:
//! - every ring claim is a packet sequence of its own, which opens with
//!   CLEARED, its defaults and a clock snapshot, and tells a text before it
//!   names it;
//! - a counter is described before its first value;
//! - on a request's track, which many threads write to, every END has its
//!   BEGIN: one whose BEGIN was dropped is left out, and one that skips inner
//!   slices ends those too, for their ENDs were dropped.

use crate::clock::clock_ns;
use crate::entry::{Entry, Kind};
use crate::event::TRACE_END_REASONS;
use crate::identity::Identity;
use crate::interning::{self, ArgIids, TextKeys};
use crate::packet::{Arg, ArgValue, EventPacket, PacketBuffer};
use crate::proto::track_event::Type;
use crate::proto::{self, SequenceFlags, Trace, TracePacket, trace_packet::Data};
use crate::request_tracks::RequestTracks;
use crate::{Event, descriptor};
use nix::time::ClockId;
use prost::Message;

/// A thread that records, as its ring tells.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    pub(crate) name: String,
    /// Which claim of a ring; the order of threads in the viewer.
    pub(crate) claim: u64,
}

impl Thread {
    /// The drainer's, after all that record.
    pub(crate) fn writer(tid: u32) -> Thread {
        Thread {
            tid,
            name: "trace-writer".to_owned(),
            claim: u64::MAX,
        }
    }
}

/// See the module.
pub(crate) struct Encoder {
    identity: Identity,
    /// Salts sequence ids, so that a salvager's differ from the process's own.
    writer: &'static str,
    /// By ring; the last is the drainer's own.
    sequences: Vec<Option<Sequence>>,
    requests: RequestTracks,
    /// A bit for each event whose counter was described.
    counters: u128,
    keys: TextKeys,
    flow_ids: Vec<u64>,
    /// Packets that are not in the file yet.
    pub(crate) out: PacketBuffer,
    /// Records encoded.
    pub(crate) events: u64,
    /// The newest time encoded.
    pub(crate) last_ns: u64,
    dropped: u64,
}

struct Sequence {
    id: u32,
    /// A bit for each event whose texts were told.
    events: u128,
    /// A bit for each text key that was told.
    keys: u64,
}

const _: () = assert!(Event::ALL.len() <= 128, "events are bits of a u128");

impl Encoder {
    /// An encoder of so many rings. `requests` are slices that are open in the
    /// file already.
    pub(crate) fn new(
        identity: Identity,
        writer: &'static str,
        rings: usize,
        requests: RequestTracks,
    ) -> Encoder {
        Encoder {
            identity,
            writer,
            sequences: (0..=rings).map(|_| None).collect(),
            requests,
            counters: 0,
            keys: TextKeys::default(),
            flow_ids: Vec::new(),
            out: PacketBuffer::default(),
            events: 0,
            last_ns: 0,
            dropped: 0,
        }
    }

    /// Opens the drainer's own sequence, and says what the process is.
    pub(crate) fn open_process(&mut self, role: &str, thread: &Thread, facts: &[(String, String)]) {
        self.open_own(thread);
        let id = self.own_id();
        for data in [
            Data::TrackDescriptor(descriptor::root()),
            Data::TrackDescriptor(descriptor::process(&self.identity, role)),
            Data::TraceUuid(descriptor::trace_uuid(&self.identity)),
            Data::TraceAttributes(descriptor::attributes(facts)),
        ] {
            self.packet(id, data);
        }
    }

    /// Opens the drainer's own sequence.
    pub(crate) fn open_own(&mut self, thread: &Thread) {
        let own = self.sequences.len() - 1;
        self.open(own, thread);
    }

    /// Whether a ring's sequence has been opened.
    pub(crate) fn is_open(&self, ring: usize) -> bool {
        self.sequences[ring].is_some()
    }

    /// Opens a ring's sequence.
    pub(crate) fn open(&mut self, ring: usize, thread: &Thread) {
        let id = self.identity.sequence(self.writer, thread.claim);
        let track_uuid = Some(self.identity.thread(thread.tid));
        self.append(TracePacket {
            trusted_packet_sequence_id: Some(id),
            sequence_flags: Some(SequenceFlags::IncrementalStateCleared as u32),
            first_packet_on_sequence: Some(true),
            trace_packet_defaults: Some(proto::TracePacketDefaults {
                timestamp_clock_id: Some(proto::BuiltinClock::Boottime as u32),
                track_event_defaults: Some(proto::TrackEventDefaults { track_uuid }),
            }),
            data: Some(Data::ClockSnapshot(clock_snapshot())),
            ..TracePacket::default()
        });
        self.packet(
            id,
            Data::TrackDescriptor(descriptor::thread(&self.identity, thread)),
        );
        self.sequences[ring] = Some(Sequence {
            id,
            events: 0,
            keys: 0,
        });
    }

    /// The ring has another thread from now on.
    pub(crate) fn close(&mut self, ring: usize) {
        self.sequences[ring] = None;
    }

    /// Encodes a record of a ring whose sequence is open, at its CLOCK_BOOTTIME.
    pub(crate) fn encode(&mut self, ring: usize, entry: &Entry<'_>, ns: u64) {
        self.last_ns = self.last_ns.max(ns);
        let head = entry.head();
        if head.kind == Kind::Text {
            let (key, text) = entry.text();
            if let Some(place) = self.keys.place(&key) {
                let track = self.identity.request(entry.trace_key());
                self.requests.add_text(track, place, text);
            }
            return;
        }
        self.events += 1;
        let event = head.event;
        let iids = interning::event(event);
        self.flow_ids.clear();
        if head.flows > 0 {
            let run = self.identity.run;
            self.flow_ids.extend(entry.flows().map(|flow| flow.id(run)));
        }
        let mut packet = EventPacket {
            timestamp: ns,
            sequence_id: 0,
            kind: Type::Instant,
            name: Some((iids.category, iids.name)),
            args: &[],
            texts: &[],
            track: None,
            counter: None,
            flow_ids: &[],
        };
        let mut first_arg = usize::from(head.first_arg);
        let mut texts: Vec<(u64, String)> = Vec::new();
        match head.kind {
            Kind::Begin => packet.kind = Type::SliceBegin,
            Kind::End => packet.kind = Type::SliceEnd,
            Kind::Instant | Kind::Text => {}
            Kind::Counter => {
                packet.kind = Type::Counter;
                packet.name = None;
                packet.counter = entry.args().next();
                packet.track = Some(self.counter_track(ring, event));
            }
            Kind::RequestBegin | Kind::RequestEnd | Kind::RequestInstant => {
                let track = self.request_track(ring, entry.trace_key());
                packet.track = Some(track);
                match head.kind {
                    Kind::RequestBegin => {
                        if !self.requests.begin(track, event, head.args) {
                            self.dropped += 1;
                            return;
                        }
                        packet.kind = Type::SliceBegin;
                    }
                    Kind::RequestEnd => {
                        let Some(end) = self.requests.end(track, event) else {
                            self.dropped += 1;
                            return;
                        };
                        self.dropped += end.unended as u64;
                        for _ in 0..end.unended {
                            self.bare_end(ring, track, ns);
                        }
                        packet.kind = Type::SliceEnd;
                        first_arg = usize::from(end.args_given);
                    }
                    _ => {}
                }
                for (place, text) in self.requests.take_texts(track) {
                    texts.push((self.tell_key(ring, place), text));
                }
            }
        }
        if packet.kind == Type::SliceEnd {
            packet.name = None;
        }
        let mut args = [Arg {
            name: 0,
            value: ArgValue::Uint(0),
        }; Event::MAX_ARGS];
        let mut count = 0;
        if head.kind != Kind::Counter {
            if packet.name.is_some() || head.args > 0 {
                self.tell_event(ring, event);
            }
            for (value, row) in entry.args().zip(iids.args.iter().skip(first_arg)) {
                args[count] = arg(row, value);
                count += 1;
            }
        }
        let Some(sequence) = &self.sequences[ring] else {
            return;
        };
        EventPacket {
            sequence_id: sequence.id,
            args: &args[..count],
            texts: &texts,
            flow_ids: &self.flow_ids,
            ..packet
        }
        .append(&mut self.out);
    }

    /// Records that were lost so far, those included that the encoder left out.
    pub(crate) fn dropped(&self, in_rings: u64) -> u64 {
        in_rings + self.dropped
    }

    /// Tells how many records were lost so far.
    pub(crate) fn tell_dropped(&mut self, dropped: u64, ns: u64) {
        let own = self.sequences.len() - 1;
        let track = self.counter_track(own, Event::DroppedRecords);
        self.own_event(EventPacket {
            timestamp: ns,
            kind: Type::Counter,
            track: Some(track),
            counter: Some(dropped),
            ..EMPTY
        });
    }

    /// Says that the file tells of nothing after `ns`, and why.
    pub(crate) fn tell_end(&mut self, reason: EndReason, dropped: u64, ns: u64) {
        let event = Event::TraceEnd;
        // Whether it was told or not: it may be lost with a write that failed.
        self.tell(self.sequences.len() - 1, interning::interned(event));
        let iids = interning::event(event);
        let values = [reason as u64, self.events, dropped];
        let rows = iids.args.iter().zip(values);
        let args: Vec<Arg> = rows.map(|(row, value)| arg(row, value)).collect();
        self.own_event(EventPacket {
            timestamp: ns,
            name: Some((iids.category, iids.name)),
            args: &args,
            ..EMPTY
        });
    }

    fn own_event(&mut self, packet: EventPacket<'_>) {
        EventPacket {
            sequence_id: self.own_id(),
            ..packet
        }
        .append(&mut self.out);
    }

    fn own_id(&self) -> u32 {
        self.id(self.sequences.len() - 1)
    }

    /// A sequence's id; 0, which readers drop, if it is not open.
    fn id(&self, ring: usize) -> u32 {
        self.sequences[ring].as_ref().map_or(0, |s| s.id)
    }

    /// Ends the innermost slice of a track.
    fn bare_end(&mut self, ring: usize, track: u64, ns: u64) {
        EventPacket {
            timestamp: ns,
            sequence_id: self.id(ring),
            kind: Type::SliceEnd,
            track: Some(track),
            ..EMPTY
        }
        .append(&mut self.out);
    }

    /// The uuid of a request's track, which is described once.
    fn request_track(&mut self, ring: usize, trace_key: u64) -> u64 {
        let track = self.identity.request(trace_key);
        if self.requests.describe(track) {
            let descriptor = descriptor::request(&self.identity, trace_key);
            self.packet(self.id(ring), Data::TrackDescriptor(descriptor));
        }
        track
    }

    /// The uuid of a counter's track, which is described once.
    fn counter_track(&mut self, ring: usize, event: Event) -> u64 {
        let bit = 1 << event as u32;
        if self.counters & bit == 0 {
            self.counters |= bit;
            let descriptor = descriptor::counter(&self.identity, event);
            self.packet(self.id(ring), Data::TrackDescriptor(descriptor));
        }
        self.identity.counter(event)
    }

    /// Tells a sequence the texts of an event, once.
    #[inline]
    fn tell_event(&mut self, ring: usize, event: Event) {
        let bit = 1 << event as u32;
        if let Some(sequence) = &mut self.sequences[ring]
            && sequence.events & bit == 0
        {
            sequence.events |= bit;
            self.tell(ring, interning::interned(event));
        }
    }

    /// Tells a sequence a text's key, once, and returns its iid.
    fn tell_key(&mut self, ring: usize, place: usize) -> u64 {
        let bit = 1 << place;
        if let Some(sequence) = &mut self.sequences[ring]
            && sequence.keys & bit == 0
        {
            sequence.keys |= bit;
            self.tell(ring, self.keys.interned(place));
        }
        TextKeys::iid(place)
    }

    #[cold]
    fn tell(&mut self, ring: usize, data: proto::InternedData) {
        self.append(TracePacket {
            trusted_packet_sequence_id: Some(self.id(ring)),
            sequence_flags: Some(SequenceFlags::NeedsIncrementalState as u32),
            interned_data: Some(data),
            ..TracePacket::default()
        });
    }

    fn packet(&mut self, sequence_id: u32, data: Data) {
        self.append(TracePacket {
            trusted_packet_sequence_id: Some(sequence_id),
            data: Some(data),
            ..TracePacket::default()
        });
    }

    fn append(&mut self, packet: TracePacket) {
        let packet = vec![packet];
        self.out.extend(&Trace { packet }.encode_to_vec());
    }
}

/// Why a file tells of nothing more; the number is the place among
/// [`TRACE_END_REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Finished,
    ByteCap,
    ProcessDied,
    WriteFailed,
}

const _: () = assert!(EndReason::WriteFailed as usize + 1 == TRACE_END_REASONS.len());

impl EndReason {
    /// What is open in such a file ended beyond it.
    pub(crate) const CUT_SHORT: [EndReason; 2] = [EndReason::ByteCap, EndReason::WriteFailed];

    pub(crate) fn label(self) -> &'static str {
        TRACE_END_REASONS[self as usize]
    }
}

const EMPTY: EventPacket<'_> = EventPacket {
    timestamp: 0,
    sequence_id: 0,
    kind: Type::Instant,
    name: None,
    args: &[],
    texts: &[],
    track: None,
    counter: None,
    flow_ids: &[],
};

#[inline]
fn arg(row: &ArgIids, value: u64) -> Arg {
    let label = row.labels.get(value as usize);
    Arg {
        name: row.name,
        // A label's number that has no text is shown as it is.
        value: label.map_or(ArgValue::Uint(value), |&iid| ArgValue::Label(iid)),
    }
}

/// The clocks right now. Clock 64 is the sequence's own, equal to MONOTONIC:
/// with it no two sequences' snapshots are of the same set of clocks, so that
/// files may be concatenated in any order.
fn clock_snapshot() -> proto::ClockSnapshot {
    use proto::BuiltinClock::{Boottime, Monotonic, Realtime};
    let clock = |id: u32, ns: u64| proto::clock_snapshot::Clock {
        clock_id: Some(id),
        timestamp: Some(ns),
        ..Default::default()
    };
    let monotonic = clock_ns(ClockId::CLOCK_MONOTONIC);
    proto::ClockSnapshot {
        clocks: vec![
            clock(Boottime as u32, clock_ns(ClockId::CLOCK_BOOTTIME)),
            clock(Monotonic as u32, monotonic),
            clock(Realtime as u32, clock_ns(ClockId::CLOCK_REALTIME)),
            clock(64, monotonic),
        ],
        primary_trace_clock: Some(Boottime as i32),
    }
}
