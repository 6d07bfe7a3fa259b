//! Reads a trace strictly: panics where a viewer would silently drop or misread.

use crate::check::{OpenSlices, Rule, check};
use crate::proto::debug_annotation::Value;
use crate::proto::track_event::{CounterValueField, Type};
use crate::proto::{Trace, TrackDescriptor, trace_packet::Data};
use crate::read::Source;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// What a trace shows.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) slices: Vec<ShownSlice>,
    pub(super) instants: Vec<ShownEvent>,
    /// Name, time and value.
    pub(super) counters: Vec<(String, u64, i64)>,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) tracks: HashMap<u64, TrackDescriptor>,
    pub(super) last_ns: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ShownEvent {
    pub(super) name: String,
    pub(super) track: u64,
    pub(super) ns: u64,
    pub(super) args: BTreeMap<String, String>,
    pub(super) flows: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct ShownSlice {
    pub(super) begin: ShownEvent,
    /// `None`: never ended.
    pub(super) end: Option<u64>,
    /// Names of the slices around it.
    pub(super) within: Vec<String>,
}

impl Shown {
    pub(super) fn slices_named(&self, name: &str) -> Vec<&ShownSlice> {
        let slices = self.slices.iter();
        slices.filter(|s| s.begin.name == name).collect()
    }

    pub(super) fn open(&self) -> Vec<&str> {
        let slices = self.slices.iter().filter(|s| s.end.is_none());
        slices.map(|s| s.begin.name.as_str()).collect()
    }

    /// Arguments of the last `trace.end`.
    pub(super) fn end(&self) -> &BTreeMap<String, String> {
        let mut ends = self.instants.iter();
        &ends.rfind(|i| i.name == "trace.end").unwrap().args
    }
}

#[derive(Default)]
struct Sequence {
    names: HashMap<u64, String>,
    categories: HashMap<u64, String>,
    arg_names: HashMap<u64, String>,
    labels: HashMap<u64, String>,
    track: u64,
}

/// Rules about what a whole server records, which the scenes are not.
const OF_SERVERS: [Rule; 5] = [
    Rule::FlowLone,
    Rule::FlowPair,
    Rule::RequestWay,
    Rule::Nesting,
    Rule::TrackKind,
];

pub(super) fn read(path: &Path) -> Shown {
    let source = Source::File(path.to_owned());
    let report = check(&[source], &OpenSlices::Any).unwrap();
    let broken = report.violations.kept().iter();
    let broken: Vec<_> = broken.filter(|v| !OF_SERVERS.contains(&v.rule)).collect();
    assert!(broken.is_empty(), "{broken:#?}");

    let bytes = std::fs::read(path).unwrap();
    let trace = Trace::decode(bytes.as_slice()).unwrap();
    assert_eq!(
        trace.encoded_len(),
        bytes.len(),
        "a field that we do not know"
    );
    let mut shown = Shown::default();
    let mut sequences: HashMap<u32, Sequence> = HashMap::new();
    let mut events = Vec::new();
    for (place, packet) in trace.packet.into_iter().enumerate() {
        let id = packet.trusted_packet_sequence_id.unwrap();
        let flags = packet.sequence_flags();
        if flags & 1 != 0 {
            assert!(packet.first_packet_on_sequence());
            let defaults = packet.trace_packet_defaults.as_ref().unwrap();
            let event_defaults = defaults.track_event_defaults.as_ref().unwrap();
            let fresh = Sequence {
                track: event_defaults.track_uuid.unwrap(),
                ..Sequence::default()
            };
            assert!(sequences.insert(id, fresh).is_none(), "sequence ids repeat");
            let Some(Data::ClockSnapshot(snapshot)) = &packet.data else {
                panic!("no snapshot");
            };
            let clocks: Vec<_> = snapshot.clocks.iter().map(|c| c.clock_id()).collect();
            assert_eq!(clocks, [6, 3, 1, 64]);
            assert_eq!(snapshot.primary_trace_clock, Some(6));
        }
        let sequence = sequences.get_mut(&id).expect("CLEARED comes first");
        if let Some(data) = packet.interned_data {
            let told = |map: &mut HashMap<u64, String>, iid: Option<u64>, text: String| {
                assert!(
                    map.insert(iid.unwrap(), text)
                        .is_none_or(|old| old == map[&iid.unwrap()])
                );
            };
            for n in data.event_names {
                told(&mut sequence.names, n.iid, n.name.unwrap());
            }
            for c in data.event_categories {
                told(&mut sequence.categories, c.iid, c.name.unwrap());
            }
            for a in data.debug_annotation_names {
                told(&mut sequence.arg_names, a.iid, a.name.unwrap());
            }
            for l in data.debug_annotation_string_values {
                told(
                    &mut sequence.labels,
                    l.iid,
                    String::from_utf8(l.str.unwrap()).unwrap(),
                );
            }
        }
        match packet.data {
            Some(Data::TrackDescriptor(track)) => {
                let known = shown
                    .tracks
                    .entry(track.uuid())
                    .or_insert_with(|| track.clone());
                assert_eq!(*known, track, "a uuid with two meanings");
            }
            Some(Data::TraceAttributes(attributes)) => {
                for a in attributes.attribute {
                    let Some(crate::proto::trace_attributes::attribute::Value::String(value)) =
                        a.value
                    else {
                        panic!("{a:?}");
                    };
                    assert!(shown.attributes.insert(a.key.unwrap(), value).is_none());
                }
            }
            Some(Data::TrackEvent(event)) => {
                assert_eq!(flags, 2);
                let track = event.track_uuid.unwrap_or(sequence.track);
                let args = event.debug_annotations.iter().map(|a| {
                    let value = match a.value.clone().unwrap() {
                        Value::Uint(value) => value.to_string(),
                        Value::String(text) => text,
                        Value::StringIid(iid) => sequence.labels[&iid].clone(),
                        Value::Bool(value) => value.to_string(),
                        Value::Int(value) => panic!("{value}"),
                    };
                    (sequence.arg_names[&a.name_iid.unwrap()].clone(), value)
                });
                let shown_event = ShownEvent {
                    name: event
                        .name_iid
                        .map_or(String::new(), |iid| sequence.names[&iid].clone()),
                    track,
                    ns: packet.timestamp.unwrap(),
                    args: args.collect(),
                    flows: event.flow_ids.clone(),
                };
                for iid in &event.category_iids {
                    assert!(sequence.categories.contains_key(iid));
                }
                if event.r#type() == Type::Counter {
                    let descriptor = shown
                        .tracks
                        .get(&track)
                        .expect("counters are described first");
                    assert!(descriptor.counter.is_some());
                    let Some(CounterValueField::CounterValue(value)) = event.counter_value_field
                    else {
                        panic!("{event:?}");
                    };
                    let name = descriptor.name().to_owned();
                    shown.counters.push((name, shown_event.ns, value));
                }
                events.push((shown_event.ns, place, event.r#type(), shown_event));
            }
            _ => {}
        }
    }
    // As a viewer does: by time, and in file order where times are equal.
    events.sort_by_key(|&(ns, place, ..)| (ns, place));
    let mut open: HashMap<u64, Vec<usize>> = HashMap::new();
    for (ns, _, kind, event) in events {
        shown.last_ns = shown.last_ns.max(ns);
        let descriptor = shown
            .tracks
            .get(&event.track)
            .expect("tracks are described");
        if let Some(parent) = descriptor.parent_uuid {
            assert!(shown.tracks.contains_key(&parent));
        }
        let stack = open.entry(event.track).or_default();
        match kind {
            Type::SliceBegin => {
                let names = stack.iter().map(|&s| shown.slices[s].begin.name.clone());
                let within = names.collect();
                stack.push(shown.slices.len());
                shown.slices.push(ShownSlice {
                    begin: event,
                    end: None,
                    within,
                });
            }
            Type::SliceEnd => {
                let slice = stack.pop().expect("an END without a BEGIN");
                let slice = &mut shown.slices[slice];
                slice.end = Some(ns);
                slice.begin.args.extend(event.args);
                slice.begin.flows.extend(event.flows);
            }
            Type::Instant => shown.instants.push(event),
            Type::Counter => {}
            Type::Unspecified => panic!("an event without a type"),
        }
    }
    shown
}
