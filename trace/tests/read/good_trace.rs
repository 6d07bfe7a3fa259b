//! A small trace that breaks no rule: three processes, three steps, one request.

use nano_trace::{
    ArgKind, Event,
    proto::{
        BuiltinClock, ClockSnapshot, CounterDescriptor, DebugAnnotation, DebugAnnotationName,
        EventCategory, EventName, InternedData, InternedString, ProcessDescriptor, SequenceFlags,
        SiblingMergeBehavior, ThreadDescriptor, Trace, TraceAttributes, TracePacket,
        TracePacketDefaults, TrackDescriptor, TrackEvent, TrackEventDefaults, clock_snapshot,
        debug_annotation, trace_attributes,
        trace_packet::Data,
        track_event::{CounterValueField, Type},
    },
    read::Source,
};
use prost::Message;

pub(crate) const BOOTTIME: u32 = BuiltinClock::Boottime as u32;
pub(crate) const NEEDS: u32 = SequenceFlags::NeedsIncrementalState as u32;
pub(crate) const CLEARED: u32 = SequenceFlags::IncrementalStateCleared as u32;

/// Microseconds of the trace's begin.
const START: u64 = 5_000_000;

/// Packets of the three files.
#[derive(Clone)]
pub(crate) struct Files {
    pub(crate) frontend: Vec<TracePacket>,
    pub(crate) core: Vec<TracePacket>,
    pub(crate) worker: Vec<TracePacket>,
}

impl Files {
    /// As files that can be read.
    pub(crate) fn sources(&self) -> Vec<Source> {
        [
            ("frontend", &self.frontend),
            ("core", &self.core),
            ("worker", &self.worker),
        ]
        .map(|(name, packets)| Source::bytes(name, bytes(packets)))
        .into()
    }
}

/// Packets as a file holds them.
pub(crate) fn bytes(packets: &[TracePacket]) -> Vec<u8> {
    let packet = packets.to_vec();
    Trace { packet }.encode_to_vec()
}

/// Every name of the catalogue has the same iid in every sequence.
pub(crate) fn name_iid(event: Event) -> u64 {
    event as u64 + 1
}

fn categories() -> Vec<&'static str> {
    let mut categories = Event::ALL.iter().map(|e| e.category()).collect::<Vec<_>>();
    categories.sort_unstable();
    categories.dedup();
    categories
}

pub(crate) fn category_iid(category: &str) -> u64 {
    categories().iter().position(|c| *c == category).unwrap() as u64 + 1
}

fn argument_names() -> Vec<&'static str> {
    let mut names = Event::ALL
        .iter()
        .flat_map(|event| event.args())
        .map(|(name, _)| *name)
        .collect::<Vec<_>>();
    names.sort_unstable();
    names.dedup();
    names
}

pub(crate) fn argument_iid(name: &str) -> u64 {
    argument_names().iter().position(|n| *n == name).unwrap() as u64 + 1
}

fn labels() -> Vec<&'static str> {
    let mut labels = Event::ALL
        .iter()
        .flat_map(|event| event.args())
        .flat_map(|(_, kind)| match kind {
            ArgKind::Int => &[],
            ArgKind::Label(labels) => *labels,
        })
        .copied()
        .collect::<Vec<_>>();
    labels.sort_unstable();
    labels.dedup();
    labels
}

pub(crate) fn interned() -> InternedData {
    InternedData {
        event_categories: (1..)
            .zip(categories())
            .map(|(iid, name)| EventCategory {
                iid: Some(iid),
                name: Some(name.to_owned()),
            })
            .collect(),
        event_names: Event::ALL
            .iter()
            .map(|event| EventName {
                iid: Some(name_iid(*event)),
                name: Some(event.name().to_owned()),
            })
            .collect(),
        debug_annotation_names: argument_names()
            .iter()
            .map(|name| DebugAnnotationName {
                iid: Some(argument_iid(name)),
                name: Some((*name).to_owned()),
            })
            .collect(),
        debug_annotation_string_values: (1..)
            .zip(labels())
            .map(|(iid, text)| InternedString {
                iid: Some(iid),
                str: Some(text.as_bytes().to_vec()),
            })
            .collect(),
        ..Default::default()
    }
}

