//! What is open on the tracks of requests.
//!
//! A request's slices may begin on one thread and end on another, so no
//! producer can see to it that an END has its BEGIN when rings are full. Here
//! all of them come by, in order of time, whether a session records or not: a
//! session that begins shows the requests that are under way.

use crate::Event;
use crate::entry::{Entry, Kind};
use crate::interning::TextKeys;
use std::collections::HashMap;

/// Tracks by uuid.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTracks {
    tracks: HashMap<u64, Track>,
    keys: TextKeys,
}

/// One on which something is open, or will be: it has been described.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    pub(crate) trace_key: u64,
    /// Outermost first.
    pub(crate) open: Vec<OpenSlice>,
    /// Place of key and text.
    texts: Vec<(usize, String)>,
    /// So many of the texts came before the track's last event.
    seen_texts: usize,
}

/// A slice without its END so far.
#[derive(Clone, Debug)]
pub(crate) struct OpenSlice {
    pub(crate) event: Event,
    /// `None`: they are known to a file only.
    args: Option<[u64; Event::MAX_ARGS]>,
    num_args: u8,
}

impl Track {
    /// Key and text of each of its texts.
    pub(crate) fn texts<'t>(
        &'t self,
        keys: &'t TextKeys,
    ) -> impl Iterator<Item = (&'t str, &'t str)> {
        let texts = self.texts.iter();
        texts.map(|(place, text)| (keys.key(*place), text.as_str()))
    }
}

impl OpenSlice {
    /// Arguments given at its BEGIN, if they are known.
    pub(crate) fn args(&self) -> &[u64] {
        let args = self.args.as_ref();
        args.map_or(&[], |args| &args[..usize::from(self.num_args)])
    }
}

/// What a record of a request's track is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin,
    /// `unended` inner slices lost their ENDs, which are to be written first;
    /// the BEGIN had so many arguments.
    End {
        unended: usize,
        args_given: u8,
    },
    Instant,
    /// Of no event.
    Text,
    /// Its counterpart was lost, and so must it be.
    Lost,
}

/// Tracks that are remembered. So many requests at once there never are: their
/// ENDs were lost.
const MAX_TRACKS: usize = 1 << 16;
/// Slices in each other on one track.
const MAX_DEPTH: usize = 64;
/// Texts of one request.
const MAX_TEXTS: usize = 8;

impl RequestTracks {
    /// Takes in the next record of the track `uuid`. After everybody has been
    /// told, [`RequestTracks::settle`] is due.
    pub(crate) fn step(&mut self, uuid: u64, entry: &Entry<'_>) -> Step {
        let head = entry.head();
        match head.kind {
            Kind::RequestBegin => {
                let mut args = [0; Event::MAX_ARGS];
                for (to, arg) in args.iter_mut().zip(entry.args()) {
                    *to = arg;
                }
                let slice = OpenSlice {
                    event: head.event,
                    args: Some(args),
                    num_args: head.args,
                };
                self.begin(uuid, entry.trace_key(), slice)
            }
            Kind::RequestEnd => self.end(uuid, head.event),
            Kind::Text => {
                let (key, text) = entry.text();
                if let Some(place) = self.keys.place(&key) {
                    let texts = &mut self.track(uuid, entry.trace_key()).texts;
                    if texts.len() < MAX_TEXTS {
                        texts.push((place, text));
                    }
                }
                Step::Text
            }
            _ => Step::Instant,
        }
    }

    /// Forgets what the step was the last of.
    pub(crate) fn settle(&mut self, uuid: u64, step: Step) {
        if let Some(track) = self.tracks.get_mut(&uuid)
            && step != Step::Text
        {
            track.seen_texts = track.texts.len();
            if track.open.is_empty() && matches!(step, Step::End { .. }) {
                self.tracks.remove(&uuid);
            }
        }
    }

    fn track(&mut self, uuid: u64, trace_key: u64) -> &mut Track {
        if self.tracks.len() >= MAX_TRACKS && !self.tracks.contains_key(&uuid) {
            self.tracks.retain(|_, track| !track.open.is_empty());
            if self.tracks.len() >= MAX_TRACKS {
                self.tracks.clear();
            }
        }
        self.tracks.entry(uuid).or_insert_with(|| Track {
            trace_key,
            ..Track::default()
        })
    }

    fn begin(&mut self, uuid: u64, trace_key: u64, slice: OpenSlice) -> Step {
        let open = &mut self.track(uuid, trace_key).open;
        if open.len() >= MAX_DEPTH {
            return Step::Lost;
        }
        open.push(slice);
        Step::Begin
    }

