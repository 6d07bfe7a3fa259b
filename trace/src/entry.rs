//! Records as they lie in rings: a few words each, integers only.
//!
//! ```text
//! word 0  kind:8 | first argument:4 | arguments:4 | event:16 | flows:16 | words:16
//! word 1  time, on the rings' raw clock
//! then    the request's trace key          (kinds of request tracks)
//!         the arguments
//!         two words a flow: kind and key
//!         sizes and bytes of key and text  (Text)
//! ```

use crate::Event;
use crate::flow::{Flow, FlowKind};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A slice of the thread's track begins.
    Begin = 1,
    /// The innermost slice of the thread's track ends.
    End,
    /// A moment on the thread's track.
    Instant,
    /// A counter's new value: the first argument.
    Counter,
    /// As the first three, on a request's track.
    RequestBegin,
    RequestEnd,
    RequestInstant,
    /// A text that names a request.
    Text,
}

impl Kind {
    const fn from_bits(bits: u8) -> Option<Kind> {
        use Kind::{Begin, Counter, End, Instant, RequestBegin, RequestEnd, RequestInstant, Text};
        const ALL: [Kind; 8] = [
            Begin,
            End,
            Instant,
            Counter,
            RequestBegin,
            RequestEnd,
            RequestInstant,
            Text,
        ];
        match bits {
            1..=8 => Some(ALL[bits as usize - 1]),
            _ => None,
        }
    }

    /// The record carries a request's trace key.
    pub(crate) const fn of_request(self) -> bool {
        self as u8 >= Kind::RequestBegin as u8
    }
}

/// Flows of one record at most; more are left out.
pub(crate) const MAX_FLOWS: usize = 1024;
/// Bytes of a text, and of its key, at most; longer ones are cut.
pub(crate) const MAX_TEXT: usize = 128;
/// Words of the longest record.
pub(crate) const MAX_WORDS: usize = FIXED_WORDS + 1 + Event::MAX_ARGS + 2 * MAX_FLOWS;
/// Words before arguments: header and time.
pub(crate) const FIXED_WORDS: usize = 2;
/// Words of the longest record that ends a slice of a thread's track.
pub(crate) const MAX_END_WORDS: u64 = (FIXED_WORDS + Event::MAX_ARGS) as u64;

/// Word 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) event: Event,
    /// Place of the first argument among the event's.
    pub(crate) first_arg: u8,
    pub(crate) args: u8,
    pub(crate) flows: u16,
    pub(crate) words: u16,
}

impl Head {
    #[inline(always)]
    pub(crate) const fn to_word(self) -> u64 {
        self.kind as u64
            | (self.first_arg as u64) << 8
            | (self.args as u64) << 12
            | (self.event as u64) << 16
            | (self.flows as u64) << 32
            | (self.words as u64) << 48
    }

    /// `None` for a word that no producer writes.
    #[inline]
    fn from_word(word: u64) -> Option<Head> {
        let head = Head {
            kind: Kind::from_bits(word as u8)?,
            event: *Event::ALL.get((word >> 16) as u16 as usize)?,
            first_arg: (word >> 8) as u8 & 15,
            args: (word >> 12) as u8 & 15,
            flows: (word >> 32) as u16,
            words: (word >> 48) as u16,
        };
        let counted = FIXED_WORDS
            + usize::from(head.kind.of_request())
            + usize::from(head.args)
            + 2 * usize::from(head.flows);
        let whole = match head.kind {
            Kind::Text => usize::from(head.words) > counted,
            _ => usize::from(head.words) == counted,
        };
        (whole && usize::from(head.args) <= Event::MAX_ARGS).then_some(head)
    }
}

/// A record in a ring.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'r> {
    words: &'r [AtomicU64],
    at: u64,
    head: Head,
}

impl<'r> Entry<'r> {
    /// The record at position `at`, which must end at or before `end`; `words`
    /// is a power of two long. `None` when there is no whole record.
    #[inline]
    pub(crate) fn read(words: &'r [AtomicU64], at: u64, end: u64) -> Option<Entry<'r>> {
        if at >= end {
            return None;
        }
        let head = Head::from_word(word_at(words, at))?;
        (end - at >= u64::from(head.words)).then_some(Entry { words, at, head })
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        word_at(self.words, self.at + index as u64)
    }

    #[inline]
    pub(crate) fn head(&self) -> Head {
        self.head
    }

    /// Its length in words.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.head.words)
    }

    #[inline]
    pub(crate) fn time(&self) -> u64 {
        self.word(1)
    }

    /// The request's trace key; kinds of request tracks only.
    #[inline]
    pub(crate) fn trace_key(&self) -> u64 {
        self.word(FIXED_WORDS)
    }

    #[inline]
    fn first_arg_word(&self) -> usize {
        FIXED_WORDS + usize::from(self.head.kind.of_request())
    }

    /// Its arguments, in order.
    #[inline]
    pub(crate) fn args(&self) -> impl Iterator<Item = u64> {
        let first = self.first_arg_word();
        let count = usize::from(self.head.args);
        (first..first + count).map(move |index| self.word(index))
    }

