//! From samples to the packets of one session's file.
//!
//! Invariants of what is written:
//! - all samples of a process are one packet sequence of their own, which opens
//!   with CLEARED, its defaults and a clock snapshot, and tells a text, mapping,
//!   frame or stack before it names it;
//! - frames are one for each line of a function, not for each address: a line's
//!   first address stands for all of them, or no two samples would be alike;
//! - what is remembered is bounded: when it is too much, the sequence begins anew.

use super::Sample;
use crate::encoder::clock_snapshot;
use crate::proto::{self, InternedData, SequenceFlags, TracePacket, trace_packet::Data};
use crate::symbols::{Frame, Module};
use prost::Message;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct SampleEncoder {
    pid: u32,
    sequence_id: u32,
    was_opened: bool,
    is_open: bool,
    texts: Iids<(Text, Arc<str>)>,
    /// By a module's first address.
    mappings: Iids<u64>,
    frames: Iids<Line>,
    /// By where their frames lie in memory.
    places: HashMap<usize, Place>,
    callstacks: HashMap<Box<[u64]>, u64>,
    /// Threads by number, with the name that was told.
    threads: HashMap<u32, Arc<str>>,
    callstack: Vec<u64>,
}

/// A line of a function: its name, its file and line, its module's first address.
type Line = (Arc<str>, Option<Arc<str>>, u32, Option<u64>);

/// A place that was told: most samples are of the same ones.
#[derive(Debug)]
struct Place {
    /// Kept, so that no other place comes to lie where it does.
    _frames: Arc<[Frame]>,
    /// The outermost first.
    iids: Box<[u64]>,
}

/// The tables of texts that samples name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Text {
    Function,
    SourcePath,
    MappingPath,
}

/// Stacks that are remembered, at most; frames are fewer in any program.
const MAX_CALLSTACKS: usize = if cfg!(test) { 64 } else { 1 << 15 };
const MAX_FRAMES: usize = 1 << 16;
/// Threads that are remembered, those that are gone too.
const MAX_THREADS: usize = 1 << 12;

impl SampleEncoder {
    /// An encoder of a process's samples, whose sequence is no one else's.
    pub fn new(pid: u32, sequence_id: u32) -> SampleEncoder {
        SampleEncoder {
            pid,
            sequence_id,
            was_opened: false,
            is_open: false,
            texts: Iids::default(),
            mappings: Iids::default(),
            frames: Iids::default(),
            places: HashMap::new(),
            callstacks: HashMap::new(),
            threads: HashMap::new(),
            callstack: Vec::new(),
        }
    }

    /// Appends a sample's packets, in the framing of a trace file.
    pub fn encode(&mut self, sample: &Sample<'_>, out: &mut Vec<u8>) {
        let is_much = self.callstacks.len() >= MAX_CALLSTACKS
            || self.frames.len() >= MAX_FRAMES
            || self.places.len() >= MAX_FRAMES
            || self.threads.len() >= MAX_THREADS;
        if is_much {
            self.clear();
        }
        if !self.is_open {
            self.open(out);
        }
        self.tell_thread(sample, out);
        let mut told = InternedData::default();
        let callstack_iid = self.callstack(sample, &mut told);
        let error = sample.end.error().map(str::to_owned);
        let task = proto::stack_sample::TaskContext {
            pid: Some(self.pid),
            tid: Some(sample.tid),
        };
        self.append(
            TracePacket {
                timestamp: Some(sample.time_ns),
                sequence_flags: Some(SequenceFlags::NeedsIncrementalState as u32),
                interned_data: (told != InternedData::default()).then_some(told),
                data: Some(Data::StackSample(proto::StackSample {
                    task_context: Some(task),
                    callstack_iid: Some(callstack_iid),
                    unwind_error: error,
                    primary_weight: Some(sample.weight_ns),
                })),
                ..TracePacket::default()
            },
            out,
        );
    }

    fn clear(&mut self) {
        self.is_open = false;
        self.texts = Iids::default();
        self.mappings = Iids::default();
        self.frames = Iids::default();
        self.places.clear();
        self.callstacks.clear();
        self.threads.clear();
    }

    fn open(&mut self, out: &mut Vec<u8>) {
        let descriptor = proto::stack_sample::CounterDescriptor {
            name: Some("cpu".to_owned()),
            unit: Some(proto::stack_sample::Unit::Nanoseconds as i32),
        };
        let first = !std::mem::replace(&mut self.was_opened, true);
        self.is_open = true;
        self.append(
            TracePacket {
                sequence_flags: Some(SequenceFlags::IncrementalStateCleared as u32),
                first_packet_on_sequence: first.then_some(true),
                trace_packet_defaults: Some(proto::TracePacketDefaults {
                    timestamp_clock_id: Some(proto::BuiltinClock::Boottime as u32),
                    track_event_defaults: None,
                    stack_sample_defaults: Some(proto::StackSampleDefaults {
                        source: Some("nano-serve".to_owned()),
                        primary_descriptor: Some(descriptor),
                    }),
                }),
                data: Some(Data::ClockSnapshot(clock_snapshot())),
                ..TracePacket::default()
            },
            out,
        );
    }

