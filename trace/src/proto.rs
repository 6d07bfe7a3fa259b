//! The Perfetto messages that we write, and no others.
//!
//! Names and tags are those of Perfetto's `protos/perfetto/trace`. The format
//! is proto2: every field is optional, and repeated numbers are not packed.
//! Of a `oneof` only the branches that we write are listed; a reader of
//! foreign traces would need more, ours wants to notice them.

mod stacks;

pub use stacks::{
    Callstack, Frame, Mapping, ProcessTree, StackSample, StackSampleDefaults, process_tree,
    stack_sample,
};

/// A whole trace file: packets, one after another.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Trace {
    /// In file order, which decides interning and descriptors.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// One entry of a trace file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TracePacket {
    /// When, on the packet's clock.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// Which clock `timestamp` is on; the sequence's default if absent.
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    /// The sequence whose incremental state this packet reads or changes.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// Bits of [`SequenceFlags`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// Nothing of this sequence came before.
    #[prost(bool, optional, tag = "87")]
    pub first_packet_on_sequence: Option<bool>,
    /// How many packets of this sequence were lost right before this one.
    #[prost(uint32, optional, tag = "42")]
    pub previous_packet_dropped: Option<u32>,
    /// Texts that this and later packets of the sequence name by iid.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// What later packets of the sequence need not repeat.
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    /// What the packet says.
    #[prost(oneof = "trace_packet::Data", tags = "2, 6, 11, 60, 89, 126, 135")]
    pub data: Option<trace_packet::Data>,
}

/// Bits of [`TracePacket::sequence_flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SequenceFlags {
    /// Interned data and defaults of the sequence begin anew here.
    IncrementalStateCleared = 1,
    /// The packet means nothing without the sequence's interned data and defaults.
    NeedsIncrementalState = 2,
}

/// Parts of [`TracePacket`].
pub mod trace_packet {
    /// What a packet says.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Data {
        /// Names of threads.
        #[prost(message, tag = "2")]
        ProcessTree(super::ProcessTree),
        /// Several clocks, read at one moment.
        #[prost(message, tag = "6")]
        ClockSnapshot(super::ClockSnapshot),
        /// A slice's end, an instant or a counter's value.
        #[prost(message, tag = "11")]
        TrackEvent(super::TrackEvent),
        /// What a track is.
        #[prost(message, tag = "60")]
        TrackDescriptor(super::TrackDescriptor),
        /// Identity of the trace.
        #[prost(message, tag = "89")]
        TraceUuid(super::TraceUuid),
        /// Facts of the run.
        #[prost(message, tag = "126")]
        TraceAttributes(super::TraceAttributes),
        /// Where a thread was at one moment.
        #[prost(message, tag = "135")]
        StackSample(super::StackSample),
    }
}

/// 128 bits that tell a trace from any other.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TraceUuid {
    /// The upper half.
    #[prost(int64, optional, tag = "1")]
    pub msb: Option<i64>,
    /// The lower half.
    #[prost(int64, optional, tag = "2")]
    pub lsb: Option<i64>,
}

/// Facts of the run, shown in the trace's overview.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TraceAttributes {
    /// Key and value pairs.
    #[prost(message, repeated, tag = "1")]
    pub attribute: Vec<trace_attributes::Attribute>,
}

/// Parts of [`TraceAttributes`].
pub mod trace_attributes {
    /// One fact.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Attribute {
        /// Its name.
        #[prost(string, optional, tag = "1")]
        pub key: Option<String>,
        /// Its value.
        #[prost(oneof = "attribute::Value", tags = "2, 3")]
        pub value: Option<attribute::Value>,
    }

    /// Parts of [`Attribute`].
    pub mod attribute {
        /// A fact's value.
        #[derive(Clone, PartialEq, prost::Oneof)]
        pub enum Value {
            /// A number.
            #[prost(int64, tag = "2")]
            Long(i64),
            /// A text.
            #[prost(string, tag = "3")]
            String(String),
        }
    }
}

/// Defaults of a packet sequence.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TracePacketDefaults {
    /// The clock of packets that name none.
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    /// Defaults of its track events.
    #[prost(message, optional, tag = "11")]
    pub track_event_defaults: Option<TrackEventDefaults>,
    /// Defaults of its stack samples.
    #[prost(message, optional, tag = "100")]
    pub stack_sample_defaults: Option<StackSampleDefaults>,
}