    fn end(&mut self, uuid: u64, event: Event) -> Step {
        let Some(track) = self.tracks.get_mut(&uuid) else {
            return Step::Lost;
        };
        let open = &mut track.open;
        let Some(place) = open.iter().rposition(|slice| slice.event == event) else {
            return Step::Lost;
        };
        let args_given = open[place].num_args;
        let unended = open.len() - place - 1;
        open.truncate(place);
        Step::End {
            unended,
            args_given,
        }
    }

    /// Learns what is open in a file that is gone on with; arguments and texts
    /// are in it already.
    pub(crate) fn learn(&mut self, uuid: u64, open: &[(Event, u8)]) {
        let track = self.track(uuid, 0);
        if track.open.is_empty() {
            let slice = |&(event, num_args): &(Event, u8)| OpenSlice {
                event,
                args: None,
                num_args,
            };
            track.open = open.iter().map(slice).collect();
        }
    }

    /// Texts of a track: `all` that name it, or those that came since its last event.
    pub(crate) fn texts(&self, uuid: u64, all: bool) -> &[(usize, String)] {
        self.tracks.get(&uuid).map_or(&[], |track| {
            &track.texts[if all { 0 } else { track.seen_texts }..]
        })
    }

    /// Tracks with open slices.
    pub(crate) fn open(&self) -> impl Iterator<Item = (u64, &Track)> {
        let tracks = self.tracks.iter().map(|(&uuid, track)| (uuid, track));
        tracks.filter(|(_, track)| !track.open.is_empty())
    }

    pub(crate) fn keys(&self) -> &TextKeys {
        &self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTER: Event = Event::Request;
    const INNER: Event = Event::Preprocess;

    fn begin(tracks: &mut RequestTracks, uuid: u64, event: Event, num_args: u8) -> Step {
        let args = Some([7; Event::MAX_ARGS]);
        tracks.begin(
            uuid,
            uuid,
            OpenSlice {
                event,
                args,
                num_args,
            },
        )
    }

    fn end(tracks: &mut RequestTracks, uuid: u64, event: Event) -> Step {
        let step = tracks.end(uuid, event);
        tracks.settle(uuid, step);
        step
    }

    const fn ended(unended: usize, args_given: u8) -> Step {
        Step::End {
            unended,
            args_given,
        }
    }

    #[test]
    fn ends_without_begins_are_refused() {
        let mut tracks = RequestTracks::default();
        assert_eq!(end(&mut tracks, 1, OUTER), Step::Lost);
        assert_eq!(begin(&mut tracks, 1, OUTER, 2), Step::Begin);
        assert_eq!(end(&mut tracks, 2, OUTER), Step::Lost, "another track");
        assert_eq!(end(&mut tracks, 1, INNER), Step::Lost, "another slice");
        assert_eq!(end(&mut tracks, 1, OUTER), ended(0, 2));
        assert_eq!(end(&mut tracks, 1, OUTER), Step::Lost, "once only");
        // The ENDs of two inner slices were lost.
        for event in [OUTER, INNER, INNER] {
            assert_eq!(begin(&mut tracks, 1, event, 0), Step::Begin);
        }
        assert_eq!(end(&mut tracks, 1, OUTER), ended(2, 0));
        assert!(tracks.tracks.is_empty(), "what is over is forgotten");
    }

    #[test]
    fn what_is_open_is_known_with_its_arguments() {
        let mut tracks = RequestTracks::default();
        begin(&mut tracks, 1, OUTER, 2);
        begin(&mut tracks, 1, INNER, 0);
        begin(&mut tracks, 2, OUTER, 1);
        end(&mut tracks, 2, OUTER);
        let open: Vec<_> = tracks.open().collect();
        let [(1, track)] = open[..] else {
            panic!("{open:?}")
        };
        let events: Vec<Event> = track.open.iter().map(|slice| slice.event).collect();
        assert_eq!(events, [OUTER, INNER]);
        assert_eq!(track.open[0].args(), [7, 7]);
    }

    #[test]
    fn depth_and_number_are_bounded() {
        let mut tracks = RequestTracks::default();
        for _ in 0..MAX_DEPTH {
            assert_eq!(begin(&mut tracks, 1, INNER, 0), Step::Begin);
        }
        assert_eq!(begin(&mut tracks, 1, INNER, 0), Step::Lost);
        for uuid in 2..3 * MAX_TRACKS as u64 {
            tracks.track(uuid, uuid).texts.push((0, String::new()));
            assert!(tracks.tracks.len() <= MAX_TRACKS);
        }
        let kept = tracks.end(1, INNER);
        assert!(matches!(kept, Step::End { .. }), "open ones are kept");
        for uuid in 0..2 * MAX_TRACKS as u64 {
            assert_eq!(begin(&mut tracks, uuid, OUTER, 0), Step::Begin);
            assert!(tracks.tracks.len() <= MAX_TRACKS);
        }
    }
}