/// Writes one sequence of one process.
pub(crate) struct Writer {
    sequence: u32,
    process: u64,
    packets: Vec<TracePacket>,
}

impl Writer {
    pub(crate) fn new(sequence: u32, pid: i32, name: &str) -> Writer {
        let (process, thread) = (pid as u64 * 100, pid as u64 * 100 + 1);
        let mut writer = Writer {
            sequence,
            process,
            packets: Vec::new(),
        };
        writer.packets.push(TracePacket {
            trusted_packet_sequence_id: Some(sequence),
            sequence_flags: Some(CLEARED),
            first_packet_on_sequence: Some(true),
            interned_data: Some(interned()),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(BOOTTIME),
                track_event_defaults: Some(TrackEventDefaults {
                    track_uuid: Some(thread),
                }),
                ..Default::default()
            }),
            data: Some(Data::ClockSnapshot(snapshot(0))),
            ..Default::default()
        });
        writer.describe(TrackDescriptor {
            uuid: Some(process),
            process: Some(ProcessDescriptor {
                pid: Some(pid),
                process_name: Some(format!("nano-{name}")),
                ..Default::default()
            }),
            ..Default::default()
        });
        writer.describe(TrackDescriptor {
            uuid: Some(thread),
            parent_uuid: Some(process),
            thread: Some(ThreadDescriptor {
                pid: Some(pid),
                tid: Some(i64::from(pid) + 1),
                thread_name: Some(name.to_owned()),
            }),
            ..Default::default()
        });
        writer.push(Data::TraceAttributes(TraceAttributes {
            attribute: vec![trace_attributes::Attribute {
                key: Some("version".to_owned()),
                value: Some(trace_attributes::attribute::Value::String(
                    "0.1.0".to_owned(),
                )),
            }],
        }));
        writer
    }

    /// What was written.
    pub(crate) fn into_packets(self) -> Vec<TracePacket> {
        self.packets
    }

    fn push(&mut self, data: Data) {
        self.packets.push(TracePacket {
            trusted_packet_sequence_id: Some(self.sequence),
            data: Some(data),
            ..Default::default()
        });
    }

    fn describe(&mut self, descriptor: TrackDescriptor) {
        self.push(Data::TrackDescriptor(descriptor));
    }

    /// A request's track.
    fn request_track(&mut self) -> u64 {
        let uuid = self.process + 10;
        self.describe(TrackDescriptor {
            uuid: Some(uuid),
            parent_uuid: Some(self.process),
            name: Some("request".to_owned()),
            ..Default::default()
        });
        uuid
    }

    fn counter_track(&mut self, event: Event) -> u64 {
        let uuid = self.process + 20 + event as u64;
        self.describe(TrackDescriptor {
            uuid: Some(uuid),
            parent_uuid: Some(self.process),
            name: Some(event.name().to_owned()),
            counter: Some(CounterDescriptor::default()),
            sibling_merge_behavior: Some(SiblingMergeBehavior::None as i32),
            ..Default::default()
        });
        uuid
    }

    fn event(&mut self, micros: u64, event: TrackEvent) {
        self.packets.push(TracePacket {
            timestamp: Some((START + micros) * 1000),
            trusted_packet_sequence_id: Some(self.sequence),
            sequence_flags: Some(NEEDS),
            data: Some(Data::TrackEvent(event)),
            ..Default::default()
        });
    }

    fn begin(&mut self, micros: u64, event: Event, track: Option<u64>, flows: &[u64]) {
        self.event(
            micros,
            TrackEvent {
                track_uuid: track,
                flow_ids: flows.to_vec(),
                ..begin(event)
            },
        );
    }

    fn end(&mut self, micros: u64, event: Event, track: Option<u64>, args: Vec<DebugAnnotation>) {
        self.event(
            micros,
            TrackEvent {
                track_uuid: track,
                debug_annotations: args,
                ..end(event)
            },
        );
    }

    /// A slice of the thread.
    fn slice(&mut self, from: u64, to: u64, event: Event, flows: &[u64]) {
        self.begin(from, event, None, flows);
        self.end(to, event, None, arguments(event));
    }

    fn counter(&mut self, micros: u64, track: u64, value: i64) {
        self.event(micros, counter(track, value));
    }
}

