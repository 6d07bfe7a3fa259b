//! The printable alphabet in which byte-level vocabularies write bytes.
//!
//! GPT-2's encoder writes bytes that are printable in Latin-1 as themselves and
//! the others, in order, as the characters from U+0100 on.

/// Whether the byte is written as the character of the same number.
fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..)
}

/// Bytes by character, for the characters of the alphabet.
pub(super) struct ByteAlphabet {
    /// Bytes written as U+0100, U+0101, ...
    shifted: Vec<u8>,
}

impl ByteAlphabet {
    pub fn new() -> Self {
        Self {
            shifted: (0..=u8::MAX).filter(|&byte| !is_itself(byte)).collect(),
        }
    }

    fn byte(&self, c: char) -> Option<u8> {
        match u8::try_from(u32::from(c)) {
            Ok(byte) => is_itself(byte).then_some(byte),
            Err(_) => self.shifted.get(u32::from(c) as usize - 0x100).copied(),
        }
    }

    /// The bytes that a token stands for. One with a character outside of the
    /// alphabet was added as text and stands for itself.
    pub fn bytes(&self, token: &str) -> Vec<u8> {
        token
            .chars()
            .map(|c| self.byte(c))
            .collect::<Option<Vec<u8>>>()
            .unwrap_or_else(|| token.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let alphabet = ByteAlphabet::new();
        let mut bytes: Vec<u8> = (0..0x400)
            .filter_map(char::from_u32)
            .filter_map(|c| alphabet.byte(c))
            .collect();
        bytes.sort_unstable();
        assert!(bytes.iter().copied().eq(0..=u8::MAX));
    }

    #[test]
    fn tokens() {
        let alphabet = ByteAlphabet::new();
        assert_eq!(alphabet.bytes("ĠHi"), b" Hi");
        assert_eq!(alphabet.bytes("Ċ"), b"\n");
        assert_eq!(alphabet.bytes("ðŁĺĢ"), "😀".as_bytes());
        assert_eq!(alphabet.bytes("<a b>"), b"<a b>");
    }
}
