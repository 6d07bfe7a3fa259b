//! Each rule is proven by a trace that breaks it, and nothing else unless said:
//! the good trace, changed in one place.

use crate::good_trace::{
    BOOTTIME, CLEARED, Files, NEEDS, STEPS, argument_iid, begin, bytes, counter, end, good_trace,
    interned, name_iid, snapshot, step_flows,
};
use crate::sample_mutations::OF_SAMPLES;
use Change::{Bytes, Packets};
use nano_trace::{
    Event,
    check::{OpenSlices, Report, Rule, check},
    proto::{
        BuiltinClock, EventName, InternedData, ProcessDescriptor, TracePacket, TrackDescriptor,
        TrackEvent, debug_annotation, trace_packet::Data, track_event::Type,
    },
    read::Source,
};
use std::collections::BTreeSet;

/// One change of the good trace.
pub enum Change {
    /// Of its packets.
    Packets(fn(&mut Files)),
    /// Of the core's file, byte by byte.
    Bytes(fn(&mut Vec<u8>)),
}

/// The rule, the change that breaks it, and rules that cannot be kept then.
pub type Mutation = (Rule, Change, &'static [Rule]);

const MUTATIONS: &[Mutation] = &[
    (Rule::TailCut, Bytes(|file| file.extend([0x0a, 5, 1])), &[]),
    (Rule::TailZeros, Bytes(|file| file.extend([0; 13])), &[]),
    (Rule::NotAPacket, Bytes(|file| file.extend(b"[{}]")), &[]),
    // A body that is no message.
    (
        Rule::NotAPacket,
        Bytes(|file| file.extend([0x0a, 2, 0x0f, 1])),
        &[],
    ),
    // Field 1011 of a packet.
    (
        Rule::UnknownField,
        Bytes(|file| file.extend([0x0a, 3, 0x98, 0x3f, 1])),
        &[],
    ),
    // Field 99 of a descriptor.
    (
        Rule::UnknownField,
        Bytes(|file| file.extend([0x0a, 6, 0xe2, 3, 3, 0x98, 6, 1])),
        &[Rule::UuidUnique],
    ),
    (
        Rule::SequenceId,
        Packets(|files| {
            files.core.push(TracePacket {
                data: Some(Data::ClockSnapshot(snapshot(10))),
                ..Default::default()
            });
        }),
        &[],
    ),
    (
        Rule::SequenceShared,
        Packets(|files| {
            for packet in &mut files.core {
                packet.trusted_packet_sequence_id = files.frontend[0].trusted_packet_sequence_id;
            }
        }),
        &[],
    ),
    (
        Rule::ClearedFirst,
        Packets(|files| files.core[0].sequence_flags = None),
        &[],
    ),
    (
        Rule::ClearedAfterDrop,
        Packets(|files| {
            first(&mut files.core, Event::Schedule, Type::SliceBegin).previous_packet_dropped =
                Some(1);
        }),
        &[],
    ),
    (
        Rule::NeedsState,
        Packets(|files| {
            first(&mut files.core, Event::Schedule, Type::SliceBegin).sequence_flags = None;
        }),
        &[],
    ),
    (
        Rule::InternedKnown,
        Packets(|files| {
            let end = event(first(&mut files.core, Event::Prefill, Type::SliceEnd));
            end.debug_annotations[0].name_iid = Some(999);
        }),
        &[],
    ),
    (
        Rule::InternedOnce,
        Packets(|files| {
            intern(&mut files.core, name_iid(Event::Dispatch), "another");
        }),
        &[],
    ),
    (
        Rule::InternedOnce,
        Packets(|files| intern(&mut files.core, 0, "nobody")),
        &[],
    ),
    (
        Rule::DefaultsRestated,
        Packets(|files| {
            let cleared = TracePacket {
                sequence_flags: Some(CLEARED),
                interned_data: Some(interned()),
                ..on_sequence(&files.core)
            };
            files.core.push(cleared);
            append(&mut files.core, 4_100, begin(Event::Dispatch));
            append(&mut files.core, 4_200, end(Event::Dispatch));
        }),
        &[],
    ),
    (
        Rule::SnapshotClocks,
        Packets(|files| {
            clocks(&mut files.core)
                .clocks
                .retain(|clock| clock.clock_id != Some(64));
        }),
        &[],
    ),
    (
        Rule::SnapshotClocks,
        Packets(|files| {
            let again = clocks(&mut files.core).clocks[0].clone();
            clocks(&mut files.core).clocks.push(again);
        }),
        &[],
    ),
    (
        Rule::SnapshotClocks,
        Packets(|files| files.core[0].data = None),
        &[],
    ),
    (
        Rule::SnapshotMonotonic,
        Packets(|files| {
            let mut back = snapshot(0);
            back.clocks[0].timestamp = back.clocks[0].timestamp.map(|stamp| stamp - 1);
            let packet = TracePacket {
                data: Some(Data::ClockSnapshot(back)),
                ..on_sequence(&files.core)
            };
            files.core.push(packet);
        }),
        &[],
    ),
    (
        Rule::PrimaryClock,
        Packets(|files| {
            clocks(&mut files.core).primary_trace_clock = Some(BuiltinClock::Monotonic as i32);
        }),
        &[],
    ),
    (
        Rule::PrimaryClock,
        Packets(|files| clocks(&mut files.core).primary_trace_clock = None),
        &[],
    ),
    (
        Rule::ClockKnown,
        Packets(|files| a_counter_value(files).timestamp_clock_id = Some(65)),
        &[],
    ),
    (
        Rule::TimestampRange,
        Packets(|files| a_counter_value(files).timestamp = Some(1 << 63)),
        &[],
    ),
    (
        Rule::TimestampRange,
        Packets(|files| a_counter_value(files).timestamp = None),
        &[],
    ),
    (
        Rule::UuidUnique,
        Packets(|files| {
            let thread = descriptor(&files.core, |track| track.thread.is_some()).uuid;
            let request = descriptor(&files.core, |track| {
                track.name.as_deref() == Some("request")
            });
            describe(
                &mut files.core,
                TrackDescriptor {
                    parent_uuid: thread,
                    ..request
                },
            );
        }),
        &[],
    ),
    (
        Rule::UuidUnique,
        Packets(|files| {
            let process = descriptor(&files.core, |track| track.process.is_some());
            let pid = ProcessDescriptor {
                pid: Some(4711),
                ..Default::default()
            };
            describe(
                &mut files.core,
                TrackDescriptor {
                    process: Some(pid),
                    ..process
                },
            );
        }),
        &[],
    ),
    (
        Rule::UuidUnique,
        Packets(|files| describe(&mut files.core, TrackDescriptor::default())),
        &[],
    ),
    (
        Rule::ProcessUnique,
        Packets(|files| {
            let process = descriptor(&files.core, |track| track.process.is_some());
            describe(
                &mut files.core,
                TrackDescriptor {
                    uuid: Some(4711),
                    ..process
                },
            );
        }),
        &[],
    ),
    (
        Rule::TrackDescribed,
        Packets(|files| {
            take_descriptor(&mut files.core, |track| {
                track.name.as_deref() == Some("request")
            });
        }),
        &[],
    ),
    (
        Rule::ParentDescribed,
        Packets(|files| {
            take_descriptor(&mut files.core, |track| track.process.is_some());
        }),
        &[],
    ),
    (
        Rule::ParentDescribed,
        Packets(|files| {
            let itself = TrackDescriptor {
                uuid: Some(4711),
                parent_uuid: Some(4711),
                ..Default::default()
            };
            describe(&mut files.core, itself);
        }),
        &[],
    ),
    (
        Rule::CounterDescribedFirst,
        Packets(|files| {
            let counter = take_descriptor(&mut files.core, |track| track.counter.is_some());
            files.core.push(counter);
        }),
        &[],
    ),
    (
        Rule::CounterTrack,
        Packets(|files| {
            let request = descriptor(&files.core, |track| {
                track.name.as_deref() == Some("request")
            });
            append(&mut files.core, 4_100, counter(request.uuid.unwrap(), 1));
        }),
        &[],
    ),
    (
        Rule::CounterTrack,
        Packets(|files| {
            let running = descriptor(&files.core, |track| track.counter.is_some());
            let finish = event(first(&mut files.frontend, Event::Finish, Type::Instant));
            finish.track_uuid = running.uuid;
        }),
        &[Rule::TrackKind],
    ),
    (
        Rule::EventType,
        Packets(|files| event(a_counter_value(files)).r#type = None),
        &[],
    ),
    (
        Rule::EventName,
        Packets(|files| {
            event(first(&mut files.frontend, Event::Finish, Type::Instant)).name_iid = None;
        }),
        &[Rule::EventKnown],
    ),
    (
        Rule::CounterHasValue,
        Packets(|files| {
            event(a_counter_value(files)).counter_value_field = None;
        }),
        &[],
    ),
    (
        Rule::EndWithoutBegin,
        Packets(|files| append(&mut files.core, 4_100, end(Event::Dispatch))),
        &[],
    ),
    (
        Rule::SliceOpen,
        Packets(|files| append(&mut files.core, 4_100, begin(Event::CoreReceive))),
        &[],
    ),
    (
        Rule::SliceOverlap,
        Packets(|files| {
            let end = first(&mut files.frontend, Event::HttpParse, Type::SliceEnd);
            end.timestamp = end.timestamp.map(|stamp| stamp + 5_000);
        }),
        &[Rule::ArgumentKnown],
    ),
    // Two slices meet at one moment; the second begin is written first, so that
    // each end ends the other one.
    (
        Rule::EqualStamps,
        Packets(|files| {
            let end = place(&files.frontend, Event::HttpParse, Type::SliceEnd);
            files.frontend.swap(end, end + 1);
        }),
        &[Rule::SliceOverlap, Rule::ArgumentKnown],
    ),
    (
        Rule::Depth,
        Packets(|files| {
            for _ in 0..513 {
                append(&mut files.frontend, 4_100, begin(Event::SseWrite));
            }
            for _ in 0..513 {
                append(&mut files.frontend, 4_200, end(Event::SseWrite));
            }
        }),
        &[],
    ),
    (
        Rule::FlowLone,
        Packets(|files| {
            event(first(
                &mut files.worker,
                Event::WorkerStep,
                Type::SliceBegin,
            ))
            .flow_ids
            .clear();
        }),
        &[],
    ),
    (
        Rule::FlowPair,
        Packets(|files| {
            let [to_rank, _] = step_flows(STEPS[0]);
            event(first(
                &mut files.worker,
                Event::WorkerReceive,
                Type::SliceBegin,
            ))
            .flow_ids
            .push(to_rank);
        }),
        &[],
    ),
    // The worker's clock is late.
    (
        Rule::FlowBackwards,
        Packets(|files| {
            for packet in &mut files.worker {
                packet.timestamp = packet.timestamp.map(|stamp| stamp - 100_000);
            }
        }),
        &[],
    ),
    (
        Rule::FlowTerminating,
        Packets(|files| {
            let last = event(first(
                &mut files.frontend,
                Event::SseWrite,
                Type::SliceBegin,
            ));
            last.terminating_flow_ids = std::mem::take(&mut last.flow_ids);
        }),
        &[],
    ),
    (
        Rule::RequestWay,
        Packets(|files| {
            for packet in &mut files.worker {
                if let Some(Data::TrackEvent(event)) = &mut packet.data
                    && event.name_iid == Some(name_iid(Event::Forward))
                {
                    event.flow_ids.clear();
                }
            }
        }),
        &[],
    ),
    (
        Rule::EventKnown,
        Packets(|files| {
            let names = &mut files.worker[0].interned_data.as_mut().unwrap().event_names;
            names[Event::LoadWeights as usize].name = Some("load.wieghts".to_owned());
        }),
        &[],
    ),
    (
        Rule::EventKnown,
        Packets(|files| {
            let position = descriptor_place(&files.core, |track| track.counter.is_some());
            if let Some(Data::TrackDescriptor(track)) = &mut files.core[position].data {
                track.name = Some("runing".to_owned());
            }
        }),
        &[],
    ),
    (
        Rule::ArgumentKnown,
        Packets(|files| {
            let end = event(first(&mut files.core, Event::Queued, Type::SliceEnd));
            end.debug_annotations[0].name_iid = Some(argument_iid("bytes"));
        }),
        &[],
    ),
    (
        Rule::ArgumentKnown,
        Packets(|files| {
            let end = event(first(&mut files.core, Event::Queued, Type::SliceEnd));
            end.debug_annotations.push(end.debug_annotations[0].clone());
        }),
        &[],
    ),
    (
        Rule::ArgumentKind,
        Packets(|files| {
            let end = event(first(&mut files.core, Event::Queued, Type::SliceEnd));
            end.debug_annotations[0].value = Some(debug_annotation::Value::Int(-1));
        }),
        &[],
    ),
    (
        Rule::ArgumentKind,
        Packets(|files| {
            let finish = event(first(&mut files.frontend, Event::Finish, Type::Instant));
            let text = debug_annotation::Value::String("tired".to_owned());
            finish.debug_annotations[0].value = Some(text);
        }),
        &[],
    ),
    (
        Rule::TrackKind,
        Packets(|files| {
            event(first(&mut files.frontend, Event::Finish, Type::Instant)).track_uuid = None;
        }),
        &[],
    ),
    (
        Rule::Nesting,
        Packets(|files| {
            let begin = place(&files.core, Event::CoreStep, Type::SliceBegin);
            files.core.remove(begin);
            let end = place(&files.core, Event::CoreStep, Type::SliceEnd);
            files.core.remove(end);
        }),
        &[],
    ),
    // A step within a step.
    (
        Rule::Nesting,
        Packets(|files| {
            event(first(&mut files.core, Event::Schedule, Type::SliceBegin)).name_iid =
                Some(name_iid(Event::CoreStep));
            event(first(&mut files.core, Event::Schedule, Type::SliceEnd)).name_iid =
                Some(name_iid(Event::CoreStep));
        }),
        &[],
    ),
    // The worker says that it recorded to the end, and shows nothing.
    (
        Rule::FlowLone,
        Packets(|files| {
            let is_event = |packet: &TracePacket| matches!(packet.data, Some(Data::TrackEvent(_)));
            files.worker.retain(|packet| !is_event(packet));
            let end = TrackEvent {
                r#type: Some(Type::Instant as i32),
                ..begin(Event::TraceEnd)
            };
            append(&mut files.worker, 4_500, end);
        }),
        &[Rule::RequestWay],
    ),
];

fn all() -> impl Iterator<Item = &'static Mutation> {
    MUTATIONS.iter().chain(OF_SAMPLES)
}

fn broken_by(change: &Change) -> Report {
    let mut files = good_trace();
    let sources = match change {
        Packets(change) => {
            change(&mut files);
            files.sources()
        }
        Bytes(change) => {
            let mut core = bytes(&files.core);
            change(&mut core);
            let mut sources = files.sources();
            sources[1] = Source::bytes("core", core);
            sources
        }
    };
    check(&sources, &OpenSlices::None).unwrap()
}

#[test]
fn every_rule_has_a_mutation() {
    let proven = all().map(|(rule, ..)| *rule).collect::<BTreeSet<_>>();
    let all = Rule::ALL.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(proven, all);
}

#[test]
fn every_mutation_is_refused_by_its_rule_and_no_other() {
    let mut wrong = Vec::new();
    for (place, (rule, change, also)) in all().enumerate() {
        let report = broken_by(change);
        let expected = also.iter().chain([rule]).copied().collect::<BTreeSet<_>>();
        let found = report.violations.counts().keys().copied().collect();
        if expected != found {
            let lines = report.lines().join("\n    ");
            wrong.push(format!("{place}: {expected:?} expected, but\n    {lines}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_violation_says_where_and_what() {
    let report = broken_by(&Bytes(|file| file.extend([0x0a, 5, 1])));
    let core = bytes(&good_trace().core).len();
    let packets = good_trace().core.len();
    assert_eq!(
        report.lines(),
        [format!(
            "core: packet {packets} at byte {core}: tail-cut: the file ends in the middle of a packet"
        )]
    );
}

#[test]
fn many_violations_of_one_rule_are_counted_and_not_all_kept() {
    let report = broken_by(&Packets(|files| {
        for _ in 0..1000 {
            append(&mut files.core, 4_100, end(Event::Dispatch));
        }
    }));
    assert_eq!(report.violations.counts()[&Rule::EndWithoutBegin], 1000);
    assert_eq!(report.lines().len(), 21);
    assert_eq!(report.lines()[20], "end-without-begin: 980 more");
}

fn event(packet: &mut TracePacket) -> &mut TrackEvent {
    match &mut packet.data {
        Some(Data::TrackEvent(event)) => event,
        other => panic!("no event: {other:?}"),
    }
}

fn place(packets: &[TracePacket], of: Event, kind: Type) -> usize {
    let is_it = |packet: &TracePacket| match &packet.data {
        Some(Data::TrackEvent(event)) => {
            event.name_iid == Some(name_iid(of)) && event.r#type() == kind
        }
        _ => false,
    };
    packets.iter().position(is_it).unwrap()
}

fn first(packets: &mut [TracePacket], of: Event, kind: Type) -> &mut TracePacket {
    let place = place(packets, of, kind);
    &mut packets[place]
}

fn a_counter_value(files: &mut Files) -> &mut TracePacket {
    let is_it = |packet: &&mut TracePacket| match &packet.data {
        Some(Data::TrackEvent(event)) => event.counter_value_field.is_some(),
        _ => false,
    };
    files.core.iter_mut().find(is_it).unwrap()
}

fn clocks(packets: &mut [TracePacket]) -> &mut nano_trace::proto::ClockSnapshot {
    match &mut packets[0].data {
        Some(Data::ClockSnapshot(snapshot)) => snapshot,
        other => panic!("no snapshot: {other:?}"),
    }
}

fn on_sequence(packets: &[TracePacket]) -> TracePacket {
    TracePacket {
        trusted_packet_sequence_id: packets[0].trusted_packet_sequence_id,
        ..Default::default()
    }
}

fn append(packets: &mut Vec<TracePacket>, micros: u64, event: TrackEvent) {
    packets.push(TracePacket {
        timestamp: Some((5_000_000 + micros) * 1000),
        timestamp_clock_id: Some(BOOTTIME),
        sequence_flags: Some(NEEDS),
        data: Some(Data::TrackEvent(event)),
        ..on_sequence(packets)
    });
}

fn intern(packets: &mut Vec<TracePacket>, iid: u64, name: &str) {
    let name = EventName {
        iid: Some(iid),
        name: Some(name.to_owned()),
    };
    packets.push(TracePacket {
        interned_data: Some(InternedData {
            event_names: vec![name],
            ..Default::default()
        }),
        ..on_sequence(packets)
    });
}

fn describe(packets: &mut Vec<TracePacket>, descriptor: TrackDescriptor) {
    packets.push(TracePacket {
        data: Some(Data::TrackDescriptor(descriptor)),
        ..on_sequence(packets)
    });
}

fn descriptor_place(packets: &[TracePacket], is_it: fn(&TrackDescriptor) -> bool) -> usize {
    let is_it = |packet: &TracePacket| match &packet.data {
        Some(Data::TrackDescriptor(track)) => is_it(track),
        _ => false,
    };
    packets.iter().position(is_it).unwrap()
}

fn descriptor(packets: &[TracePacket], is_it: fn(&TrackDescriptor) -> bool) -> TrackDescriptor {
    match &packets[descriptor_place(packets, is_it)].data {
        Some(Data::TrackDescriptor(track)) => track.clone(),
        other => panic!("no descriptor: {other:?}"),
    }
}

fn take_descriptor(
    packets: &mut Vec<TracePacket>,
    is_it: fn(&TrackDescriptor) -> bool,
) -> TracePacket {
    let place = descriptor_place(packets, is_it);
    packets.remove(place)
}
