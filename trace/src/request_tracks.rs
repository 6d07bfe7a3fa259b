//! What is open on the tracks of requests.
//!
//! A request's slices may begin on one thread and end on another, so no
//! producer can see to it that an END has its BEGIN when rings are full. Here
//! all of them come by, in order of time.

use crate::Event;
use crate::interning;
use crate::proto::track_event::Type;
use prost::Message;
use std::collections::HashMap;

/// Tracks by uuid.
#[derive(Debug, Default)]
pub(crate) struct RequestTracks(HashMap<u64, Track>);

#[derive(Debug, Default)]
struct Track {
    described: bool,
    /// Outermost first, each with the number of arguments its BEGIN had.
    open: Vec<(Event, u8)>,
    /// Place of key and text; shown with the next event.
    texts: Vec<(usize, String)>,
}

/// An END that may be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Inner slices whose ENDs were lost and are to be written first.
    pub(crate) unended: usize,
    /// Arguments that the BEGIN had.
    pub(crate) args_given: u8,
}

/// Tracks that are remembered before those with nothing open are forgotten
/// (and described again if they return, which does no harm).
const MAX_TRACKS: usize = 1 << 16;
/// Slices in each other on one track.
const MAX_DEPTH: usize = 64;
/// Texts of one request.
const MAX_TEXTS: usize = 8;

impl RequestTracks {
    fn track(&mut self, uuid: u64) -> &mut Track {
        if self.0.len() >= MAX_TRACKS && !self.0.contains_key(&uuid) {
            self.0
                .retain(|_, track| !track.open.is_empty() || !track.texts.is_empty());
            if self.0.len() >= MAX_TRACKS {
                // So many requests at once there never are: their ENDs were lost.
                self.0.clear();
            }
        }
        self.0.entry(uuid).or_default()
    }

    /// Whether the track has yet to be described; from now on it has been.
    pub(crate) fn describe(&mut self, uuid: u64) -> bool {
        !std::mem::replace(&mut self.track(uuid).described, true)
    }

    pub(crate) fn add_text(&mut self, uuid: u64, place: usize, text: String) {
        let texts = &mut self.track(uuid).texts;
        if texts.len() < MAX_TEXTS {
            texts.push((place, text));
        }
    }

    pub(crate) fn take_texts(&mut self, uuid: u64) -> Vec<(usize, String)> {
        std::mem::take(&mut self.track(uuid).texts)
    }

    /// Whether the BEGIN may be written.
    pub(crate) fn begin(&mut self, uuid: u64, event: Event, args: u8) -> bool {
        let open = &mut self.track(uuid).open;
        let fits = open.len() < MAX_DEPTH;
        if fits {
            open.push((event, args));
        }
        fits
    }

    /// `None`: the slice's BEGIN was lost, and so must be its END.
    pub(crate) fn end(&mut self, uuid: u64, event: Event) -> Option<Ended> {
        let open = &mut self.track(uuid).open;
        let place = open.iter().rposition(|&(begun, _)| begun == event)?;
        let (_, args_given) = open[place];
        let unended = open.len() - place - 1;
        open.truncate(place);
        Some(Ended {
            unended,
            args_given,
        })
    }

    /// Learns what is open at the end of a file's bytes, which are whole packets.
    pub(crate) fn replay(mut bytes: &[u8]) -> Result<RequestTracks, prost::DecodeError> {
        let mut tracks = RequestTracks::default();
        while !bytes.is_empty() {
            // Of a trace's fields there is only `packet`.
            prost::encoding::decode_key(&mut bytes)?;
            let packet = replayed::Packet::decode_length_delimited(&mut bytes)?;
            let Some(event) = packet.track_event else {
                continue;
            };
            let (Some(track), kind) = (event.track_uuid, event.r#type()) else {
                continue;
            };
            if kind == Type::SliceBegin
                && let Some(begun) = interning::event_of_name(event.name_iid())
            {
                let iids = event.debug_annotations.iter().map(|a| a.name_iid());
                let args = iids.filter(|&iid| iid < interning::FIRST_TEXT_KEY);
                tracks.begin(track, begun, args.count() as u8);
            } else if kind == Type::SliceEnd {
                tracks.track(track).open.pop();
            }
        }
        Ok(tracks)
    }
}

/// Of [`crate::proto`], what the replay needs: a launcher reads a whole file
/// while its clients wait, and skips everything else.
mod replayed {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Packet {
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

#[cfg(test)]
mod tests {
    use super::*;

    const OUTER: Event = Event::Request;
    const INNER: Event = Event::Preprocess;

    #[test]
    fn ends_without_begins_are_refused() {
        let mut tracks = RequestTracks::default();
        assert_eq!(tracks.end(1, OUTER), None);
        assert!(tracks.begin(1, OUTER, 2));
        assert_eq!(tracks.end(2, OUTER), None, "another track");
        assert_eq!(tracks.end(1, INNER), None, "another slice");
        let ended = |unended, args_given| {
            Some(Ended {
                unended,
                args_given,
            })
        };
        assert_eq!(tracks.end(1, OUTER), ended(0, 2));
        assert_eq!(tracks.end(1, OUTER), None, "once only");
        // The ENDs of two inner slices were lost.
        for event in [OUTER, INNER, INNER] {
            assert!(tracks.begin(1, event, 0));
        }
        assert_eq!(tracks.end(1, OUTER), ended(2, 0));
    }

    #[test]
    fn depth_and_number_are_bounded() {
        let mut tracks = RequestTracks::default();
        for _ in 0..MAX_DEPTH {
            assert!(tracks.begin(1, INNER, 0));
        }
        assert!(!tracks.begin(1, INNER, 0));
        for uuid in 2..3 * MAX_TRACKS as u64 {
            assert!(tracks.describe(uuid));
            assert!(tracks.0.len() <= MAX_TRACKS);
        }
        assert!(tracks.end(1, INNER).is_some(), "open ones are kept");
        for uuid in 0..2 * MAX_TRACKS as u64 {
            assert!(tracks.begin(uuid, OUTER, 0));
            assert!(tracks.0.len() <= MAX_TRACKS);
        }
    }
}