    /// Its flows; those of an unknown kind are left out.
    pub(crate) fn flows(&self) -> impl Iterator<Item = Flow> {
        let first = self.first_arg_word() + usize::from(self.head.args);
        (0..usize::from(self.head.flows)).filter_map(move |flow| {
            let kind = FlowKind::from_bits(self.word(first + 2 * flow))?;
            let key = self.word(first + 2 * flow + 1);
            Some(Flow { kind, key })
        })
    }

    /// Key and text of a [`Kind::Text`], made harmless: what is no UTF-8 and
    /// every control character is replaced by U+FFFD.
    pub(crate) fn text(&self) -> (String, String) {
        let sizes = self.word(FIXED_WORDS + 1);
        let (key, text) = (sizes as u8, (sizes >> 8) as u8);
        let bytes: Vec<u8> = (FIXED_WORDS + 2..usize::from(self.head.words))
            .flat_map(|index| self.word(index).to_le_bytes())
            .collect();
        let (key, rest) = bytes.split_at(bytes.len().min(usize::from(key)));
        let text = &rest[..rest.len().min(usize::from(text))];
        (harmless(key), harmless(text))
    }
}

#[inline(always)]
fn word_at(words: &[AtomicU64], position: u64) -> u64 {
    words[position as usize & (words.len() - 1)].load(Ordering::Relaxed)
}

/// The words of a [`Kind::Text`] after its trace key: sizes, then the bytes of
/// key and text. Returns how many words of `out` they take.
pub(crate) fn pack_text(key: &str, text: &str, out: &mut [u64; TEXT_WORDS]) -> usize {
    let key = &key.as_bytes()[..key.len().min(MAX_TEXT)];
    let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
    let mut bytes = [0; 2 * MAX_TEXT];
    bytes[..key.len()].copy_from_slice(key);
    bytes[key.len()..key.len() + text.len()].copy_from_slice(text);
    out[0] = key.len() as u64 | (text.len() as u64) << 8;
    let words = (key.len() + text.len()).div_ceil(8);
    for (word, chunk) in out[1..=words].iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    1 + words
}

const _: () = assert!(FIXED_WORDS + 1 + TEXT_WORDS <= MAX_WORDS);

/// Room that [`pack_text`] needs.
pub(crate) const TEXT_WORDS: usize = 1 + 2 * MAX_TEXT / 8;

fn harmless(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(words: &[u64]) -> Vec<AtomicU64> {
        let len = words.len().next_power_of_two();
        let zeros = std::iter::repeat_n(0, len - words.len());
        words
            .iter()
            .copied()
            .chain(zeros)
            .map(AtomicU64::new)
            .collect()
    }

    #[test]
    fn heads_survive_the_way_there_and_back() {
        for &event in Event::ALL {
            let head = Head {
                kind: Kind::RequestBegin,
                event,
                first_arg: 3,
                args: 2,
                flows: 1,
                words: 7,
            };
            assert_eq!(Head::from_word(head.to_word()), Some(head));
        }
    }

    #[test]
    fn words_that_are_no_head_are_refused() {
        let head = Head {
            kind: Kind::Begin,
            event: Event::CoreStep,
            first_arg: 0,
            args: 1,
            flows: 0,
            words: 3,
        };
        let word = head.to_word();
        assert!(Head::from_word(word).is_some());
        for broken in [
            0,
            u64::MAX,
            word & !0xff,        // no kind
            word | 0x0f,         // unknown kind
            word | 0xffff << 16, // unknown event
            word + (1 << 48),    // a word too many
            word + (1 << 12),    // an argument too many
            word + (1 << 32),    // a flow too many
        ] {
            assert_eq!(Head::from_word(broken), None, "{broken:#x}");
        }
        assert!(Entry::read(&ring(&[word, 1]), 0, 2).is_none(), "cut off");
    }

    #[test]
    fn texts_are_bounded_and_harmless() {
        let read = |key: &str, text: &str| {
            let mut packed = [0; TEXT_WORDS];
            let words = pack_text(key, text, &mut packed);
            let head = Head {
                kind: Kind::Text,
                event: Event::Request,
                first_arg: 0,
                args: 0,
                flows: 0,
                words: (3 + words) as u16,
            };
            let mut all = vec![head.to_word(), 5, 9];
            all.extend_from_slice(&packed[..words]);
            let ring = ring(&all);
            Entry::read(&ring, 0, all.len() as u64).unwrap().text()
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(read("request_id", "cmpl-1"), pair("request_id", "cmpl-1"));
        assert_eq!(read("k", ""), pair("k", ""));
        assert_eq!(read("", ""), pair("", ""));
        assert_eq!(
            read("k", "a\n\0\u{1b}[b"),
            pair("k", "a\u{fffd}\u{fffd}\u{fffd}[b")
        );
        assert_eq!(read("k", &"x".repeat(500)), pair("k", &"x".repeat(128)));
        // Cut within a character of two bytes.
        let cut = read("k", &"ä".repeat(100).replacen('ä', "xä", 1)).1;
        assert!(cut.ends_with("ä\u{fffd}"), "{cut}");
    }
}
