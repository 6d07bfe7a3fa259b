//! Bytes of a TracePacket with a TrackEvent, written directly.
//!
//! Almost every packet is one of these, and building a `prost` message for
//! each would cost the writer several allocations. All other packets are
//! `prost`'s. A test holds these bytes against `prost`'s for the same message.

use crate::interning::CLIPPED;
use crate::proto::track_event::Type;

/// One TrackEvent in its packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventPacket<'a> {
    pub(crate) timestamp: u64,
    pub(crate) sequence_id: u32,
    pub(crate) kind: Type,
    /// Iids of category and name.
    pub(crate) name: Option<(u64, u64)>,
    pub(crate) args: &'a [Arg],
    pub(crate) texts: &'a [(u64, String)],
    /// `None`: the sequence's default track.
    pub(crate) track: Option<u64>,
    pub(crate) counter: Option<u64>,
    pub(crate) flow_ids: &'a [u64],
    /// The slice goes on beyond its session on this side.
    pub(crate) clipped: bool,
}

/// One argument: iid of its name, and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arg {
    pub(crate) name: u64,
    pub(crate) value: ArgValue,
}

/// An argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgValue {
    Uint(u64),
    /// An interned text.
    Label(u64),
}

/// SEQ_NEEDS_INCREMENTAL_STATE.
const NEEDS_STATE: u64 = 2;
/// Bytes of a packet without texts and flows, at most: 19 for each of the at
/// most 5 arguments with tags and sizes, 7 for the one that says "clipped",
/// and what surrounds them, rounded up.
const FIXED_BOUND: usize = 256;

/// Packets one after another, with room behind them that is written directly.
#[derive(Debug, Default)]
pub(crate) struct PacketBuffer {
    bytes: Vec<u8>,
    /// Bytes that are packets; the others are room.
    len: usize,
}

impl PacketBuffer {
    pub(crate) fn packets(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// So much room behind the packets.
    #[inline]
    fn room(&mut self, size: usize) -> &mut [u8] {
        if self.bytes.len() < self.len + size {
            self.bytes.resize(2 * (self.len + size), 0);
        }
        &mut self.bytes[self.len..self.len + size]
    }

    /// Appends whole packets.
    pub(crate) fn extend(&mut self, packets: &[u8]) {
        self.room(packets.len()).copy_from_slice(packets);
        self.len += packets.len();
    }
}

impl EventPacket<'_> {
    /// Appends the packet, in the framing of a trace file.
    #[inline]
    pub(crate) fn append(&self, out: &mut PacketBuffer) {
        let texts: usize = self.texts.iter().map(|(_, text)| text.len() + 32).sum();
        let mut to = Cursor {
            out: out.room(FIXED_BOUND + texts + 10 * self.flow_ids.len()),
            at: SHORT_HEAD,
        };
        // Fields of TracePacket: track_event, timestamp,
        // trusted_packet_sequence_id, sequence_flags.
        self.event(&mut to);
        let event_len = to.at - SHORT_HEAD;
        to.tagged(8 << 3, self.timestamp);
        to.tagged(10 << 3, u64::from(self.sequence_id));
        to.tagged(13 << 3, NEEDS_STATE);
        let written = to.frame(event_len);
        out.len += written;
    }

    fn event(&self, to: &mut Cursor<'_>) {
        if let Some((category, _)) = self.name {
            to.tagged(3 << 3, category);
        }
        for arg in self.args {
            // Its size, below 128 and so one byte, is known afterwards.
            to.tagged(4 << 3 | LEN, 0);
            let start = to.at;
            to.tagged(1 << 3, arg.name);
            match arg.value {
                ArgValue::Uint(value) => to.tagged(3 << 3, value),
                ArgValue::Label(iid) => {
                    to.varint(17 << 3);
                    to.varint(iid);
                }
            }
            to.out[start - 1] = (to.at - start) as u8;
        }
        if self.clipped {
            // Its size; its name by iid, 2 bytes; true.
            to.tagged(4 << 3 | LEN, 5);
            to.tagged(1 << 3, CLIPPED);
            to.tagged(2 << 3, 1);
        }
        for (name, text) in self.texts {
            to.tagged(4 << 3 | LEN, text_len(*name, text) as u64);
            to.tagged(1 << 3, *name);
            to.tagged(6 << 3 | LEN, text.len() as u64);
            to.bytes(text.as_bytes());
        }
        to.tagged(9 << 3, self.kind as u64);
        if let Some((_, name)) = self.name {
            to.tagged(10 << 3, name);
        }
        if let Some(track) = self.track {
            to.tagged(11 << 3, track);
        }
        if let Some(value) = self.counter {
            to.varint(30 << 3);
            to.varint(value);
        }
        for id in self.flow_ids {
            to.varint(47 << 3 | FIXED64);
            to.bytes(&id.to_le_bytes());
        }
    }
}