    /// Tells a thread's name, once. Not by a track: the recorder describes
    /// those, and the first word about a track counts.
    fn tell_thread(&mut self, sample: &Sample<'_>, out: &mut Vec<u8>) {
        let known = self.threads.get(&sample.tid);
        if known.is_some_and(|name| name == sample.thread) {
            return;
        }
        self.threads.insert(sample.tid, Arc::clone(sample.thread));
        let thread = proto::process_tree::Thread {
            tid: Some(sample.tid as i32),
            name: Some(sample.thread.to_string()),
            tgid: Some(self.pid as i32),
        };
        let tree = proto::ProcessTree {
            threads: vec![thread],
        };
        self.append(
            TracePacket {
                data: Some(Data::ProcessTree(tree)),
                ..TracePacket::default()
            },
            out,
        );
    }

    fn callstack(&mut self, sample: &Sample<'_>, told: &mut InternedData) -> u64 {
        let mut stack = std::mem::take(&mut self.callstack);
        stack.clear();
        for place in sample.stack.iter().rev() {
            stack.extend_from_slice(self.place(place, told));
        }
        let next = self.callstacks.len() as u64 + 1;
        let known = self.callstacks.get(stack.as_slice()).copied();
        if known.is_none() {
            self.callstacks.insert(stack.as_slice().into(), next);
            told.callstacks.push(proto::Callstack {
                iid: Some(next),
                frame_ids: stack.clone(),
            });
        }
        self.callstack = stack;
        known.unwrap_or(next)
    }

    /// The frames of a place, the outermost first.
    fn place(&mut self, place: &Arc<[Frame]>, told: &mut InternedData) -> &[u64] {
        let key = place.as_ptr() as usize;
        if !self.places.contains_key(&key) {
            let frames = place.iter().rev();
            let told = Place {
                _frames: Arc::clone(place),
                iids: frames.map(|frame| self.frame(frame, told)).collect(),
            };
            self.places.insert(key, told);
        }
        &self.places[&key].iids
    }

    fn frame(&mut self, frame: &Frame, told: &mut InternedData) -> u64 {
        let module = frame.module.as_ref();
        let line = (
            Arc::clone(&frame.function),
            frame.file.clone(),
            frame.line,
            module.map(|module| module.range().start),
        );
        let (iid, is_new) = self.frames.iid(line);
        if is_new {
            let file = frame.file.as_ref();
            let packet = proto::Frame {
                iid: Some(iid),
                function_name_id: Some(self.text(Text::Function, &frame.function, told)),
                mapping_id: module.map(|module| self.mapping(module, told)),
                rel_pc: Some(frame.address),
                source_path_iid: file.map(|file| self.text(Text::SourcePath, file, told)),
                line_number: (frame.line > 0).then_some(frame.line),
            };
            told.frames.push(packet);
        }
        iid
    }

    fn mapping(&mut self, module: &Module, told: &mut InternedData) -> u64 {
        let (range, offset) = (module.range(), module.file_offset());
        let (iid, is_new) = self.mappings.iid(range.start);
        if is_new {
            // One for each mapping that has one.
            let has_build_id = !module.build_id().is_empty();
            if has_build_id {
                told.build_ids.push(proto::InternedString {
                    iid: Some(iid),
                    str: Some(module.build_id().to_vec()),
                });
            }
            let path = module.path().into();
            let packet = proto::Mapping {
                iid: Some(iid),
                build_id: has_build_id.then_some(iid),
                exact_offset: Some(offset),
                start_offset: Some(offset),
                start: Some(range.start),
                end: Some(range.end),
                load_bias: Some(module.to_file(range.start).wrapping_sub(offset)),
                path_string_ids: vec![self.text(Text::MappingPath, &path, told)],
            };
            told.mappings.push(packet);
        }
        iid
    }

    fn text(&mut self, kind: Text, text: &Arc<str>, told: &mut InternedData) -> u64 {
        let (iid, is_new) = self.texts.iid((kind, Arc::clone(text)));
        if is_new {
            let table = match kind {
                Text::Function => &mut told.function_names,
                Text::SourcePath => &mut told.source_paths,
                Text::MappingPath => &mut told.mapping_paths,
            };
            table.push(proto::InternedString {
                iid: Some(iid),
                str: Some(text.as_bytes().to_vec()),
            });
        }
        iid
    }

