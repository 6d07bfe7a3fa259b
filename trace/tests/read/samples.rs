//! Stack samples of the good trace's processes.

use crate::good_trace::{BOOTTIME, CLEARED, CORE_PID, NEEDS, WORKER_PID, snapshot};
use nano_trace::proto::{
    Callstack, Frame, InternedData, InternedString, Mapping, ProcessTree, StackSample,
    StackSampleDefaults, TracePacket, TracePacketDefaults, process_tree, stack_sample,
    trace_packet::Data,
};

/// Microseconds of the good trace's begin.
const START: u64 = 5_000_000;
const SEQUENCE: u32 = 202;

/// Of the core at its first `schedule` (1 ms of CPU time), and at its first
/// `wait_workers` (2 ms); of the worker in its first `forward` (4 ms), and of a
/// thread of it that records nothing (8 ms).
pub(crate) fn samples() -> Vec<TracePacket> {
    let thread = process_tree::Thread {
        tid: Some(WORKER_PID + 2),
        name: Some("pool".to_owned()),
        tgid: Some(WORKER_PID),
    };
    let tree = ProcessTree {
        threads: vec![thread],
    };
    vec![
        TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(CLEARED),
            first_packet_on_sequence: Some(true),
            interned_data: Some(interned()),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(BOOTTIME),
                stack_sample_defaults: Some(StackSampleDefaults {
                    source: Some("test".to_owned()),
                    primary_descriptor: Some(stack_sample::CounterDescriptor {
                        name: Some("cpu".to_owned()),
                        unit: Some(stack_sample::Unit::Nanoseconds as i32),
                    }),
                }),
                ..Default::default()
            }),
            data: Some(Data::ClockSnapshot(snapshot(0))),
            ..Default::default()
        },
        TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            data: Some(Data::ProcessTree(tree)),
            ..Default::default()
        },
        packet(220, (CORE_PID, CORE_PID + 1), 1, 1),
        packet(500, (CORE_PID, CORE_PID + 1), 2, 2),
        packet(510, (WORKER_PID, WORKER_PID + 1), 3, 4),
        TracePacket {
            data: Some(Data::StackSample(StackSample {
                unwind_error: Some("lost".to_owned()),
                ..of((WORKER_PID, WORKER_PID + 2), 3, 8)
            })),
            ..packet(520, (WORKER_PID, WORKER_PID + 2), 3, 8)
        },
    ]
}

fn packet(micros: u64, thread: (i32, i32), callstack: u64, millis: u64) -> TracePacket {
    TracePacket {
        timestamp: Some((START + micros) * 1000),
        trusted_packet_sequence_id: Some(SEQUENCE),
        sequence_flags: Some(NEEDS),
        data: Some(Data::StackSample(of(thread, callstack, millis))),
        ..Default::default()
    }
}

fn of((pid, tid): (i32, i32), callstack: u64, millis: u64) -> StackSample {
    StackSample {
        task_context: Some(stack_sample::TaskContext {
            pid: Some(pid as u32),
            tid: Some(tid as u32),
        }),
        callstack_iid: Some(callstack),
        primary_weight: Some(millis * 1_000_000),
        unwind_error: None,
    }
}

/// Three stacks: main > plan, main > [u8; 4]::rest, main > multiply.
fn interned() -> InternedData {
    let text = |iid, text: &str| InternedString {
        iid: Some(iid),
        str: Some(text.as_bytes().to_vec()),
    };
    let frame = |iid| Frame {
        iid: Some(iid),
        function_name_id: Some(iid),
        mapping_id: Some(1),
        rel_pc: Some(0x1000 * iid),
        source_path_iid: Some(1),
        line_number: Some(iid as u32),
    };
    let stack = |iid, frames: [u64; 2]| Callstack {
        iid: Some(iid),
        frame_ids: frames.to_vec(),
    };
    InternedData {
        function_names: vec![
            text(1, "main"),
            text(2, "plan"),
            text(3, "[u8; 4]::rest"),
            text(4, "multiply"),
        ],
        source_paths: vec![text(1, "main.rs")],
        mapping_paths: vec![text(1, "/bin/program")],
        build_ids: vec![text(1, "\u{1}\u{2}")],
        mappings: vec![Mapping {
            iid: Some(1),
            build_id: Some(1),
            start: Some(0x1000),
            end: Some(0x9000),
            path_string_ids: vec![1],
            ..Default::default()
        }],
        frames: (1..=4).map(frame).collect(),
        callstacks: vec![stack(1, [1, 2]), stack(2, [1, 3]), stack(3, [1, 4])],
        ..Default::default()
    }
}

/// The first sample.
pub(crate) fn sample(packets: &mut [TracePacket]) -> &mut StackSample {
    let mut samples = packets
        .iter_mut()
        .filter_map(|packet| match &mut packet.data {
            Some(Data::StackSample(sample)) => Some(sample),
            _ => None,
        });
    samples.next().unwrap()
}
