//! From a stream of token ids to text that may be shown.

use super::token_pieces::{Decoding, PieceKind, TokenPieces};
use std::sync::Arc;

/// From a stream of token ids to text that may be shown.
///
/// A character that tokens cut in two is held until its last byte came. Bytes
/// that can be no part of a character become U+FFFD as soon as that is certain,
/// unfinished ones when the stream ends. The pieces and [`finish`](Self::finish)
/// together are what [`Tokenizer::decode`](super::Tokenizer::decode) gives for
/// all ids at once: that function is this one, run to its end. Each token costs
/// time proportional to its own length.
#[derive(Debug)]
pub struct Detokenizer {
    pieces: Arc<TokenPieces>,
    skip_special: bool,
    /// The next text may begin with a space that encoding put there.
    strip_space: bool,
    /// Holds: the beginning of one UTF-8 character, at most 3 bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// For a text of its own: loses the space that encoding put before it.
    pub(super) fn new(pieces: Arc<TokenPieces>, skip_special: bool) -> Self {
        let strip_space = matches!(
            pieces.decoding,
            Decoding::ByteFallback {
                strip_leading_space: true
            }
        );
        Self {
            pieces,
            skip_special,
            strip_space,
            pending: Vec::new(),
        }
    }

    /// For a text that continues another: keeps a leading space.
    pub(super) fn continuing(pieces: Arc<TokenPieces>, skip_special: bool) -> Self {
        Self {
            strip_space: false,
            ..Self::new(pieces, skip_special)
        }
    }

    /// The text that may be shown now that this token came; often empty.
    pub fn push(&mut self, token_id: u32) -> String {
        let pieces = Arc::clone(&self.pieces);
        let (kind, bytes) = pieces.piece(token_id);
        let mut text = String::new();
        match kind {
            PieceKind::Absent => return text,
            PieceKind::Special if self.skip_special => return text,
            PieceKind::Byte => {}
            // With byte fallback, only byte tokens continue a character.
            PieceKind::Normal | PieceKind::Special => {
                if pieces.decoding != Decoding::ByteLevel {
                    self.flush(&mut text);
                }
            }
        }
        self.take(bytes, &mut text);
        self.stripped(text)
    }

    /// What is still held, with U+FFFD for a character that was never finished.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        self.flush(&mut text);
        self.stripped(text)
    }

    fn take(&mut self, bytes: &[u8], text: &mut String) {
        self.pending.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.pending);
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && may_go_on(invalid) {
                self.pending = invalid.to_vec();
            } else {
                self.replace(invalid.len(), text);
            }
        }
    }

    fn flush(&mut self, text: &mut String) {
        let held = std::mem::take(&mut self.pending);
        self.replace(held.len(), text);
    }

    /// For bytes that are no character: one U+FFFD, or with byte fallback one a byte.
    fn replace(&self, bytes: usize, text: &mut String) {
        let count = match self.pieces.decoding {
            Decoding::ByteLevel => bytes.min(1),
            Decoding::ByteFallback { .. } => bytes,
        };
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count));
    }

    fn stripped(&mut self, text: String) -> String {
        if text.is_empty() || !std::mem::take(&mut self.strip_space) {
            return text;
        }
        match text.strip_prefix(' ') {
            Some(rest) => rest.to_owned(),
            None => text,
        }
    }
}

/// Whether more bytes could make these the beginning of a character.
fn may_go_on(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => false,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    }
}
