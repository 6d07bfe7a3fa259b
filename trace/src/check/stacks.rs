//! Stacks that samples name: functions, frames and callstacks of a sequence.

use super::{
    rule::{Rule, Violations},
    sequences::{Sequence, Table},
};
use crate::{
    proto::{Callstack, Frame, InternedData, Mapping, StackSample, TracePacket},
    timeline::{CpuSample, Name, Position},
};
use std::{collections::HashMap, sync::Arc};

/// What a sequence remembers of them, by iid.
#[derive(Default)]
pub(super) struct Stacks {
    mappings: HashMap<u64, Mapping>,
    frames: HashMap<u64, (Frame, Name)>,
    callstacks: HashMap<u64, (Callstack, Arc<[Name]>)>,
}

impl Sequence {
    /// Takes in mappings, frames and callstacks; the texts are there already.
    pub(super) fn intern_stacks(
        &mut self,
        data: &InternedData,
        at: Position,
        out: &mut Violations,
    ) {
        for mapping in &data.mappings {
            let build_id = mapping.build_id.map(|iid| (Table::BuildId, iid));
            let paths = mapping.path_string_ids.iter();
            let texts = build_id
                .into_iter()
                .chain(paths.map(|&iid| (Table::MappingPath, iid)));
            for (table, iid) in texts {
                self.expect_text(table, iid, at, out);
            }
            let iid = mapping.iid.unwrap_or(0);
            let first = self.stacks.mappings.entry(iid).or_insert(mapping.clone());
            expect_once("mapping", iid, first == mapping, at, out);
        }
        for frame in &data.frames {
            let function = frame.function_name_id.unwrap_or(0);
            let name = self.expect_text(Table::FunctionName, function, at, out);
            if let Some(iid) = frame.source_path_iid {
                self.expect_text(Table::SourcePath, iid, at, out);
            }
            if let Some(iid) = frame.mapping_id {
                let is_known = self.stacks.mappings.contains_key(&iid);
                expect_known("mapping", iid, is_known, at, out);
            }
            let iid = frame.iid.unwrap_or(0);
            let new = (frame.clone(), name.unwrap_or_default());
            let first = self.stacks.frames.entry(iid).or_insert(new);
            expect_once("frame", iid, first.0 == *frame, at, out);
        }
        for callstack in &data.callstacks {
            let mut names = Vec::new();
            for &iid in &callstack.frame_ids {
                let frame = self.stacks.frames.get(&iid);
                expect_known("frame", iid, frame.is_some(), at, out);
                names.extend(frame.map(|(_, name)| name.clone()));
            }
            let iid = callstack.iid.unwrap_or(0);
            let new = (callstack.clone(), names.into());
            let first = self.stacks.callstacks.entry(iid).or_insert(new);
            expect_once("callstack", iid, first.0 == *callstack, at, out);
        }
    }

    fn expect_text(
        &self,
        table: Table,
        iid: u64,
        at: Position,
        out: &mut Violations,
    ) -> Option<Name> {
        let text = self.text(table, iid);
        if text.is_none() {
            out.add(Rule::InternedKnown, at, || {
                format!("{table} {iid} was not interned before")
            });
        }
        text.cloned()
    }

    /// A sample at time 0; `None` if readers could not show it.
    pub(super) fn sample(
        &self,
        sample: &StackSample,
        at: Position,
        out: &mut Violations,
    ) -> Option<CpuSample> {
        let task = sample.task_context.unwrap_or_default();
        let weight = sample.primary_weight.unwrap_or(0);
        let (Some(pid), Some(tid), Some(callstack), true, true) = (
            task.pid,
            task.tid,
            sample.callstack_iid,
            weight > 0,
            self.counts_samples,
        ) else {
            out.add(Rule::SampleWhole, at, || {
                "a sample lacks its thread, its stack, its weight or what that counts".to_owned()
            });
            return None;
        };
        let stack = self.stacks.callstacks.get(&callstack);
        expect_known("callstack", callstack, stack.is_some(), at, out);
        Some(CpuSample {
            time: 0,
            pid: pid as i32,
            tid: i64::from(tid),
            weight,
            stack: Arc::clone(&stack?.1),
            is_whole: sample.unwind_error.is_none(),
            at,
        })
    }
}

/// The default of a sequence says what samples count.
pub(super) fn tells_counter(packet: &TracePacket) -> Option<bool> {
    let defaults = packet.trace_packet_defaults.as_ref()?;
    let samples = defaults.stack_sample_defaults.as_ref();
    let descriptor = samples.and_then(|samples| samples.primary_descriptor.as_ref());
    Some(
        descriptor.is_some_and(|descriptor| descriptor.name.is_some() && descriptor.unit.is_some()),
    )
}

fn expect_known(what: &str, iid: u64, is_known: bool, at: Position, out: &mut Violations) {
    if !is_known {
        out.add(Rule::InternedKnown, at, || {
            format!("{what} {iid} was not interned before")
        });
    }
}

fn expect_once(what: &str, iid: u64, is_same: bool, at: Position, out: &mut Violations) {
    if iid == 0 || !is_same {
        out.add(Rule::InternedOnce, at, || {
            format!("{what} {iid} is another already, and stays so, or has no iid")
        });
    }
}
