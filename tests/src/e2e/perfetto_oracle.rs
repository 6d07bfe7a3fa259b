//! Our Perfetto messages, read by the published Rust schema: every field that
//! it knows arrives where it belongs. The schema is older than the descriptors
//! that `tests/perfetto` asks; what it lacks is left out here.

use nano_trace::proto::{
    BuiltinClock, Callstack, ChildTracksOrdering, ClockSnapshot, CounterDescriptor,
    DebugAnnotation, DebugAnnotationName, EventCategory, EventName, Frame, InternedData,
    InternedString, Mapping, ProcessDescriptor, ProcessTree, ThreadDescriptor, TracePacket,
    TracePacketDefaults, TraceUuid, TrackDescriptor, TrackEvent, TrackEventDefaults,
    clock_snapshot,
    counter_descriptor::Unit,
    debug_annotation, process_tree,
    trace_packet::Data,
    track_event::{CounterValueField, Type},
};
use perfetto_protos::{clock_snapshot as official_clock, trace_packet::TracePacket as Official};
use prost::Message as _;
use protobuf::{Message as _, UnknownValueRef};

/// The packet as the published schema reads it, and nothing that it cannot read.
fn read(packet: &TracePacket) -> Official {
    let bytes = packet.encode_to_vec();
    let official = Official::parse_from_bytes(&bytes).unwrap();
    // Unknown fields would be kept and written again: compare what is known.
    let mut known = official.clone();
    known.special_fields.mut_unknown_fields().clear();
    assert_eq!(known.compute_size() as usize, bytes.len());
    official
}

fn packet(data: Data) -> TracePacket {
    TracePacket {
        data: Some(data),
        ..Default::default()
    }
}

#[test]
fn packet_fields() {
    let official = read(&TracePacket {
        timestamp: Some(1 << 40),
        timestamp_clock_id: Some(64),
        trusted_packet_sequence_id: Some(7),
        sequence_flags: Some(3),
        first_packet_on_sequence: Some(true),
        previous_packet_dropped: Some(2),
        trace_packet_defaults: Some(TracePacketDefaults {
            timestamp_clock_id: Some(6),
            track_event_defaults: Some(TrackEventDefaults {
                track_uuid: Some(99),
            }),
            ..Default::default()
        }),
        ..Default::default()
    });
    assert_eq!(official.timestamp(), 1 << 40);
    assert_eq!(official.timestamp_clock_id(), 64);
    assert_eq!(official.trusted_packet_sequence_id(), 7);
    assert_eq!(official.sequence_flags(), 3);
    assert!(official.first_packet_on_sequence());
    assert!(official.previous_packet_dropped());
    assert_eq!(official.trace_packet_defaults.timestamp_clock_id(), 6);
    let defaults = &official.trace_packet_defaults.track_event_defaults;
    assert_eq!(defaults.track_uuid(), 99);
}

#[test]
fn interned_data() {
    let official = read(&TracePacket {
        interned_data: Some(InternedData {
            event_categories: vec![EventCategory {
                iid: Some(1),
                name: Some("category".to_owned()),
            }],
            event_names: vec![EventName {
                iid: Some(2),
                name: Some("event".to_owned()),
            }],
            debug_annotation_names: vec![DebugAnnotationName {
                iid: Some(3),
                name: Some("argument".to_owned()),
            }],
            debug_annotation_string_values: vec![InternedString {
                iid: Some(4),
                str: Some(b"text".to_vec()),
            }],
            ..Default::default()
        }),
        ..Default::default()
    });
    let interned = official.interned_data;
    let category = &interned.event_categories[0];
    assert_eq!((category.iid(), category.name()), (1, "category"));
    let event = &interned.event_names[0];
    assert_eq!((event.iid(), event.name()), (2, "event"));
    let argument = &interned.debug_annotation_names[0];
    assert_eq!((argument.iid(), argument.name()), (3, "argument"));
    let text = &interned.debug_annotation_string_values[0];
    assert_eq!((text.iid(), text.str()), (4, b"text".as_slice()));
}

