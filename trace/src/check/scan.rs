//! The first pass, in file order: everything that depends on what was written
//! before it. Leaves events whose names and times are resolved.

use super::{
    clocks::Clocks,
    names::Names,
    rule::{Rule, Violations},
    sequences::{Sequence, Sequences, Table},
    tracks::Tracks,
};
use crate::{
    proto::{
        DebugAnnotation, TraceAttributes, TracePacket, TrackEvent, debug_annotation,
        trace_attributes::attribute,
        trace_packet::Data,
        track_event::{CounterValueField, Type},
    },
    read::{Packet, Source, Tail},
    timeline::{Arg, ArgValue, CpuSample, Name, Position, TrackOf},
};
use prost::Message;
use std::{collections::BTreeMap, io};

/// Stamps from here on are dropped by readers.
const MAX_TIMESTAMP: u64 = 1 << 63;

/// An event with its names and time, in file order among its equals.
pub(super) struct Event {
    pub(super) time: u64,
    pub(super) track: u64,
    pub(super) kind: Kind,
    pub(super) name: Option<Name>,
    pub(super) category: Option<Name>,
    pub(super) args: Vec<Arg>,
    pub(super) flows: Vec<u64>,
    pub(super) at: Position,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Begin,
    End,
    Instant,
    Counter(f64),
}

/// What was found in one file.
#[derive(Clone, Debug)]
pub struct FileSummary {
    /// The file.
    pub source: Source,
    /// Its whole packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What comes after them.
    pub tail: Tail,
}

#[derive(Default)]
pub(super) struct Scan {
    pub(super) events: Vec<Event>,
    pub(super) tracks: Tracks,
    pub(super) facts: Vec<(String, String)>,
    pub(super) dropped: u64,
    pub(super) samples: Vec<CpuSample>,
    /// By process and thread.
    pub(super) thread_names: BTreeMap<(i32, i64), String>,
    pub(super) files: Vec<FileSummary>,
    names: Names,
    sequences: Sequences,
    clocks: Clocks,
    /// The current file has told its clocks.
    file_has_clocks: bool,
}

impl Scan {
    /// Reads the next file of a concatenation.
    pub(super) fn file(&mut self, source: &Source, out: &mut Violations) -> io::Result<()> {
        let file = self.files.len() as u32;
        self.file_has_clocks = false;
        let mut packets = source.packets()?;
        while let Some(packet) = packets.next_packet()? {
            self.packet(file, &packet, out);
        }
        let tail = packets.tail().cloned().unwrap_or(Tail::Whole);
        let at = |offset: &u64| Position {
            file,
            packet: packets.packets(),
            offset: *offset,
        };
        match &tail {
            Tail::Whole => {}
            Tail::Cut { offset } => out.add(Rule::TailCut, at(offset), || {
                "the file ends in the middle of a packet".to_owned()
            }),
            Tail::Zeros { offset } => out.add(Rule::TailZeros, at(offset), || {
                "the file ends with zeros".to_owned()
            }),
            Tail::Broken { offset, why } => out.add(Rule::NotAPacket, at(offset), || why.clone()),
        }
        self.files.push(FileSummary {
            source: source.clone(),
            packets: packets.packets(),
            bytes: packets.whole_bytes(),
            tail,
        });
        Ok(())
    }

    fn packet(&mut self, file: u32, packet: &Packet<'_>, out: &mut Violations) {
        let at = Position {
            file,
            packet: packet.index,
            offset: packet.offset,
        };
        let content = &packet.content;
        // Decoding forgets what it does not know, so what it knows is shorter.
        let known = content.encoded_len();
        if known != packet.body.len() {
            out.add(Rule::UnknownField, at, || {
                format!(
                    "{} of {} bytes are no field that we write, or are not encoded the short way",
                    packet.body.len().abs_diff(known),
                    packet.body.len(),
                )
            });
        }
        self.dropped += u64::from(content.previous_packet_dropped.unwrap_or(0));
        let sequence = self.sequences.enter(content, at, &mut self.names, out);
        match &content.data {
            None => {}
            Some(Data::ClockSnapshot(snapshot)) => {
                self.file_has_clocks = true;
                let id = content.trusted_packet_sequence_id.unwrap_or(0);
                self.clocks.snapshot(id, snapshot, at, out);
            }
            Some(Data::TrackDescriptor(descriptor)) => self.tracks.describe(descriptor, at, out),
            Some(Data::TrackEvent(event)) => {
                expect_clocks(&mut self.file_has_clocks, at, out);
                let time = time(content, sequence, &mut self.clocks, at, out);
                let event = resolve(event, sequence, &self.tracks, &mut self.names, at, out);
                if let (Some(time), Some(event)) = (time, event) {
                    self.events.push(Event { time, ..event });
                }
            }
            Some(Data::StackSample(sample)) => {
                expect_clocks(&mut self.file_has_clocks, at, out);
                let time = time(content, sequence, &mut self.clocks, at, out);
                if let (Some(time), Some(sample)) = (time, sequence.sample(sample, at, out)) {
                    self.samples.push(CpuSample { time, ..sample });
                }
            }
            Some(Data::ProcessTree(tree)) => {
                for thread in &tree.threads {
                    let pid = thread.tgid.unwrap_or(0);
                    let tid = i64::from(thread.tid.unwrap_or(0));
                    let name = thread.name.clone().unwrap_or_default();
                    self.thread_names.insert((pid, tid), name);
                }
            }
            Some(Data::TraceUuid(_)) => {}
            Some(Data::TraceAttributes(attributes)) => self.note_facts(attributes),
        }
    }