/// Begin of a slice on the default track.
pub(crate) fn begin(event: Event) -> TrackEvent {
    TrackEvent {
        category_iids: vec![category_iid(event.category())],
        r#type: Some(Type::SliceBegin as i32),
        name_iid: Some(name_iid(event)),
        ..Default::default()
    }
}

/// End of a slice on the default track.
pub(crate) fn end(event: Event) -> TrackEvent {
    TrackEvent {
        r#type: Some(Type::SliceEnd as i32),
        name_iid: Some(name_iid(event)),
        ..Default::default()
    }
}

pub(crate) fn counter(track: u64, value: i64) -> TrackEvent {
    TrackEvent {
        r#type: Some(Type::Counter as i32),
        track_uuid: Some(track),
        counter_value_field: Some(CounterValueField::CounterValue(value)),
        ..Default::default()
    }
}

/// Every argument of an event: numbers from 1 on, first labels.
pub(crate) fn arguments(event: Event) -> Vec<DebugAnnotation> {
    (1..)
        .zip(event.args())
        .map(|(number, (name, kind))| DebugAnnotation {
            name_iid: Some(argument_iid(name)),
            value: Some(match kind {
                ArgKind::Int => debug_annotation::Value::Uint(number),
                ArgKind::Label(of) => debug_annotation::Value::StringIid(
                    labels().iter().position(|label| *label == of[0]).unwrap() as u64 + 1,
                ),
            }),
        })
        .collect()
}

/// All clocks, `micros` after the trace's begin.
pub(crate) fn snapshot(micros: u64) -> ClockSnapshot {
    let now = (START + micros) * 1000;
    let clock = |clock_id, timestamp| clock_snapshot::Clock {
        clock_id: Some(clock_id),
        timestamp: Some(timestamp),
        ..Default::default()
    };
    ClockSnapshot {
        clocks: vec![
            clock(BOOTTIME, now),
            clock(BuiltinClock::Monotonic as u32, now - 1_000_000),
            clock(
                BuiltinClock::Realtime as u32,
                now + 1_700_000_000_000_000_000,
            ),
            clock(64, now - 1_000_000),
        ],
        primary_trace_clock: Some(BuiltinClock::Boottime as i32),
    }
}

pub(crate) const REQUEST_FLOW: u64 = 0xf00d;
pub(crate) const FRONTEND_PID: i32 = 11;
pub(crate) const CORE_PID: i32 = 12;
pub(crate) const WORKER_PID: i32 = 13;
/// Begins of the steps, in microseconds.
pub(crate) const STEPS: [u64; 3] = [200, 1100, 3000];

/// The trace.
pub(crate) fn good_trace() -> Files {
    Files {
        frontend: frontend(),
        core: core(),
        worker: worker(),
    }
}

