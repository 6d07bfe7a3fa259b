//! As in [`mutations`](crate::mutations), of traces with stack samples.

use crate::mutations::{Change::Packets, Mutation};
use crate::samples::{sample, samples};
use nano_trace::check::Rule;

/// Each of them breaks one rule.
pub const OF_SAMPLES: &[Mutation] = &[
    (
        Rule::SampleWhole,
        Packets(|files| {
            files.core.extend(samples());
            sample(&mut files.core).primary_weight = None;
        }),
        &[],
    ),
    (
        Rule::SampleWhole,
        Packets(|files| {
            let mut samples = samples();
            let defaults = samples[0].trace_packet_defaults.as_mut();
            defaults.unwrap().stack_sample_defaults = None;
            files.core.extend(samples);
        }),
        &[],
    ),
    (
        Rule::SampleProcess,
        Packets(|files| {
            files.core.extend(samples());
            let task = sample(&mut files.core).task_context.as_mut();
            task.unwrap().pid = Some(4711);
        }),
        &[],
    ),
    (
        Rule::InternedKnown,
        Packets(|files| {
            files.core.extend(samples());
            sample(&mut files.core).callstack_iid = Some(99);
        }),
        &[],
    ),
    (
        Rule::InternedKnown,
        Packets(|files| {
            let mut samples = samples();
            let told = samples[0].interned_data.as_mut().unwrap();
            told.mappings[0].build_id = Some(99);
            files.core.extend(samples);
        }),
        &[],
    ),
    (
        Rule::InternedOnce,
        Packets(|files| {
            let mut samples = samples();
            let told = samples[0].interned_data.as_mut().unwrap();
            let mut other = told.frames[0].clone();
            other.line_number = Some(7);
            told.frames.push(other);
            files.core.extend(samples);
        }),
        &[],
    ),
    (
        Rule::NeedsState,
        Packets(|files| {
            files.core.extend(samples());
            files.core.last_mut().unwrap().sequence_flags = None;
        }),
        &[],
    ),
];
