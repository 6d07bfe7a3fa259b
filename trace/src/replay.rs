//! What is open at the end of a file that its process did not finish.

use crate::Event;
use crate::interning;
use crate::proto::track_event::Type;
use prost::Message;
use std::collections::HashMap;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// By uuid of a request's track: slices, outermost first, each with the
    /// number of arguments its BEGIN had.
    pub(crate) requests: HashMap<u64, Vec<(Event, u8)>>,
    /// By id of a thread's packet sequence: how many slices are open.
    pub(crate) threads: HashMap<u32, u32>,
}

impl Replay {
    /// Reads a file's bytes, which are whole packets.
    pub(crate) fn read(mut bytes: &[u8]) -> Result<Replay, prost::DecodeError> {
        let mut replay = Replay::default();
        while !bytes.is_empty() {
            // Of a trace's fields there is only `packet`.
            prost::encoding::decode_key(&mut bytes)?;
            let packet = parts::Packet::decode_length_delimited(&mut bytes)?;
            if let Some(event) = &packet.track_event {
                replay.event(event, packet.trusted_packet_sequence_id());
            }
        }
        replay.requests.retain(|_, open| !open.is_empty());
        replay.threads.retain(|_, open| *open > 0);
        Ok(replay)
    }

    fn event(&mut self, event: &parts::TrackEvent, sequence: u32) {
        match (event.r#type(), event.track_uuid) {
            (Type::SliceBegin, None) => *self.threads.entry(sequence).or_default() += 1,
            (Type::SliceEnd, None) => {
                let open = self.threads.entry(sequence).or_default();
                *open = open.saturating_sub(1);
            }
            (Type::SliceBegin, Some(track)) => {
                if let Some(begun) = interning::event_of_name(event.name_iid()) {
                    let iids = event.debug_annotations.iter().map(|a| a.name_iid());
                    let args = iids.filter(|&iid| iid < interning::CLIPPED).count();
                    let open = self.requests.entry(track).or_default();
                    open.push((begun, args as u8));
                }
            }
            (Type::SliceEnd, Some(track)) => {
                self.requests.entry(track).or_default().pop();
            }
            _ => {}
        }
    }
}

/// Of [`crate::proto`], what this needs: a launcher reads a whole file while
/// its clients wait, and skips everything else.
mod parts {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Packet {
        #[prost(uint32, optional, tag = "10")]
        pub(super) trusted_packet_sequence_id: Option<u32>,
        #[prost(message, optional, tag = "11")]
        pub(super) track_event: Option<TrackEvent>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct TrackEvent {
        #[prost(message, repeated, tag = "4")]
        pub(super) debug_annotations: Vec<DebugAnnotation>,
        #[prost(enumeration = "crate::proto::track_event::Type", optional, tag = "9")]
        pub(super) r#type: Option<i32>,
        #[prost(uint64, optional, tag = "10")]
        pub(super) name_iid: Option<u64>,
        #[prost(uint64, optional, tag = "11")]
        pub(super) track_uuid: Option<u64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct DebugAnnotation {
        #[prost(uint64, optional, tag = "1")]
        pub(super) name_iid: Option<u64>,
    }
}
