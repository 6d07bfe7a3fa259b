//! What packet sequences remember: interned texts and defaults, in file order.

use super::{
    names::Names,
    rule::{Rule, Violations},
    stacks::{Stacks, tells_counter},
};
use crate::{
    proto::{InternedData, InternedString, SequenceFlags, TracePacket, trace_packet::Data},
    timeline::{Name, Position},
};
use std::{collections::HashMap, fmt};

/// The tables of [`InternedData`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Table {
    Category,
    EventName,
    ArgName,
    ArgText,
    FunctionName,
    SourcePath,
    MappingPath,
    BuildId,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Table::Category => "category",
            Table::EventName => "event name",
            Table::ArgName => "argument name",
            Table::ArgText => "argument text",
            Table::FunctionName => "function name",
            Table::SourcePath => "source path",
            Table::MappingPath => "mapping path",
            Table::BuildId => "build id",
        })
    }
}

/// State of one sequence.
#[derive(Default)]
pub(super) struct Sequence {
    /// The file that it was seen in last.
    file: u32,
    state: State,
    interned: HashMap<(Table, u64), Name>,
    /// Clock of packets that name none.
    pub(super) clock: Option<u32>,
    /// Track of events that name none.
    pub(super) track: Option<u64>,
    pub(super) stacks: Stacks,
    /// The defaults say what a sample's weight is.
    pub(super) counts_samples: bool,
}

/// Whether what a sequence remembers can be relied on.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    NeverCleared,
    LostPackets,
    Valid,
}

impl Sequence {
    /// The text behind an iid.
    pub(super) fn text(&self, table: Table, iid: u64) -> Option<&Name> {
        self.interned.get(&(table, iid))
    }
}

/// All sequences, by id.
#[derive(Default)]
pub(super) struct Sequences(HashMap<u32, Sequence>);

impl Sequences {
    /// Takes in what the packet says about its sequence, and gives that
    /// sequence's state as the packet's own data sees it.
    pub(super) fn enter(
        &mut self,
        packet: &TracePacket,
        at: Position,
        names: &mut Names,
        out: &mut Violations,
    ) -> &Sequence {
        let id = packet.trusted_packet_sequence_id.unwrap_or(0);
        let flags = packet.sequence_flags.unwrap_or(0);
        let cleared = flags & SequenceFlags::IncrementalStateCleared as u32 != 0;
        let needs = flags & SequenceFlags::NeedsIncrementalState as u32 != 0;
        let dropped = packet.previous_packet_dropped.unwrap_or(0) != 0;

        if id == 0 && uses_sequence(packet) {
            out.add(Rule::SequenceId, at, || {
                "a packet that uses a sequence's state has no sequence id".to_owned()
            });
        }
        let is_new = !self.0.contains_key(&id);
        let sequence = self.0.entry(id).or_default();
        if id != 0 && (is_new || sequence.file != at.file) {
            if !is_new {
                out.add(Rule::SequenceShared, at, || {
                    format!("sequence {id} was used by an earlier file already")
                });
            }
            if !cleared {
                out.add(Rule::ClearedFirst, at, || {
                    format!(
                        "the first packet of sequence {id} in its file does not clear its state"
                    )
                });
            }
        }
        sequence.file = at.file;
        if cleared {
            sequence.interned.clear();
            sequence.stacks = Stacks::default();
            sequence.clock = None;
            sequence.track = None;
            sequence.counts_samples = false;
            sequence.state = State::Valid;
        } else if dropped {
            sequence.state = State::LostPackets;
            out.add(Rule::ClearedAfterDrop, at, || {
                format!("packets of sequence {id} were lost before this one, which does not clear its state")
            });
        } else if needs && id != 0 && !is_new && sequence.state != State::Valid {
            let (rule, what) = match sequence.state {
                State::LostPackets => (Rule::ClearedAfterDrop, "since packets were lost"),
                _ => (Rule::ClearedFirst, "before"),
            };
            out.add(rule, at, || {
                format!("sequence {id} needs a state that was not cleared {what}")
            });
        }
        if let Some(defaults) = &packet.trace_packet_defaults {
            sequence.clock = defaults.timestamp_clock_id;
            sequence.track = defaults
                .track_event_defaults
                .as_ref()
                .and_then(|d| d.track_uuid);
        }
        if let Some(counts) = tells_counter(packet) {
            sequence.counts_samples = counts;
        }
        if let Some(interned) = &packet.interned_data {
            sequence.intern(interned, at, names, out);
            sequence.intern_stacks(interned, at, out);
        }
        if !needs && !cleared && uses_state(packet, sequence) {
            out.add(Rule::NeedsState, at, || {
                format!("a packet of sequence {id} uses interned texts or defaults without saying that it needs them")
            });
        }
        sequence
    }
}

impl Sequence {
    fn intern(
        &mut self,
        data: &InternedData,
        at: Position,
        names: &mut Names,
        out: &mut Violations,
    ) {
        let categories = data
            .event_categories
            .iter()
            .map(|e| (Table::Category, e.iid, e.name.clone()));
        let event_names = data
            .event_names
            .iter()
            .map(|e| (Table::EventName, e.iid, e.name.clone()));
        let arg_names = data
            .debug_annotation_names
            .iter()
            .map(|e| (Table::ArgName, e.iid, e.name.clone()));
        let strings = [
            (Table::ArgText, &data.debug_annotation_string_values),
            (Table::FunctionName, &data.function_names),
            (Table::SourcePath, &data.source_paths),
            (Table::MappingPath, &data.mapping_paths),
            (Table::BuildId, &data.build_ids),
        ];
        let strings = strings
            .into_iter()
            .flat_map(|(table, strings)| strings.iter().map(move |string| (table, string)))
            .map(|(table, string): (Table, &InternedString)| {
                let text = string.str.as_deref().map(String::from_utf8_lossy);
                (table, string.iid, text.map(|text| text.into_owned()))
            });
        for (table, iid, text) in categories
            .chain(event_names)
            .chain(arg_names)
            .chain(strings)
        {
            let text = names.get(text.as_deref().unwrap_or_default());
            let iid = iid.unwrap_or(0);
            if iid == 0 {
                out.add(Rule::InternedOnce, at, || {
                    format!("{table} {text:?} is interned with iid 0")
                });
                continue;
            }
            let first = self
                .interned
                .entry((table, iid))
                .or_insert_with(|| text.clone());
            if *first != text {
                out.add(Rule::InternedOnce, at, || {
                    format!("{table} {iid} is {first:?} already, and stays so, not {text:?}")
                });
            }
        }
    }
}

/// The packet reads or changes what its sequence remembers.
fn uses_sequence(packet: &TracePacket) -> bool {
    packet.sequence_flags.unwrap_or(0) != 0
        || packet.interned_data.is_some()
        || packet.trace_packet_defaults.is_some()
        || packet.first_packet_on_sequence.is_some()
        || packet.previous_packet_dropped.is_some()
        || matches!(
            packet.data,
            Some(Data::TrackEvent(_) | Data::ClockSnapshot(_) | Data::StackSample(_))
        )
}

/// The packet's own data relies on what its sequence remembers.
fn uses_state(packet: &TracePacket, sequence: &Sequence) -> bool {
    if let Some(Data::StackSample(_)) = &packet.data {
        return true;
    }
    let Some(Data::TrackEvent(event)) = &packet.data else {
        return false;
    };
    event.name_iid.is_some()
        || !event.category_iids.is_empty()
        || !event.debug_annotations.is_empty()
        || (event.track_uuid.is_none() && sequence.track.is_some())
        || (packet.timestamp_clock_id.is_none() && sequence.clock.is_some())
}