#[test]
fn stacks() {
    let text = |iid, text: &str| {
        vec![InternedString {
            iid: Some(iid),
            str: Some(text.as_bytes().to_vec()),
        }]
    };
    let official = read(&TracePacket {
        interned_data: Some(InternedData {
            function_names: text(1, "main"),
            source_paths: text(2, "main.rs"),
            mapping_paths: text(3, "/bin/program"),
            build_ids: text(4, "id"),
            mappings: vec![Mapping {
                iid: Some(5),
                build_id: Some(4),
                exact_offset: Some(0x100),
                start_offset: Some(0x101),
                start: Some(0x1000),
                end: Some(0x2000),
                load_bias: Some(0x10),
                path_string_ids: vec![3],
            }],
            frames: vec![Frame {
                iid: Some(6),
                function_name_id: Some(1),
                mapping_id: Some(5),
                rel_pc: Some(0x40),
                source_path_iid: Some(2),
                line_number: Some(77),
            }],
            callstacks: vec![Callstack {
                iid: Some(7),
                frame_ids: vec![6, 8],
            }],
            ..Default::default()
        }),
        ..Default::default()
    });
    let interned = official.interned_data;
    let known = |texts: &[perfetto_protos::profile_common::InternedString]| {
        (texts[0].iid(), texts[0].str().to_vec())
    };
    assert_eq!(known(&interned.function_names), (1, b"main".to_vec()));
    assert_eq!(known(&interned.source_paths), (2, b"main.rs".to_vec()));
    assert_eq!(
        known(&interned.mapping_paths),
        (3, b"/bin/program".to_vec())
    );
    assert_eq!(known(&interned.build_ids), (4, b"id".to_vec()));
    let mapping = &interned.mappings[0];
    assert_eq!((mapping.iid(), mapping.build_id()), (5, 4));
    assert_eq!(
        (mapping.exact_offset(), mapping.start_offset()),
        (0x100, 0x101)
    );
    assert_eq!((mapping.start(), mapping.end()), (0x1000, 0x2000));
    assert_eq!(
        (mapping.load_bias(), &mapping.path_string_ids),
        (0x10, &vec![3])
    );
    let frame = &interned.frames[0];
    assert_eq!((frame.iid(), frame.function_name_id()), (6, 1));
    assert_eq!((frame.mapping_id(), frame.rel_pc()), (5, 0x40));
    // Newer than this schema, which keeps the numbers of what it does not know.
    let newer = frame.special_fields.unknown_fields();
    let number = |field| match newer.get(field) {
        Some(UnknownValueRef::Varint(number)) => Some(number),
        _ => None,
    };
    assert_eq!((number(5), number(6)), (Some(2), Some(77)));
    let callstack = &interned.callstacks[0];
    assert_eq!((callstack.iid(), &callstack.frame_ids), (7, &vec![6, 8]));

    let official = read(&packet(Data::ProcessTree(ProcessTree {
        threads: vec![process_tree::Thread {
            tid: Some(12),
            name: Some("worker".to_owned()),
            tgid: Some(11),
        }],
    })));
    let thread = &official.process_tree().threads[0];
    assert_eq!(
        (thread.tid(), thread.tgid(), thread.name()),
        (12, 11, "worker")
    );
}

#[test]
fn clock_snapshot_and_uuid() {
    let official = read(&packet(Data::ClockSnapshot(ClockSnapshot {
        clocks: vec![clock_snapshot::Clock {
            clock_id: Some(64),
            timestamp: Some(1 << 41),
            is_incremental: Some(true),
            unit_multiplier_ns: Some(1000),
        }],
        primary_trace_clock: Some(BuiltinClock::Boottime as i32),
    })));
    let snapshot: &official_clock::ClockSnapshot = official.clock_snapshot();
    let clock = &snapshot.clocks[0];
    assert_eq!((clock.clock_id(), clock.timestamp()), (64, 1 << 41));
    assert!(clock.is_incremental());
    assert_eq!(clock.unit_multiplier_ns(), 1000);
    let boottime = perfetto_protos::builtin_clock::BuiltinClock::BUILTIN_CLOCK_BOOTTIME;
    assert_eq!(snapshot.primary_trace_clock(), boottime);

    let official = read(&packet(Data::TraceUuid(TraceUuid {
        msb: Some(-1),
        lsb: Some(5),
    })));
    let uuid = official.trace_uuid();
    assert_eq!((uuid.msb(), uuid.lsb()), (-1, 5));
}

