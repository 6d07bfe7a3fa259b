//! Changed copies of a seed, the same ones in every run.

/// Numbers at which readers of lengths and sizes break.
const WORDS: [u64; 9] = [
    0,
    1,
    0x7f,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    u64::MAX / 2 + 1,
    u64::MAX,
];

/// Texts at which readers of JSON break.
const TEXTS: [&str; 12] = [
    "0",
    "-1",
    "1e999",
    "4294967296",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[[[",
    "\u{0}",
    "\\ud800",
];

/// An endless row of changes, which begins the same each time.
pub struct Mutations {
    state: u64,
}

impl Mutations {
    pub fn new() -> Mutations {
        Mutations { state: 1 }
    }

    /// A copy with one to four changes.
    pub fn of(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len().max(1)).min(bytes.len());
        let some = at..bytes.len().min(at + 1 + self.below(16));
        match self.below(7) {
            0 => bytes[some]
                .iter_mut()
                .take(1)
                .for_each(|byte| *byte ^= 1 << self.below(8)),
            1 => {
                let word = WORDS[self.below(WORDS.len())].to_le_bytes();
                bytes[some]
                    .iter_mut()
                    .zip(word)
                    .for_each(|(byte, new)| *byte = new);
            }
            2 => {
                let text = TEXTS[self.below(TEXTS.len())];
                bytes.splice(some, text.bytes());
            }
            3 => self.change_number(bytes, at),
            4 => drop(bytes.drain(some)),
            5 => {
                let copy = bytes[some].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => bytes.truncate(at),
        }
    }

    /// Puts a text in place of the next number in decimal digits.
    fn change_number(&mut self, bytes: &mut Vec<u8>, from: usize) {
        let digit = |byte: &u8| byte.is_ascii_digit();
        let Some(skipped) = bytes[from..].iter().position(digit) else {
            return;
        };
        let start = from + skipped;
        let len = bytes[start..].iter().take_while(|byte| digit(byte)).count();
        let text = TEXTS[self.below(TEXTS.len())];
        bytes.splice(start..start + len, text.bytes());
    }

    /// A number below `bound`, which is above 0.
    fn below(&mut self, bound: usize) -> usize {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