    fn note_facts(&mut self, attributes: &TraceAttributes) {
        for attribute in &attributes.attribute {
            let value = match &attribute.value {
                Some(attribute::Value::Long(value)) => value.to_string(),
                Some(attribute::Value::String(value)) => value.clone(),
                None => String::new(),
            };
            let fact = (attribute.key.clone().unwrap_or_default(), value);
            if !self.facts.contains(&fact) {
                self.facts.push(fact);
            }
        }
    }
}

/// The file has told its clocks.
fn expect_clocks(told: &mut bool, at: Position, out: &mut Violations) {
    if !std::mem::replace(told, true) {
        out.add(Rule::SnapshotClocks, at, || {
            "no snapshot of the clocks comes before the file's first event".to_owned()
        });
    }
}

/// The event's moment on BOOTTIME.
fn time(
    packet: &TracePacket,
    sequence: &Sequence,
    clocks: &mut Clocks,
    at: Position,
    out: &mut Violations,
) -> Option<u64> {
    let id = packet.trusted_packet_sequence_id.unwrap_or(0);
    let Some(stamp) = packet.timestamp else {
        out.add(Rule::TimestampRange, at, || {
            "an event has no time".to_owned()
        });
        return None;
    };
    let clock = packet.timestamp_clock_id.or(sequence.clock);
    let Some(time) = clocks.boottime(id, clock, stamp) else {
        out.add(Rule::ClockKnown, at, || {
            format!(
                "an event is on clock {}, which no snapshot before it reads for sequence {id}",
                clock.unwrap_or(0)
            )
        });
        return None;
    };
    if stamp >= MAX_TIMESTAMP || time >= MAX_TIMESTAMP {
        out.add(Rule::TimestampRange, at, || {
            format!("an event is at {stamp}, which is 2^63 or later")
        });
        return None;
    }
    Some(time)
}

/// The event with its texts, at time 0; `None` if readers would drop it.
fn resolve(
    event: &TrackEvent,
    sequence: &Sequence,
    tracks: &Tracks,
    names: &mut Names,
    at: Position,
    out: &mut Violations,
) -> Option<Event> {
    let mut text = |table, iid, out: &mut Violations| {
        let text = sequence.text(table, iid);
        if text.is_none() {
            out.add(Rule::InternedKnown, at, || {
                format!("{table} {iid} was not interned before")
            });
        }
        text.cloned()
    };
    let name = event
        .name_iid
        .and_then(|iid| text(Table::EventName, iid, out));
    let category = event
        .category_iids
        .iter()
        .filter_map(|iid| text(Table::Category, *iid, out))
        .next();
    let args = event
        .debug_annotations
        .iter()
        .filter_map(|annotation| arg(annotation, &mut text, names, out))
        .collect();
    let Some(track) = event.track_uuid.or(sequence.track) else {
        out.add(Rule::DefaultsRestated, at, || {
            "an event names no track, nor do the defaults since the sequence was cleared".to_owned()
        });
        return None;
    };
    let kind = match event.r#type() {
        Type::Unspecified => {
            out.add(Rule::EventType, at, || "an event has no type".to_owned());
            return None;
        }
        Type::SliceBegin => Kind::Begin,
        Type::SliceEnd => Kind::End,
        Type::Instant => Kind::Instant,
        Type::Counter => Kind::Counter(counter_value(event, track, tracks, at, out)?),
    };
    let is_named = event.name_iid.is_some() && !event.category_iids.is_empty();
    if matches!(kind, Kind::Begin | Kind::Instant) && !is_named {
        out.add(Rule::EventName, at, || {
            "a slice or an instant has no name or no category".to_owned()
        });
    }
    if !event.terminating_flow_ids.is_empty() {
        out.add(Rule::FlowTerminating, at, || {
            "an event ends a flow by terminating_flow_ids".to_owned()
        });
    }
    let flows = [&event.flow_ids[..], &event.terminating_flow_ids].concat();
    Some(Event {
        time: 0,
        track,
        kind,
        name,
        category,
        args,
        flows,
        at,
    })
}

fn counter_value(
    event: &TrackEvent,
    track: u64,
    tracks: &Tracks,
    at: Position,
    out: &mut Violations,
) -> Option<f64> {
    match tracks.get(track).map(|track| &track.of) {
        Some(TrackOf::Counter) => {}
        Some(_) => out.add(Rule::CounterTrack, at, || {
            format!("a counter's value is on track {track:#x}, which is no counter")
        }),
        None => out.add(Rule::CounterDescribedFirst, at, || {
            format!("a value of counter {track:#x} comes before its descriptor")
        }),
    }
    match event.counter_value_field {
        Some(CounterValueField::CounterValue(value)) => Some(value as f64),
        Some(CounterValueField::DoubleCounterValue(value)) => Some(value),
        None => {
            out.add(Rule::CounterHasValue, at, || {
                format!("an event of counter {track:#x} has no value")
            });
            None
        }
    }
}

fn arg(
    annotation: &DebugAnnotation,
    text: &mut impl FnMut(Table, u64, &mut Violations) -> Option<Name>,
    names: &mut Names,
    out: &mut Violations,
) -> Option<Arg> {
    let name = text(Table::ArgName, annotation.name_iid.unwrap_or(0), out);
    let value = match annotation.value.as_ref() {
        Some(debug_annotation::Value::Bool(value)) => Some(ArgValue::Bool(*value)),
        Some(debug_annotation::Value::Uint(value)) => Some(ArgValue::Uint(*value)),
        Some(debug_annotation::Value::Int(value)) => Some(ArgValue::Int(*value)),
        Some(debug_annotation::Value::String(value)) => Some(ArgValue::Text(names.get(value))),
        Some(debug_annotation::Value::StringIid(iid)) => {
            text(Table::ArgText, *iid, out).map(ArgValue::Text)
        }
        None => None,
    };
    Some(Arg {
        name: name?,
        value: value?,
    })
}
