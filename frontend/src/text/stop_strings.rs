//! Stop strings in a stream of text.

use std::sync::Arc;

/// A request's stop strings. None of them is empty.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    patterns: Arc<[Pattern]>,
    include_in_output: bool,
}

/// A stop string, prepared for matching byte by byte (Knuth, Morris and Pratt,
/// "Fast pattern matching in strings", 1977).
#[derive(Debug)]
struct Pattern {
    text: Box<str>,
    /// `failure[i]`: length of the longest proper prefix of `text[..=i]` that
    /// is also its suffix.
    failure: Box<[usize]>,
}

impl StopStrings {
    /// Empty strings among `stop` are ignored. `include_in_output`: the stop
    /// string that ended the text is shown.
    pub fn new(stop: &[String], include_in_output: bool) -> Self {
        Self {
            patterns: stop
                .iter()
                .filter(|text| !text.is_empty())
                .map(|text| Pattern::new(text))
                .collect(),
            include_in_output,
        }
    }

    /// Whether there is anything to stop at.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Watches one text.
    pub fn matcher(&self) -> StopMatcher {
        StopMatcher {
            matched: vec![0; self.patterns.len()],
            stop: self.clone(),
            held: String::new(),
            stopped: None,
        }
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let mut pattern = Self {
            text: text.into(),
            failure: vec![0; text.len()].into(),
        };
        for i in 1..text.len() {
            pattern.failure[i] = pattern.step(pattern.failure[i - 1], text.as_bytes()[i]);
        }
        pattern
    }

    /// `matched` bytes of the pattern were the end of the text; how many are
    /// after one byte more. `matched` is below the pattern's length.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        let pattern = self.text.as_bytes();
        while matched > 0 && pattern[matched] != byte {
            matched = self.failure[matched - 1];
        }
        matched + usize::from(pattern[matched] == byte)
    }
}

/// Watches one text for stop strings.
///
/// Only what could still be the beginning of a stop string is held back. The
/// text ends at the stop string that is complete first, and of those complete
/// at the same byte, at the longest: this does not depend on how the text was
/// cut into pieces.
#[derive(Debug)]
pub struct StopMatcher {
    stop: StopStrings,
    /// By pattern: how many of its bytes the text so far ends with. Each is
    /// below the pattern's length, and at most `held.len()`.
    matched: Vec<usize>,
    /// The end of the text that was not shown: as long as the longest of `matched`.
    held: String,
    /// Index of the stop string that ended the text.
    stopped: Option<usize>,
}

impl StopMatcher {
    /// The text that may be shown now that this piece came. Once
    /// [`stopped_at`](Self::stopped_at) says something, the text has ended and
    /// nothing more is shown.
    pub fn push(&mut self, piece: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (at, byte) in piece.bytes().enumerate() {
            if let Some(index) = self.step(byte) {
                self.stopped = Some(index);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(before + at + 1);
                if !self.stop.include_in_output {
                    text.truncate(text.len() - self.stop.patterns[index].text.len());
                }
                return text;
            }
        }
        // A pattern begins with a whole character, so this is no cut within one.
        let longest = self.matched.iter().copied().max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - longest);
        std::mem::replace(&mut self.held, held)
    }

    /// What is still held, when the text ends for another reason.
    pub fn finish(self) -> String {
        self.held
    }

    /// The stop string that ended the text.
    pub fn stopped_at(&self) -> Option<&str> {
        self.stopped.map(|index| &*self.stop.patterns[index].text)
    }

    /// The longest pattern that this byte completes.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut complete: Option<usize> = None;
        let patterns = &self.stop.patterns;
        for (index, (pattern, matched)) in patterns.iter().zip(&mut self.matched).enumerate() {
            *matched = pattern.step(*matched, byte);
            let longer = |best: usize| pattern.text.len() > patterns[best].text.len();
            if *matched == pattern.text.len() && complete.is_none_or(longer) {
                complete = Some(index);
            }
        }
        complete
    }
}
