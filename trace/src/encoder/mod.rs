//! From records to the packets of one session's file.
//!
//! Invariants of what is written, whatever the rings held:
//! - every ring claim is a packet sequence of its own, which opens with
//!   CLEARED, its defaults and a clock snapshot, and tells a text before it
//!   names it;
//! - a counter is described before its first value;
//! - every END has its BEGIN in this file: one whose BEGIN lies outside of the
//!   session, or was dropped, is left out, and one that skips inner slices of a
//!   request ends those too, for their ENDs were dropped;
//! - while the session is off, nothing is open in its file: what was open is
//!   ended when it goes off, and of requests begun again when it goes on, and
//!   both say that they are clipped.

mod edges;

pub(crate) use edges::EndReason;

use crate::clock::clock_ns;
use crate::entry::{Entry, Kind};
use crate::identity::Identity;
use crate::interning::{self, ArgIids, TextKeys};
use crate::packet::{Arg, ArgValue, EventPacket, PacketBuffer};
use crate::proto::track_event::Type;
use crate::proto::{self, SequenceFlags, Trace, TracePacket, trace_packet::Data};
use crate::replay::Replay;
use crate::request_tracks::{RequestTracks, Step};
use crate::rings::RingHeader;
use crate::{Event, descriptor};
use nix::time::ClockId;
use prost::Message;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// A thread that records, as its ring tells.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    pub(crate) name: String,
    /// Which claim of a ring; the order of threads in the viewer.
    pub(crate) claim: u64,
}

impl Thread {
    /// The owner of a ring, or its last one.
    pub(crate) fn of(ring: &RingHeader) -> Thread {
        let producer = &ring.producer;
        let words = producer.name.iter();
        let bytes = words.flat_map(|word| word.load(Relaxed).to_le_bytes());
        let name: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        Thread {
            tid: producer.tid.load(Relaxed),
            name: String::from_utf8_lossy(&name).into_owned(),
            claim: producer.claim.load(Relaxed),
        }
    }

    /// The drainer's, after all that record.
    pub(crate) fn writer(tid: u32) -> Thread {
        Thread {
            tid,
            name: "trace-writer".to_owned(),
            claim: u64::MAX,
        }
    }
}

/// Whose file it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOf {
    pub(crate) process: Identity,
    /// The session's number in its process.
    pub(crate) session: u32,
    /// Salts sequence ids, so that a salvager's differ from the process's own.
    pub(crate) writer: &'static str,
    /// Of requests, only those that are marked.
    pub(crate) marked_only: bool,
}

/// See the module.
pub(crate) struct Encoder {
    of: FileOf,
    /// By ring; the last is the drainer's own.
    sequences: Vec<Option<Sequence>>,
    /// By uuid: tracks of requests that the file describes.
    tracks: HashMap<u64, Track>,
    /// A bit for each event whose counter was described.
    counters: u128,
    /// By id: slices of threads that are open in a file that is gone on with.
    open_before: HashMap<u32, u32>,
    flow_ids: Vec<u64>,
    /// Packets that are not in the file yet.
    pub(crate) out: PacketBuffer,
    pub(crate) progress: Progress,
    /// Records of requests whose counterparts were lost.
    pub(crate) dropped: u64,
    /// Bytes that `out` may hold.
    pub(crate) room: u64,
}

/// How far the encoder is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Records encoded.
    pub(crate) events: u64,
    /// The newest time encoded.
    pub(crate) last_ns: u64,
    /// The slice is open that says that the session is on.
    pub(crate) is_on: bool,
}

struct Sequence {
    id: u32,
    /// Slices of its thread that are open in the file.
    open: u32,
    /// A bit for each event whose texts were told.
    events: u128,
    /// A bit for each text key that was told.
    keys: u64,
    /// What "clipped" is was told.
    clipped: bool,
}

/// A request's track in the file.
#[derive(Debug, Default)]
struct Track {
    /// Slices that are open in the file.
    open: usize,
    /// So many of them, the outermost, have a clipped BEGIN.
    clipped: usize,
}

/// Tracks that a file remembers; those with nothing open are forgotten beyond,
/// and described again if they return, which does no harm.
const MAX_TRACKS: usize = 1 << 16;

const _: () = assert!(Event::ALL.len() <= 128, "events are bits of a u128");

impl Encoder {
    /// An encoder of so many rings.
    pub(crate) fn new(of: FileOf, rings: usize) -> Encoder {
        Encoder {
            of,
            sequences: (0..=rings).map(|_| None).collect(),
            tracks: HashMap::new(),
            counters: 0,
            open_before: HashMap::new(),
            flow_ids: Vec::new(),
            out: PacketBuffer::default(),
            progress: Progress::default(),
            dropped: 0,
            room: 0,
        }
    }

