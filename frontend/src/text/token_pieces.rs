//! What each token adds to a text.

use super::byte_alphabet::ByteAlphabet;

/// How tokens become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoding {
    /// Tokens are bytes in the printable alphabet; a character may be cut
    /// between any two of them.
    ByteLevel,
    /// Tokens are text with `▁` for a space; only tokens like `<0xE4>` are
    /// single bytes.
    ByteFallback {
        /// A text loses the space that encoding put before it.
        strip_leading_space: bool,
    },
}

/// What a token is to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// No token of this id.
    Absent,
    /// Adds its bytes.
    Normal,
    /// Its bytes are one byte of a character that several tokens make up
    /// (byte fallback).
    Byte,
    /// Adds its bytes unless special tokens are skipped.
    Special,
}

/// What each token adds to a text, by id: bytes in one buffer, so that a large
/// vocabulary costs two allocations.
#[derive(Debug)]
pub(super) struct TokenPieces {
    pub decoding: Decoding,
    bytes: Vec<u8>,
    /// End of each id's bytes, which start where those of the id before end.
    ends: Vec<u32>,
    kinds: Vec<PieceKind>,
}

impl TokenPieces {
    /// `token(id)` is the vocabulary's text of each id below `len`, and whether it is special.
    pub fn new(
        decoding: Decoding,
        len: u32,
        token: impl Fn(u32) -> Option<(String, bool)>,
    ) -> Self {
        let alphabet = ByteAlphabet::new();
        let mut pieces = Self {
            decoding,
            bytes: Vec::new(),
            ends: Vec::with_capacity(len as usize),
            kinds: Vec::with_capacity(len as usize),
        };
        for id in 0..len {
            let (kind, bytes) = match (token(id), decoding) {
                (None, _) => (PieceKind::Absent, Vec::new()),
                (Some((text, true)), Decoding::ByteLevel) => {
                    (PieceKind::Special, alphabet.bytes(&text))
                }
                (Some((text, false)), Decoding::ByteLevel) => {
                    (PieceKind::Normal, alphabet.bytes(&text))
                }
                (Some((text, special)), Decoding::ByteFallback { .. }) => {
                    match (fallback_byte(&text), special) {
                        (Some(byte), false) => (PieceKind::Byte, vec![byte]),
                        (_, true) => (PieceKind::Special, spaced(&text)),
                        (None, false) => (PieceKind::Normal, spaced(&text)),
                    }
                }
            };
            pieces.bytes.extend(bytes);
            pieces.ends.push(pieces.bytes.len() as u32);
            pieces.kinds.push(kind);
        }
        pieces
    }

    /// The kind of an id and the bytes it adds. Ids outside of the vocabulary
    /// are [`Absent`](PieceKind::Absent).
    pub fn piece(&self, id: u32) -> (PieceKind, &[u8]) {
        let id = id as usize;
        let (Some(&kind), Some(&end)) = (self.kinds.get(id), self.ends.get(id)) else {
            return (PieceKind::Absent, &[]);
        };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        (kind, &self.bytes[start as usize..end as usize])
    }

    /// Bytes of the longest token, at least 1.
    pub fn longest(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        let lengths = self.ends.iter().zip(starts).map(|(end, start)| end - start);
        lengths.max().unwrap_or(1).max(1) as usize
    }

    /// One more than the highest id of the vocabulary.
    pub fn len(&self) -> u32 {
        self.kinds.len() as u32
    }
}

fn spaced(text: &str) -> Vec<u8> {
    text.replace('▁', " ").into_bytes()
}

/// The byte of a token like `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