fn frontend() -> Vec<TracePacket> {
    let mut w = Writer::new(101, FRONTEND_PID, "frontend");
    let flow = [REQUEST_FLOW];
    w.slice(100, 110, Event::EventLoopStall, &[]);
    let track = w.request_track();
    w.begin(1000, Event::Request, Some(track), &flow);
    w.begin(1000, Event::Preprocess, Some(track), &[]);
    w.slice(1000, 1010, Event::HttpParse, &[]);
    w.slice(1010, 1020, Event::ChatTemplate, &[]);
    w.slice(1020, 1040, Event::Tokenize, &[]);
    w.slice(1040, 1050, Event::EngineSubmit, &flow);
    w.end(1050, Event::Preprocess, Some(track), vec![]);
    w.begin(1050, Event::Waiting, Some(track), &[]);
    w.slice(2000, 2010, Event::EngineReceive, &flow);
    w.end(2000, Event::Waiting, Some(track), vec![]);
    w.begin(2000, Event::Streaming, Some(track), &[]);
    w.slice(2010, 2020, Event::Detokenize, &[]);
    w.slice(2020, 2030, Event::SseWrite, &flow);
    w.end(2100, Event::Streaming, Some(track), vec![]);
    w.event(
        2100,
        TrackEvent {
            r#type: Some(Type::Instant as i32),
            track_uuid: Some(track),
            debug_annotations: arguments(Event::Finish),
            ..begin(Event::Finish)
        },
    );
    w.end(2110, Event::Request, Some(track), arguments(Event::Request));
    w.slice(4000, 4010, Event::EventLoopStall, &[]);
    w.into_packets()
}

/// Flows of a step: to its rank and back.
pub(crate) fn step_flows(at: u64) -> [u64; 2] {
    [0xaaaa_0000 + at, 0xbbbb_0000 + at]
}

fn core() -> Vec<TracePacket> {
    let mut w = Writer::new(102, CORE_PID, "core");
    let running = w.counter_track(Event::Running);
    let batched = w.counter_track(Event::BatchedTokens);
    let track = w.request_track();
    for at in STEPS {
        let [to_rank, to_core] = step_flows(at);
        let flow: &[u64] = if at == 1100 { &[REQUEST_FLOW] } else { &[] };
        w.begin(at, Event::CoreStep, None, &[]);
        w.slice(at, at + 10, Event::CoreReceive, flow);
        w.slice(at + 10, at + 50, Event::Schedule, &[]);
        w.slice(at + 50, at + 100, Event::Dispatch, &[to_rank]);
        w.counter(at + 100, running, 1);
        w.counter(at + 100, batched, 17);
        w.slice(at + 100, at + 700, Event::WaitWorkers, &[]);
        w.slice(at + 700, at + 750, Event::Update, &[to_core]);
        w.slice(at + 750, at + 840, Event::CoreSend, flow);
        w.end(at + 850, Event::CoreStep, None, arguments(Event::CoreStep));
    }
    w.begin(1105, Event::Queued, Some(track), &[]);
    w.end(1150, Event::Queued, Some(track), arguments(Event::Queued));
    w.begin(1150, Event::Prefill, Some(track), &[REQUEST_FLOW]);
    w.end(1820, Event::Prefill, Some(track), arguments(Event::Prefill));
    w.into_packets()
}

fn worker() -> Vec<TracePacket> {
    let mut w = Writer::new(103, WORKER_PID, "worker");
    let resident = w.counter_track(Event::ResidentBytes);
    w.begin(0, Event::Load, None, &[]);
    w.slice(10, 140, Event::LoadWeights, &[]);
    w.end(150, Event::Load, None, vec![]);
    w.counter(150, resident, 1 << 30);
    for at in STEPS {
        let [to_rank, to_core] = step_flows(at);
        let flow: &[u64] = if at == 1100 { &[REQUEST_FLOW] } else { &[] };
        w.begin(at + 110, Event::WorkerStep, None, &[to_rank]);
        w.slice(at + 110, at + 120, Event::WorkerReceive, &[]);
        w.slice(at + 120, at + 130, Event::PrepareInputs, &[]);
        w.slice(at + 130, at + 650, Event::Forward, flow);
        w.slice(at + 650, at + 670, Event::Sample, &[]);
        w.slice(at + 670, at + 680, Event::WorkerSend, &[to_core]);
        w.end(
            at + 690,
            Event::WorkerStep,
            None,
            arguments(Event::WorkerStep),
        );
    }
    w.into_packets()
}
