//! The rules, and what breaks them.

use crate::timeline::Position;
use std::fmt;

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident = $name:literal;)*) => {
        /// What a trace must obey. All of these make a viewer drop events,
        /// misplace them or show something false, most of them silently.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule { $($(#[$doc])* $rule,)* }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Rule] = &[$(Rule::$rule,)*];

            /// Its name in messages.
            pub const fn name(self) -> &'static str { match self { $(Rule::$rule => $name,)* } }
        }
    };
}

rules! {
    // The file.
    /// The file ends with a whole packet: what follows a cut one in a
    /// concatenation cannot be read.
    TailCut = "tail-cut";
    /// The file does not end with zeros.
    TailZeros = "tail-zeros";
    /// Everything in the file is a packet.
    NotAPacket = "not-a-packet";
    /// Packets hold only fields that we write.
    UnknownField = "unknown-field";

    // Packet sequences.
    /// A packet that uses or changes a sequence's state names the sequence.
    SequenceId = "sequence-id";
    /// No sequence goes on in a second file.
    SequenceShared = "sequence-shared";
    /// The first packet of a sequence clears its state.
    ClearedFirst = "cleared-first";
    /// Lost packets are followed by a clearing one.
    ClearedAfterDrop = "cleared-after-drop";
    /// A packet that uses interned data or defaults says that it needs them.
    NeedsState = "needs-state";
    /// An iid was interned before it is used.
    InternedKnown = "interned-known";
    /// An iid means one text until the sequence is cleared, and is not 0.
    InternedOnce = "interned-once";
    /// An event's track is named by it or by the defaults since the last clearing.
    DefaultsRestated = "defaults-restated";

    // Clocks.
    /// A snapshot reads BOOTTIME, MONOTONIC, REALTIME and a clock of its own sequence.
    SnapshotClocks = "snapshot-clocks";
    /// Clocks read by the same set of snapshots never go back in file order.
    SnapshotMonotonic = "snapshot-monotonic";
    /// Every snapshot names BOOTTIME as the trace's clock.
    PrimaryClock = "primary-clock";
    /// An event's clock was read by a snapshot before; of its own sequence, if it is 64 or above.
    ClockKnown = "clock-known";
    /// An event has a time, below 2^63.
    TimestampRange = "timestamp-range";

    // Tracks.
    /// A descriptor has a uuid, and one uuid is one track.
    UuidUnique = "uuid-unique";
    /// One process, and one thread, is one track.
    ProcessUnique = "process-unique";
    /// Every track that has events is described.
    TrackDescribed = "track-described";
    /// Every track's ancestors are described, and the topmost is a process.
    ParentDescribed = "parent-described";
    /// A counter is described before its first value.
    CounterDescribedFirst = "counter-described-first";
    /// Counters hold values, and other tracks none.
    CounterTrack = "counter-track";

    // Events.
    /// An event has a type.
    EventType = "event-type";
    /// A slice's begin and an instant have a name and a category.
    EventName = "event-name";
    /// An event of a counter has a value.
    CounterHasValue = "counter-value";

    // Samples.
    /// A sample has a thread, a stack, a weight, and defaults that say what that counts.
    SampleWhole = "sample-whole";
    /// The process of a sample is described.
    SampleProcess = "sample-process";

    // Slices.
    /// An end has a begin.
    EndWithoutBegin = "end-without-begin";
    /// A slice ends, unless its process says that its trace was cut short.
    SliceOpen = "slice-open";
    /// Slices of a track nest.
    SliceOverlap = "slice-overlap";
    /// Of events at the same moment an end stands before a begin.
    EqualStamps = "equal-stamps";
    /// At most 512 slices are open on a track.
    Depth = "depth";

    // Flows.
    /// A flow has two ends at least.
    FlowLone = "flow-lone";
    /// A flow between a step and a rank has one end in each.
    FlowPair = "flow-pair";
    /// No flow runs backwards in time.
    FlowBackwards = "flow-backwards";
    /// A flow is not ended by `terminating_flow_ids`: under clock skew the arrow is lost.
    FlowTerminating = "flow-terminating";
    /// An answered request's flow went through frontend, core and worker, and came back.
    RequestWay = "request-way";

    // The catalogue.
    /// Names and categories are those of the catalogue.
    EventKnown = "event-known";
    /// Arguments are those of the event in the catalogue, each once.
    ArgumentKnown = "argument-known";
    /// Arguments have the catalogue's kinds.
    ArgumentKind = "argument-kind";
    /// Events lie on the kind of track that the catalogue says.
    TrackKind = "track-kind";
    /// Parts of a whole lie directly in it, and wholes in nothing.
    Nesting = "nesting";
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One place where a rule is broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Where.
    pub at: Position,
    /// What is there.
    pub what: String,
}

/// Violations in the order they were found. Of each rule only the first
/// [`Violations::KEPT`] are kept, so that a large broken file stays readable.
#[derive(Debug, Default)]
pub struct Violations {
    kept: Vec<Violation>,
    counts: std::collections::BTreeMap<Rule, usize>,
    excused: &'static [Rule],
}

impl Violations {
    /// How many of each rule are kept.
    pub const KEPT: usize = 20;

    /// From now on these rules are not judged.
    pub(super) fn excuse(&mut self, rules: &'static [Rule]) {
        self.excused = rules;
    }

    /// Adds one; `what` is only asked for if it is kept.
    pub(super) fn add(&mut self, rule: Rule, at: Position, what: impl FnOnce() -> String) {
        if self.excused.contains(&rule) {
            return;
        }
        let count = self.counts.entry(rule).or_default();
        *count += 1;
        if *count <= Self::KEPT {
            let what = what();
            self.kept.push(Violation { rule, at, what });
        }
    }

    /// Those that are kept.
    pub fn kept(&self) -> &[Violation] {
        &self.kept
    }

    /// How often each broken rule is broken.
    pub fn counts(&self) -> &std::collections::BTreeMap<Rule, usize> {
        &self.counts
    }

    /// No rule is broken.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}