#[test]
fn track_descriptors() {
    let official = read(&packet(Data::TrackDescriptor(TrackDescriptor {
        uuid: Some(u64::MAX),
        parent_uuid: Some(5),
        name: Some("track".to_owned()),
        process: Some(ProcessDescriptor {
            pid: Some(41),
            cmdline: vec!["nano-core".to_owned(), "--fast".to_owned()],
            process_name: Some("core".to_owned()),
            start_timestamp_ns: Some(9),
            process_labels: vec!["label".to_owned()],
        }),
        thread: Some(ThreadDescriptor {
            pid: Some(41),
            tid: Some(42),
            thread_name: Some("step".to_owned()),
        }),
        counter: Some(CounterDescriptor {
            unit: Some(Unit::SizeBytes as i32),
            unit_multiplier: Some(1024),
            is_incremental: Some(true),
            unit_name: Some("pages".to_owned()),
        }),
        child_ordering: Some(ChildTracksOrdering::Explicit as i32),
        sibling_order_rank: Some(-3),
        ..Default::default()
    })));
    let track = official.track_descriptor();
    assert_eq!((track.uuid(), track.parent_uuid()), (u64::MAX, 5));
    assert_eq!(track.name(), "track");
    assert_eq!(track.sibling_order_rank(), -3);
    use perfetto_protos::track_descriptor::track_descriptor::ChildTracksOrdering as Order;
    assert_eq!(track.child_ordering(), Order::EXPLICIT);
    let process = &track.process;
    assert_eq!((process.pid(), process.process_name()), (41, "core"));
    assert_eq!(process.cmdline, ["nano-core", "--fast"]);
    assert_eq!(process.start_timestamp_ns(), 9);
    assert_eq!(process.process_labels, ["label"]);
    let thread = &track.thread;
    assert_eq!((thread.pid(), i64::from(thread.tid())), (41, 42));
    assert_eq!(thread.thread_name(), "step");
    let counter = &track.counter;
    use perfetto_protos::counter_descriptor::counter_descriptor::Unit as OfficialUnit;
    assert_eq!(counter.unit(), OfficialUnit::UNIT_SIZE_BYTES);
    assert_eq!(counter.unit_multiplier(), 1024);
    assert!(counter.is_incremental());
    assert_eq!(counter.unit_name(), "pages");
}

#[test]
fn track_events() {
    use perfetto_protos::track_event::track_event::Type as OfficialType;
    let argument = |name_iid, value| DebugAnnotation {
        name_iid: Some(name_iid),
        value: Some(value),
    };
    let official = read(&packet(Data::TrackEvent(TrackEvent {
        category_iids: vec![1, 300],
        debug_annotations: vec![
            argument(1, debug_annotation::Value::Uint(u64::MAX)),
            argument(2, debug_annotation::Value::Int(-1)),
            argument(3, debug_annotation::Value::String("text".to_owned())),
            argument(4, debug_annotation::Value::StringIid(9)),
        ],
        r#type: Some(Type::SliceEnd as i32),
        name_iid: Some(4),
        track_uuid: Some(u64::MAX),
        flow_ids: vec![u64::MAX, 1],
        terminating_flow_ids: vec![2],
        counter_value_field: Some(CounterValueField::CounterValue(-8)),
    })));
    let event = official.track_event();
    assert_eq!(event.category_iids, [1, 300]);
    assert_eq!(event.type_(), OfficialType::TYPE_SLICE_END);
    assert_eq!((event.name_iid(), event.track_uuid()), (4, u64::MAX));
    assert_eq!(event.flow_ids, [u64::MAX, 1]);
    assert_eq!(event.terminating_flow_ids, [2]);
    assert_eq!(event.counter_value(), -8);
    let [uint, int, text, interned] = event.debug_annotations.as_slice() else {
        panic!("{:?}", event.debug_annotations);
    };
    assert_eq!((uint.name_iid(), uint.uint_value()), (1, u64::MAX));
    assert_eq!((int.name_iid(), int.int_value()), (2, -1));
    assert_eq!((text.name_iid(), text.string_value()), (3, "text"));
    assert_eq!((interned.name_iid(), interned.string_value_iid()), (4, 9));

    for (ours, theirs) in [
        (Type::SliceBegin, OfficialType::TYPE_SLICE_BEGIN),
        (Type::Instant, OfficialType::TYPE_INSTANT),
        (Type::Counter, OfficialType::TYPE_COUNTER),
    ] {
        let official = read(&packet(Data::TrackEvent(TrackEvent {
            r#type: Some(ours as i32),
            counter_value_field: Some(CounterValueField::DoubleCounterValue(0.5)),
            ..Default::default()
        })));
        assert_eq!(official.track_event().type_(), theirs);
        assert_eq!(official.track_event().double_counter_value(), 0.5);
    }
}