    /// Goes on with a file in which so much is open.
    pub(crate) fn resume(&mut self, replay: Replay) {
        for (uuid, open) in replay.requests {
            let open = open.len();
            self.tracks.insert(uuid, Track { open, clipped: 0 });
        }
        self.open_before = replay.threads;
    }

    /// Opens the drainer's own sequence, and says what the process is.
    pub(crate) fn open_process(&mut self, role: &str, thread: &Thread, facts: &[(String, String)]) {
        self.open_own(thread);
        let id = self.id(self.own());
        for data in [
            Data::TrackDescriptor(descriptor::root()),
            Data::TrackDescriptor(descriptor::process(&self.of.process, role)),
            Data::TraceUuid(descriptor::trace_uuid(&self.of.process)),
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
        let FileOf {
            process,
            session,
            writer,
            ..
        } = self.of;
        let id = process.sequence(session, writer, thread.claim);
        let before = process.sequence(session, PROCESS, thread.claim);
        let track_uuid = Some(process.thread(thread.tid));
        self.append(TracePacket {
            trusted_packet_sequence_id: Some(id),
            sequence_flags: Some(SequenceFlags::IncrementalStateCleared as u32),
            first_packet_on_sequence: Some(true),
            trace_packet_defaults: Some(proto::TracePacketDefaults {
                timestamp_clock_id: Some(proto::BuiltinClock::Boottime as u32),
                track_event_defaults: Some(proto::TrackEventDefaults { track_uuid }),
                stack_sample_defaults: None,
            }),
            data: Some(Data::ClockSnapshot(clock_snapshot())),
            ..TracePacket::default()
        });
        self.packet(
            id,
            Data::TrackDescriptor(descriptor::thread(&process, thread)),
        );
        self.sequences[ring] = Some(Sequence {
            id,
            open: self.open_before.remove(&before).unwrap_or(0),
            events: 0,
            keys: 0,
            clipped: false,
        });
    }

    /// The ring has another thread from now on.
    pub(crate) fn close(&mut self, ring: usize) {
        self.sequences[ring] = None;
    }

    /// Encodes a record of a ring whose sequence is open, at its CLOCK_BOOTTIME;
    /// `request`: track and meaning, if it is of a request's track.
    pub(crate) fn encode(
        &mut self,
        ring: usize,
        entry: &Entry<'_>,
        ns: u64,
        request: Option<(u64, Step)>,
        requests: &RequestTracks,
    ) {
        let head = entry.head();
        let event = head.event;
        if head.kind == Kind::Text {
            // Shown with the track's next event.
            return;
        }
        let Some(sequence) = &mut self.sequences[ring] else {
            return;
        };
        let sequence_id = sequence.id;
        match head.kind {
            Kind::Begin => sequence.open += 1,
            // Its BEGIN is not in the file.
            Kind::End if sequence.open == 0 => return,
            Kind::End => sequence.open -= 1,
            _ => {}
        }
        let iids = interning::event(event);
        let mut packet = EventPacket {
            timestamp: ns,
            sequence_id,
            name: Some((iids.category, iids.name)),
            ..EMPTY
        };
        let mut first_arg = usize::from(head.first_arg);
        let mut texts = Vec::new();
        match (head.kind, request) {
            (Kind::Begin, _) => packet.kind = Type::SliceBegin,
            (Kind::End, _) => packet.kind = Type::SliceEnd,
            (Kind::Counter, _) => {
                packet.kind = Type::Counter;
                packet.name = None;
                packet.counter = entry.args().next();
                packet.track = Some(self.counter_track(ring, event));
            }
            (_, Some((uuid, step))) => {
                let is_new = self.describe_request(ring, uuid);
                packet.track = Some(uuid);
                packet.kind = match self.request_step(ring, uuid, step, ns) {
                    Some(kind) => kind,
                    None => return,
                };
                if let Step::End { args_given, .. } = step {
                    first_arg = usize::from(args_given);
                }
                texts = self.tell_texts(ring, requests, uuid, is_new);
            }
            _ => {}
        }
        self.progress.last_ns = self.progress.last_ns.max(ns);
        self.progress.events += 1;
        self.flow_ids.clear();
        if head.flows > 0 {
            let FileOf {
                process,
                marked_only,
                ..
            } = self.of;
            let flows = entry.flows();
            let flows = flows.filter(|flow| !marked_only || flow.is_of_marked());
            self.flow_ids.extend(flows.map(|flow| flow.id(process.run)));
        }
        if packet.kind == Type::SliceEnd {
            packet.name = None;
        }
        let mut args = NO_ARGS;
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
        EventPacket {
            args: &args[..count],
            texts: &texts,
            flow_ids: &self.flow_ids,
            ..packet
        }
        .append(&mut self.out);
    }

    /// Follows a step of a request's track. `None`: nothing is to be written of it.
    fn request_step(&mut self, ring: usize, uuid: u64, step: Step, ns: u64) -> Option<Type> {
        let track = self.tracks.entry(uuid).or_default();
        match step {
            Step::Text => None,
            Step::Instant => Some(Type::Instant),
            Step::Lost => {
                self.dropped += 1;
                None
            }
            Step::Begin => {
                track.open += 1;
                Some(Type::SliceBegin)
            }
            Step::End { unended, .. } => {
                // Else its BEGIN is not in the file, and those around it are not.
                let outer = track.open.checked_sub(1)?;
                let unended = unended.min(outer);
                track.open = outer - unended;
                track.clipped = track.clipped.min(track.open);
                for _ in 0..unended {
                    self.bare_end(ring, Some(uuid), ns, false);
                }
                Some(Type::SliceEnd)
            }
        }
    }

    /// There is no room for another record.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() as u64 > self.room
    }