/// Defaults of a packet sequence's track events.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackEventDefaults {
    /// The track of events that name none.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
}

/// Texts that events name by number. An iid is nonzero, means one text until
/// the sequence is cleared, and is known only after its packet in file order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InternedData {
    /// For [`TrackEvent::category_iids`].
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<EventCategory>,
    /// For [`TrackEvent::name_iid`].
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<EventName>,
    /// For [`DebugAnnotation::name_iid`].
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<DebugAnnotationName>,
    /// For [`debug_annotation::Value::StringIid`].
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<InternedString>,
    /// For [`Frame::function_name_id`].
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<InternedString>,
    /// For [`Frame::source_path_iid`].
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<InternedString>,
    /// For [`Mapping::path_string_ids`].
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<InternedString>,
    /// For [`Mapping::build_id`].
    #[prost(message, repeated, tag = "16")]
    pub build_ids: Vec<InternedString>,
    /// For [`Frame::mapping_id`].
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
    /// For [`Callstack::frame_ids`].
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    /// For [`StackSample::callstack_iid`].
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
}

/// An interned category.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EventCategory {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Its text.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// An interned name of an event.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EventName {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Its text.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// An interned name of an argument.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugAnnotationName {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Its text.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// An interned value of an argument.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InternedString {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Its text, in UTF-8.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub str: Option<Vec<u8>>,
}

/// Several clocks, read at one moment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClockSnapshot {
    /// The clocks.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<clock_snapshot::Clock>,
    /// The clock that the whole trace is shown on.
    #[prost(enumeration = "BuiltinClock", optional, tag = "2")]
    pub primary_trace_clock: Option<i32>,
}

/// Parts of [`ClockSnapshot`].
pub mod clock_snapshot {
    /// One clock's reading.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Clock {
        /// A [`BuiltinClock`](super::BuiltinClock), or 64 to 127 for a clock of the packet's sequence alone.
        #[prost(uint32, optional, tag = "1")]
        pub clock_id: Option<u32>,
        /// Its reading, in `unit_multiplier_ns` (nanoseconds if absent).
        #[prost(uint64, optional, tag = "2")]
        pub timestamp: Option<u64>,
        /// Timestamps on this clock are differences to the one before.
        #[prost(bool, optional, tag = "3")]
        pub is_incremental: Option<bool>,
        /// Nanoseconds in one unit of this clock.
        #[prost(uint64, optional, tag = "4")]
        pub unit_multiplier_ns: Option<u64>,
    }
}

/// Clocks with a fixed meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum BuiltinClock {
    /// None.
    Unknown = 0,
    /// `CLOCK_REALTIME`.
    Realtime = 1,
    /// `CLOCK_MONOTONIC`.
    Monotonic = 3,
    /// `CLOCK_BOOTTIME`.
    Boottime = 6,
}

/// What a track is. Uuids are global over all files that are put together.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackDescriptor {
    /// The track's identity; 0 describes the root of all tracks.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// The track above this one.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// What the user reads at its left.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// It is a process.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// It is a thread.
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    /// It is a counter; to be said before its first value.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    /// How the tracks below it are ordered.
    #[prost(enumeration = "ChildTracksOrdering", optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// Its place among its siblings, where their parent's ordering is explicit.
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
    /// What the user reads on demand.
    #[prost(string, optional, tag = "14")]
    pub description: Option<String>,
    /// Whether it may share a row with its siblings.
    #[prost(enumeration = "SiblingMergeBehavior", optional, tag = "15")]
    pub sibling_merge_behavior: Option<i32>,
    /// How processes are ordered; only in the descriptor with uuid 0.
    #[prost(enumeration = "ProcessOrdering", optional, tag = "19")]
    pub process_ordering: Option<i32>,
    /// How threads are ordered; only in the descriptor with uuid 0.
    #[prost(enumeration = "ThreadOrdering", optional, tag = "20")]
    pub thread_ordering: Option<i32>,
}

/// Orders of a track's children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ChildTracksOrdering {
    /// Whatever the viewer does by itself.
    Unknown = 0,
    /// By name.
    Lexicographic = 1,
    /// By their first event.
    Chronological = 2,
    /// By [`TrackDescriptor::sibling_order_rank`].
    Explicit = 3,
}

/// Whether tracks of one parent share a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum SiblingMergeBehavior {
    /// Whatever the viewer does by itself.
    Unspecified = 0,
    /// Those with one name do.
    ByTrackName = 1,
    /// It shares with none.
    None = 2,
}

