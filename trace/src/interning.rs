//! Numbers (iids) of the catalogue's texts. They are the same in every
//! sequence of every file, so that nothing has to be remembered but which of
//! them a sequence has told.

use crate::event::ArgKind;
use crate::proto::{DebugAnnotationName, EventCategory, EventName, InternedData, InternedString};
use crate::{Event, TrackKind};
use std::sync::LazyLock;

/// One event's texts as numbers.
#[derive(Debug)]
pub(crate) struct EventIids {
    pub(crate) name: u64,
    pub(crate) category: u64,
    pub(crate) args: Vec<ArgIids>,
}

/// One argument's.
#[derive(Debug)]
pub(crate) struct ArgIids {
    pub(crate) name: u64,
    /// By label; empty for a plain number.
    pub(crate) labels: Vec<u64>,
}

/// Of the argument that says that a slice goes on beyond its session. Those of
/// the catalogue have smaller iids, those of texts larger ones.
pub(crate) const CLIPPED: u64 = 999;
const FIRST_TEXT_KEY: u64 = CLIPPED + 1;

/// What a sequence must have told before it names [`CLIPPED`].
pub(crate) fn clipped() -> InternedData {
    arg_name(CLIPPED, "clipped")
}

fn arg_name(iid: u64, name: &str) -> InternedData {
    InternedData {
        debug_annotation_names: vec![DebugAnnotationName {
            iid: Some(iid),
            name: Some(name.to_owned()),
        }],
        ..InternedData::default()
    }
}

/// Iids of the whole catalogue, by event.
pub(crate) fn event(event: Event) -> &'static EventIids {
    &CATALOGUE[event as usize]
}

static CATALOGUE: LazyLock<Vec<EventIids>> = LazyLock::new(|| {
    let (mut categories, mut arg_names, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let arg = |(name, kind): &(&'static str, ArgKind),
               arg_names: &mut Vec<&'static str>,
               labels: &mut Vec<&'static str>| ArgIids {
        name: iid(arg_names, name),
        labels: match kind {
            ArgKind::Int => Vec::new(),
            ArgKind::Label(texts) => texts.iter().map(|text| iid(labels, text)).collect(),
        },
    };
    Event::ALL
        .iter()
        .map(|&event| EventIids {
            name: event as u64 + 1,
            category: iid(&mut categories, event.category()),
            args: event
                .args()
                .iter()
                .map(|row| arg(row, &mut arg_names, &mut labels))
                .collect(),
        })
        .collect()
});

/// The text's place in the list, from 1; appended if new.
fn iid(list: &mut Vec<&'static str>, text: &'static str) -> u64 {
    let place = list.iter().position(|known| *known == text);
    let place = place.unwrap_or_else(|| {
        list.push(text);
        list.len() - 1
    });
    place as u64 + 1
}

/// The event whose name has this iid.
pub(crate) fn event_of_name(iid: u64) -> Option<Event> {
    Event::ALL
        .get(usize::try_from(iid).ok()?.checked_sub(1)?)
        .copied()
}

/// What a sequence must have told before it names `event`.
pub(crate) fn interned(event: Event) -> InternedData {
    let iids = self::event(event);
    let mut data = InternedData::default();
    if event.track() == TrackKind::Counter {
        // The track's descriptor carries the name.
        return data;
    }
    data.event_names.push(EventName {
        iid: Some(iids.name),
        name: Some(event.name().to_owned()),
    });
    data.event_categories.push(EventCategory {
        iid: Some(iids.category),
        name: Some(event.category().to_owned()),
    });
    for (&(name, kind), arg) in event.args().iter().zip(&iids.args) {
        data.debug_annotation_names.push(DebugAnnotationName {
            iid: Some(arg.name),
            name: Some(name.to_owned()),
        });
        if let ArgKind::Label(texts) = kind {
            let labels = texts.iter().zip(&arg.labels);
            data.debug_annotation_string_values
                .extend(labels.map(|(text, &iid)| InternedString {
                    iid: Some(iid),
                    str: Some(text.as_bytes().to_vec()),
                }));
        }
    }
    data
}

/// Keys of texts, numbered as they come. They are few: static strings of the
/// code that records.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextKeys(Vec<String>);

impl TextKeys {
    /// As many as a sequence remembers.
    const MAX: usize = 64;

    /// The key's place; `None` when there are too many.
    pub(crate) fn place(&mut self, key: &str) -> Option<usize> {
        if let Some(place) = self.0.iter().position(|known| known == key) {
            return Some(place);
        }
        (self.0.len() < Self::MAX).then(|| {
            self.0.push(key.to_owned());
            self.0.len() - 1
        })
    }

    pub(crate) fn iid(place: usize) -> u64 {
        FIRST_TEXT_KEY + place as u64
    }

    /// What a sequence must have told before it names the key.
    pub(crate) fn interned(&self, place: usize) -> InternedData {
        arg_name(Self::iid(place), self.key(place))
    }

    /// The key that has this place.
    pub(crate) fn key(&self, place: usize) -> &str {
        self.0.get(place).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn an_iid_means_one_text_in_all_events() {
        let mut names = HashMap::new();
        let mut categories = HashMap::new();
        let mut args = HashMap::new();
        let mut labels = HashMap::new();
        for &event in Event::ALL {
            let data = interned(event);
            let same = |map: &mut HashMap<u64, String>, iid: Option<u64>, text: String| {
                assert_ne!(iid.unwrap(), 0);
                assert_eq!(map.entry(iid.unwrap()).or_insert(text.clone()), &text);
            };
            for n in data.event_names {
                same(&mut names, n.iid, n.name.unwrap());
            }
            for c in data.event_categories {
                same(&mut categories, c.iid, c.name.unwrap());
            }
            for a in data.debug_annotation_names {
                assert!(a.iid.unwrap() < CLIPPED);
                same(&mut args, a.iid, a.name.unwrap());
            }
            for l in data.debug_annotation_string_values {
                same(
                    &mut labels,
                    l.iid,
                    String::from_utf8(l.str.unwrap()).unwrap(),
                );
            }
            assert_eq!(event_of_name(self::event(event).name), Some(event));
        }
        assert_eq!(event_of_name(0), None);
        assert_eq!(event_of_name(Event::ALL.len() as u64 + 1), None);
    }

    #[test]
    fn text_keys_are_bounded() {
        let mut keys = TextKeys::default();
        for i in 0..TextKeys::MAX {
            assert_eq!(keys.place(&i.to_string()), Some(i));
        }
        assert_eq!(keys.place("one more"), None);
        assert_eq!(keys.place("7"), Some(7));
    }
}