    /// Place of the drainer's own sequence.
    fn own(&self) -> usize {
        self.sequences.len() - 1
    }

    /// A sequence's id; 0, which readers drop, if it is not open.
    fn id(&self, ring: usize) -> u32 {
        self.sequences[ring].as_ref().map_or(0, |s| s.id)
    }

    /// Ends the innermost slice of a request's track, or of the ring's thread.
    fn bare_end(&mut self, ring: usize, track: Option<u64>, ns: u64, clipped: bool) {
        if clipped {
            self.tell_clipped(ring);
        }
        EventPacket {
            timestamp: ns,
            sequence_id: self.id(ring),
            kind: Type::SliceEnd,
            track,
            clipped,
            ..EMPTY
        }
        .append(&mut self.out);
    }

    /// Describes a request's track, once; whether this was the time.
    fn describe_request(&mut self, ring: usize, uuid: u64) -> bool {
        if self.tracks.contains_key(&uuid) {
            return false;
        }
        if self.tracks.len() >= MAX_TRACKS {
            self.tracks.retain(|_, track| track.open > 0);
        }
        let descriptor = descriptor::request(&self.of.process, uuid);
        self.packet(self.id(ring), Data::TrackDescriptor(descriptor));
        self.tracks.insert(uuid, Track::default());
        true
    }

    /// Tells a sequence the keys of a track's texts; iids and texts.
    fn tell_texts(
        &mut self,
        ring: usize,
        requests: &RequestTracks,
        uuid: u64,
        all: bool,
    ) -> Vec<(u64, String)> {
        let texts = requests.texts(uuid, all);
        // Where one process has several roles, each may have told the same.
        let is_first = |at: usize| texts[..at].iter().all(|(key, _)| *key != texts[at].0);
        let once = (0..texts.len())
            .filter(|at| is_first(*at))
            .map(|at| &texts[at]);
        once.map(|(place, text)| (self.tell_key(ring, *place, requests.keys()), text.clone()))
            .collect()
    }

    /// The uuid of a counter's track, which is described once.
    fn counter_track(&mut self, ring: usize, event: Event) -> u64 {
        let bit = 1 << event as u32;
        if self.counters & bit == 0 {
            self.counters |= bit;
            let descriptor = descriptor::counter(&self.of.process, event);
            self.packet(self.id(ring), Data::TrackDescriptor(descriptor));
        }
        self.of.process.counter(event)
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
    fn tell_key(&mut self, ring: usize, place: usize, keys: &TextKeys) -> u64 {
        let bit = 1 << place;
        if let Some(sequence) = &mut self.sequences[ring]
            && sequence.keys & bit == 0
        {
            sequence.keys |= bit;
            self.tell(ring, keys.interned(place));
        }
        TextKeys::iid(place)
    }

    /// Tells a sequence what "clipped" is, once.
    fn tell_clipped(&mut self, ring: usize) {
        if let Some(sequence) = &mut self.sequences[ring]
            && !std::mem::replace(&mut sequence.clipped, true)
        {
            self.tell(ring, interning::clipped());
        }
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

/// What a process calls itself as a writer ([`FileOf::writer`]).
pub(crate) const PROCESS: &str = "process";
/// What a salvager is called.
pub(crate) const SALVAGE: &str = "salvage";
/// What one is called that dumps what is kept.
pub(crate) const DUMP: &str = "dump";

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
    clipped: false,
};

const NO_ARGS: [Arg; Event::MAX_ARGS] = [Arg {
    name: 0,
    value: ArgValue::Uint(0),
}; Event::MAX_ARGS];

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
pub(crate) fn clock_snapshot() -> proto::ClockSnapshot {
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