    fn append(&self, packet: TracePacket, out: &mut Vec<u8>) {
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(self.sequence_id),
            ..packet
        };
        out.extend(
            proto::Trace {
                packet: vec![packet],
            }
            .encode_to_vec(),
        );
    }
}

/// Numbers from 1 on, for things in the order in which they come.
#[derive(Debug)]
struct Iids<K>(HashMap<K, u64>);

impl<K> Default for Iids<K> {
    fn default() -> Iids<K> {
        Iids(HashMap::new())
    }
}

impl<K: Eq + Hash> Iids<K> {
    /// The number, and whether it is new.
    fn iid(&mut self, key: K) -> (u64, bool) {
        let next = self.0.len() as u64 + 1;
        let iid = *self.0.entry(key).or_insert(next);
        (iid, iid == next)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{OpenSlices, Rule, check};
    use crate::read::Source;
    use crate::symbols::{StackEnd, Symbols};

    fn sample<'a>(time_ns: u64, thread: &'a Arc<str>, stack: &'a [Arc<[Frame]>]) -> Sample<'a> {
        Sample {
            time_ns,
            tid: 78,
            thread,
            weight_ns: 10_010_010,
            stack,
            end: StackEnd::Root,
        }
    }

    fn shown(bytes: Vec<u8>) -> crate::check::Report {
        check(&[Source::bytes("samples", bytes)], &OpenSlices::None).unwrap()
    }

    #[test]
    fn samples_show_with_their_stacks_and_threads() {
        let mut symbols = Symbols::new();
        let mut encoder = SampleEncoder::new(77, 5);
        let mut bytes = Vec::new();
        let mut at = |address: usize| symbols.frames(address as u64);
        let here = at(SampleEncoder::new as fn(u32, u32) -> SampleEncoder as usize);
        let there = at(Symbols::new as fn() -> Symbols as usize);
        let nowhere = at(3);
        let (thread, whole) = ("worker".into(), [here, Arc::clone(&there)]);
        let now = crate::clock::boottime_ns();
        encoder.encode(&sample(now, &thread, &whole), &mut bytes);
        let first = bytes.len();
        encoder.encode(&sample(now + 1, &thread, &whole), &mut bytes);
        let again = bytes.len() - first;
        assert!(again < 50, "{again} bytes for a stack that is known");
        let cut = Sample {
            end: StackEnd::Lost,
            ..sample(now + 2, &thread, std::slice::from_ref(&nowhere))
        };
        encoder.encode(&cut, &mut bytes);

        let report = shown(bytes);
        // No recorder has described the process.
        let broken: Vec<_> = report.violations.counts().keys().collect();
        assert_eq!(broken, [&Rule::SampleProcess], "{:?}", report.lines());
        let samples = &report.timeline.samples;
        let stack: Vec<&str> = samples[0].stack.iter().map(|name| &**name).collect();
        assert_eq!(stack[0], &*there.last().unwrap().function);
        assert!(
            stack.contains(&"nano_trace::sampler::encode::SampleEncoder::new"),
            "{stack:?}"
        );
        assert_eq!(samples[0].stack, samples[1].stack);
        assert_eq!((samples[0].pid, samples[0].tid), (77, 78));
        assert_eq!((samples[1].time, samples[1].weight), (now + 1, 10_010_010));
        assert_eq!((samples[1].is_whole, samples[2].is_whole), (true, false));
        assert_eq!(&*samples[2].stack[0], "[unknown]");
        assert_eq!(report.timeline.thread_names[&(77, 78)], "worker");
    }

    #[test]
    fn a_sequence_that_remembers_too_much_begins_anew() {
        let mut symbols = Symbols::new();
        let mut encoder = SampleEncoder::new(77, 5);
        let mut bytes = Vec::new();
        let here = SampleEncoder::new as fn(u32, u32) -> SampleEncoder as usize as u64;
        let here = symbols.frames(here);
        let thread = "worker".into();
        let now = crate::clock::boottime_ns();
        let count = 3 * MAX_CALLSTACKS + 3;
        for n in 0..count {
            // Every one deeper than the last.
            let stack = vec![Arc::clone(&here); n + 1];
            encoder.encode(&sample(now + n as u64, &thread, &stack), &mut bytes);
            assert!(encoder.callstacks.len() <= MAX_CALLSTACKS);
        }
        let report = shown(bytes);
        let broken: Vec<_> = report.violations.counts().keys().collect();
        assert_eq!(broken, [&Rule::SampleProcess], "{:?}", report.lines());
        let samples = &report.timeline.samples;
        assert_eq!(samples.len(), count);
        let once = here.len();
        for (n, sample) in samples.iter().enumerate() {
            assert_eq!(sample.stack.len(), once * (n + 1));
        }
    }
}