/// Orders of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ProcessOrdering {
    /// Whatever the viewer does by itself.
    Unspecified = 0,
    /// By [`TrackDescriptor::sibling_order_rank`].
    Explicit = 1,
}

/// Orders of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ThreadOrdering {
    /// Whatever the viewer does by itself.
    Unspecified = 0,
    /// By [`TrackDescriptor::sibling_order_rank`].
    Explicit = 1,
}

/// A process behind a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessDescriptor {
    /// Its number.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Its command line.
    #[prost(string, repeated, tag = "2")]
    pub cmdline: Vec<String>,
    /// What the user reads.
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
    /// Its start, in nanoseconds of the trace's clock.
    #[prost(int64, optional, tag = "7")]
    pub start_timestamp_ns: Option<i64>,
    /// What the user reads beside the name.
    #[prost(string, repeated, tag = "8")]
    pub process_labels: Vec<String>,
}

/// A thread behind a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ThreadDescriptor {
    /// Number of its process.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Its number.
    #[prost(int64, optional, tag = "2")]
    pub tid: Option<i64>,
    /// What the user reads.
    #[prost(string, optional, tag = "5")]
    pub thread_name: Option<String>,
}

/// A counter behind a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CounterDescriptor {
    /// What one unit is.
    #[prost(enumeration = "counter_descriptor::Unit", optional, tag = "3")]
    pub unit: Option<i32>,
    /// Values are multiplied by it.
    #[prost(int64, optional, tag = "4")]
    pub unit_multiplier: Option<i64>,
    /// Values are differences to the one before on the same sequence.
    #[prost(bool, optional, tag = "5")]
    pub is_incremental: Option<bool>,
    /// Name of a unit that [`Unit`](counter_descriptor::Unit) lacks.
    #[prost(string, optional, tag = "6")]
    pub unit_name: Option<String>,
}

/// Parts of [`CounterDescriptor`].
pub mod counter_descriptor {
    /// What a counter counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
    #[repr(i32)]
    pub enum Unit {
        /// Unsaid.
        Unspecified = 0,
        /// Nanoseconds.
        TimeNs = 1,
        /// Things.
        Count = 2,
        /// Bytes.
        SizeBytes = 3,
    }
}

/// Something that happens on a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackEvent {
    /// Its categories, by iid.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    /// Its arguments.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// What it is; an event without a type is dropped by readers.
    #[prost(enumeration = "track_event::Type", optional, tag = "9")]
    pub r#type: Option<i32>,
    /// Its name, by iid.
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    /// Its track; the sequence's default if absent.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// Arrows that go through it: events with one id are joined in order of time.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    /// Arrows that end in it.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
    /// A counter's value.
    #[prost(oneof = "track_event::CounterValueField", tags = "30, 44")]
    pub counter_value_field: Option<track_event::CounterValueField>,
}

/// Parts of [`TrackEvent`].
pub mod track_event {
    /// What happens.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
    #[repr(i32)]
    pub enum Type {
        /// Nothing: never written.
        Unspecified = 0,
        /// A slice begins.
        SliceBegin = 1,
        /// The innermost slice of the track ends.
        SliceEnd = 2,
        /// A moment.
        Instant = 3,
        /// A counter has a new value.
        Counter = 4,
    }

    /// A counter's value.
    #[derive(Clone, Copy, PartialEq, prost::Oneof)]
    pub enum CounterValueField {
        /// A whole number.
        #[prost(int64, tag = "30")]
        CounterValue(i64),
        /// A real number.
        #[prost(double, tag = "44")]
        DoubleCounterValue(f64),
    }
}

/// One argument of an event.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugAnnotation {
    /// Its name, by iid.
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    /// Its value.
    #[prost(oneof = "debug_annotation::Value", tags = "2, 3, 4, 6, 17")]
    pub value: Option<debug_annotation::Value>,
}

/// Parts of [`DebugAnnotation`].
pub mod debug_annotation {
    /// An argument's value.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        /// Yes or no.
        #[prost(bool, tag = "2")]
        Bool(bool),
        /// A number that is never negative.
        #[prost(uint64, tag = "3")]
        Uint(u64),
        /// A number.
        #[prost(int64, tag = "4")]
        Int(i64),
        /// A text.
        #[prost(string, tag = "6")]
        String(String),
        /// A text, by iid.
        #[prost(uint64, tag = "17")]
        StringIid(u64),
    }
}