fn text_len(name: u64, text: &str) -> usize {
    1 + varint_len(name) + 1 + varint_len(text.len() as u64) + text.len()
}

/// Bytes before a TrackEvent below 128 bytes in a packet below 128 bytes, as
/// almost all are: tag and size of each.
const SHORT_HEAD: usize = 4;

const LEN: u64 = 2;
const FIXED64: u64 = 1;

/// Bytes of a base-128 varint: a seventh of its bits, rounded up.
#[inline]
fn varint_len(value: u64) -> usize {
    ((value | 1).ilog2() as usize * 9 + 73) / 64
}

struct Cursor<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Cursor<'_> {
    /// A tag below 128 and a varint.
    #[inline(always)]
    fn tagged(&mut self, tag: u64, value: u64) {
        self.out[self.at] = tag as u8;
        self.at += 1;
        self.varint(value);
    }

    /// Writes the sizes before what was written after [`SHORT_HEAD`], whose
    /// first `event_len` bytes are the event. Returns the length of all.
    #[inline]
    fn frame(&mut self, event_len: usize) -> usize {
        let rest = self.at - SHORT_HEAD;
        // Trace.packet, TracePacket.track_event.
        let (packet_tag, event_tag) = (1 << 3 | LEN as u8, 11 << 3 | LEN as u8);
        let packet_len = 2 + rest;
        if packet_len < 0x80 {
            self.out[..SHORT_HEAD].copy_from_slice(&[
                packet_tag,
                packet_len as u8,
                event_tag,
                event_len as u8,
            ]);
            return self.at;
        }
        let packet_len = 1 + varint_len(event_len as u64) + rest;
        let head = 2 + varint_len(packet_len as u64) + varint_len(event_len as u64);
        self.out.copy_within(SHORT_HEAD..self.at, head);
        self.at = 0;
        self.bytes(&[packet_tag]);
        self.long_varint(packet_len as u64);
        self.bytes(&[event_tag]);
        self.long_varint(event_len as u64);
        head + rest
    }

    #[inline(always)]
    fn varint(&mut self, value: u64) {
        if value < 0x80 {
            self.out[self.at] = value as u8;
            self.at += 1;
        } else {
            self.wide_varint(value);
        }
    }

    /// May write up to 8 bytes, of which those behind are room.
    #[inline]
    fn wide_varint(&mut self, value: u64) {
        if value >= 1 << 56 {
            return self.long_varint(value);
        }
        // As CLOCK_BOOTTIME is, for two years. Without a loop: its seven-bit
        // groups move apart (by halves, quarters, eighths), and all bytes but
        // the last get the bit that says "more".
        let len = varint_len(value);
        let spread = (value & 0x0000_0000_0fff_ffff) | (value & 0x00ff_ffff_f000_0000) << 4;
        let spread = (spread & 0x0000_3fff_0000_3fff) | (spread & 0x0fff_c000_0fff_c000) << 2;
        let spread = (spread & 0x007f_007f_007f_007f) | (spread & 0x3f80_3f80_3f80_3f80) << 1;
        let more = 0x8080_8080_8080_8080_u64 >> (8 * (9 - len));
        let bytes = (spread | more).to_le_bytes();
        self.out[self.at..self.at + 8].copy_from_slice(&bytes);
        self.at += len;
    }

    /// Writes its bytes and no others.
    #[cold]
    fn long_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out[self.at] = value as u8 | 0x80;
            self.at += 1;
            value >>= 7;
        }
        self.out[self.at] = value as u8;
        self.at += 1;
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::debug_annotation::Value;
    use crate::proto::track_event::CounterValueField;
    use crate::proto::{DebugAnnotation, Trace, TracePacket, TrackEvent, trace_packet};
    use proptest::prelude::*;
    use prost::Message;

    fn as_message(packet: &EventPacket<'_>) -> Trace {
        let int = |arg: &Arg| DebugAnnotation {
            name_iid: Some(arg.name),
            value: Some(match arg.value {
                ArgValue::Uint(value) => Value::Uint(value),
                ArgValue::Label(iid) => Value::StringIid(iid),
            }),
        };
        let text = |(name, text): &(u64, String)| DebugAnnotation {
            name_iid: Some(*name),
            value: Some(Value::String(text.clone())),
        };
        let clipped = packet.clipped.then_some(DebugAnnotation {
            name_iid: Some(CLIPPED),
            value: Some(Value::Bool(true)),
        });
        Trace {
            packet: vec![TracePacket {
                timestamp: Some(packet.timestamp),
                trusted_packet_sequence_id: Some(packet.sequence_id),
                sequence_flags: Some(2),
                data: Some(trace_packet::Data::TrackEvent(TrackEvent {
                    category_iids: packet.name.iter().map(|n| n.0).collect(),
                    debug_annotations: packet
                        .args
                        .iter()
                        .map(int)
                        .chain(clipped)
                        .chain(packet.texts.iter().map(text))
                        .collect(),
                    r#type: Some(packet.kind as i32),
                    name_iid: packet.name.map(|n| n.1),
                    track_uuid: packet.track,
                    flow_ids: packet.flow_ids.to_vec(),
                    terminating_flow_ids: vec![],
                    counter_value_field: packet
                        .counter
                        .map(|v| CounterValueField::CounterValue(v as i64)),
                })),
                ..TracePacket::default()
            }],
        }
    }

    fn check(packet: EventPacket<'_>) {
        let mut buffer = PacketBuffer::default();
        buffer.extend(b"before");
        packet.append(&mut buffer);
        let bytes = &buffer.packets()[6..];
        let message = as_message(&packet);
        assert_eq!(Trace::decode(bytes).unwrap(), message);
        // Equal length: nothing beside what was decoded.
        assert_eq!(bytes.len(), message.encoded_len());
    }

    fn any_value() -> impl Strategy<Value = ArgValue> {
        let number = (0u32..64, any::<u64>()).prop_map(|(shift, v)| v >> shift);
        prop_oneof![
            number.prop_map(ArgValue::Uint),
            (1u64..300).prop_map(ArgValue::Label)
        ]
    }

    proptest! {
        #[test]
        fn bytes_are_those_of_the_message(
            timestamp in (0u32..64, any::<u64>()).prop_map(|(shift, ns)| ns >> shift),
            sequence_id in any::<u32>(),
            name in prop::option::of((1u64..200, 1u64..200)),
            args in prop::collection::vec((1u64..2000, any_value()), 0..=5),
            texts in prop::collection::vec((1000u64..1064, "\\PC{0,128}"), 0..3),
            track in prop::option::of(any::<u64>()),
            counter in prop::option::of(any::<u64>()),
            flow_ids in prop::collection::vec(any::<u64>(), 0..40),
            clipped in any::<bool>(),
        ) {
            let args: Vec<Arg> = args
                .into_iter()
                .map(|(name, value)| Arg { name, value })
                .collect();
            check(EventPacket {
                timestamp,
                sequence_id,
                kind: Type::SliceBegin,
                name,
                args: &args,
                texts: &texts,
                track,
                counter,
                flow_ids: &flow_ids,
                clipped,
            });
        }
    }

    #[test]
    fn the_largest_packet_fits() {
        let arg = Arg {
            name: 1999,
            value: ArgValue::Uint(u64::MAX),
        };
        check(EventPacket {
            timestamp: u64::MAX,
            sequence_id: u32::MAX,
            kind: Type::SliceEnd,
            name: Some((u64::MAX, u64::MAX)),
            args: &[arg; 5],
            texts: &[],
            track: Some(u64::MAX),
            counter: Some(u64::MAX),
            flow_ids: &[u64::MAX; 1024],
            clipped: true,
        });
    }

    #[test]
    fn a_slice_takes_at_most_sixty_bytes() {
        fn event(kind: Type, name: Option<(u64, u64)>, args: &[Arg]) -> EventPacket<'_> {
            EventPacket {
                // Three months after boot.
                timestamp: 90 * 86_400 * 1_000_000_000,
                sequence_id: u32::MAX,
                kind,
                name,
                args,
                texts: &[],
                track: None,
                counter: None,
                flow_ids: &[],
                clipped: false,
            }
        }
        let args = [Arg {
            name: 100,
            value: ArgValue::Uint((1 << 14) - 1),
        }];
        let mut bytes = PacketBuffer::default();
        event(Type::SliceBegin, Some((4, 60)), &args).append(&mut bytes);
        event(Type::SliceEnd, None, &[]).append(&mut bytes);
        assert!(bytes.len() <= 60, "{}", bytes.len());
    }
}
