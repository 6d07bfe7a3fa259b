//! What the launcher must know of a session to complete its file.
//!
//! A slot's fields are written while it is free, or (switches, ends) by one
//! thread at a time under the recorder's lock; `number` is stored last at the
//! begin and first at the end, so a slot with a number is whole.

use crate::switches::Switch;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

/// Sessions of a process that record or are being written, at most.
pub(crate) const MAX_SESSIONS: usize = 4;
/// Switches that a slot keeps for those who have not looked at them yet.
pub(crate) const MAX_SWITCHES: u64 = 512;
/// Room for a file's name, in words.
const NAME_WORDS: usize = 32;

/// See the module. All zeros is a free one.
#[repr(C)]
pub(crate) struct SessionSlot {
    /// The session's number, from 1; 0: free.
    number: AtomicU32,
    flags: AtomicU32,
    max_bytes: AtomicU64,
    /// Length of the file when it was begun: what the process is.
    begun_len: AtomicU64,
    /// Lost records of the rings when it was begun.
    drops_before: AtomicU64,
    /// When it ends because it was told to; 0: not known.
    end_ns: AtomicU64,
    /// When its duration is over; 0: not known.
    deadline_ns: AtomicU64,
    /// Switches so far; the newest are in `switches`, each at its number's place.
    switch_count: AtomicU64,
    switches: [AtomicU64; MAX_SWITCHES as usize],
    file_name_len: AtomicU32,
    file_name: [AtomicU64; NAME_WORDS],
}

/// What a slot says of its session from its begin on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotFacts {
    pub(crate) number: u32,
    pub(crate) file_name: String,
    pub(crate) max_bytes: u64,
    pub(crate) begun_len: u64,
    pub(crate) drops_before: u64,
    pub(crate) marked_only: bool,
    /// Records of details beyond are not the session's.
    pub(crate) detail: u8,
}

impl SessionSlot {
    /// Bytes of a file's name at most.
    pub(crate) const FILE_NAME_BYTES: usize = NAME_WORDS * size_of::<u64>();

    /// Fills a free slot. `facts.file_name` is at most `FILE_NAME_BYTES` long.
    pub(crate) fn fill(&self, facts: &SlotFacts) {
        let name = &facts.file_name;
        assert!(name.len() <= Self::FILE_NAME_BYTES);
        for (word, chunk) in self.file_name.iter().zip(name.as_bytes().chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
        self.file_name_len.store(name.len() as u32, Relaxed);
        self.max_bytes.store(facts.max_bytes, Relaxed);
        self.begun_len.store(facts.begun_len, Relaxed);
        self.drops_before.store(facts.drops_before, Relaxed);
        let flags = u32::from(facts.marked_only) | u32::from(facts.detail) << 8;
        self.flags.store(flags, Relaxed);
        for word in [&self.end_ns, &self.deadline_ns, &self.switch_count] {
            word.store(0, Relaxed);
        }
        self.number.store(facts.number, Release);
    }

    /// Nothing more belongs to the file.
    pub(crate) fn free(&self) {
        self.number.store(0, Release);
    }

    /// `None`: the slot is free, or says nothing that makes sense.
    pub(crate) fn facts(&self) -> Option<SlotFacts> {
        let number = self.number.load(Acquire);
        let len = self.file_name_len.load(Relaxed) as usize;
        let words = self.file_name.iter().map(|word| word.load(Relaxed));
        let bytes = words.flat_map(u64::to_le_bytes).take(len).collect();
        let file_name = String::from_utf8(bytes).ok()?;
        let is_name = !file_name.is_empty() && !file_name.contains(['/', '\0']);
        let flags = self.flags.load(Relaxed);
        (number != 0 && is_name).then(|| SlotFacts {
            number,
            file_name,
            max_bytes: self.max_bytes.load(Relaxed),
            begun_len: self.begun_len.load(Relaxed),
            drops_before: self.drops_before.load(Relaxed),
            marked_only: flags & 1 == 1,
            detail: (flags >> 8) as u8,
        })
    }

    /// Adds a switch; `passed` of them have been looked at. `false`: there is no room.
    pub(crate) fn push_switch(&self, switch: Switch, passed: u64) -> bool {
        let count = self.switch_count.load(Relaxed);
        if count - passed.min(count) >= MAX_SWITCHES {
            return false;
        }
        self.switches[(count % MAX_SWITCHES) as usize].store(switch.to_word(), Relaxed);
        self.switch_count.store(count + 1, Release);
        true
    }

    /// Switches from number `from` on, of those that are kept.
    pub(crate) fn switches(&self, from: u64) -> impl Iterator<Item = Switch> {
        let count = self.switch_count.load(Acquire);
        let from = from.max(count.saturating_sub(MAX_SWITCHES));
        (from..count).map(|place| {
            let word = &self.switches[(place % MAX_SWITCHES) as usize];
            Switch::from_word(word.load(Relaxed))
        })
    }

    /// How many switches there have been, and the newest.
    pub(crate) fn newest_switch(&self) -> (u64, Option<Switch>) {
        let count = self.switch_count.load(Acquire);
        (count, self.switches(count.saturating_sub(1)).next())
    }

    pub(crate) fn set_end(&self, at_ns: u64) {
        self.end_ns.store(at_ns.max(1), Release);
    }

    pub(crate) fn set_deadline(&self, at_ns: u64) {
        self.deadline_ns.store(at_ns.max(1), Release);
    }

    /// When it was told to end, and when its duration is over, where known.
    pub(crate) fn ends(&self) -> [Option<u64>; 2] {
        [&self.end_ns, &self.deadline_ns].map(|word| Some(word.load(Acquire)).filter(|&ns| ns != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rings::Rings;

    #[test]
    fn a_slot_says_what_it_was_told_until_it_is_free() {
        let rings = Rings::create_sized(1, 64).unwrap();
        let slot = &rings.header().sessions[3];
        assert_eq!(slot.facts(), None);
        let facts = SlotFacts {
            number: 7,
            file_name: "a.core.0123456789abcdef-17.pftrace".to_owned(),
            max_bytes: 1 << 40,
            begun_len: 99,
            drops_before: 5,
            marked_only: true,
            detail: 2,
        };
        slot.fill(&facts);
        assert_eq!(slot.facts(), Some(facts.clone()));
        slot.set_end(5);
        assert_eq!(slot.ends(), [Some(5), None]);
        for name in ["", "../x", "a/b"] {
            let file_name = name.to_owned();
            slot.fill(&SlotFacts {
                file_name,
                ..facts.clone()
            });
            assert_eq!(slot.facts(), None, "{name:?}");
        }
        slot.fill(&facts);
        assert_eq!(slot.ends(), [None; 2]);
        slot.free();
        assert_eq!(slot.facts(), None);
    }

    #[test]
    fn no_switch_is_overwritten_that_nobody_looked_at() {
        let rings = Rings::create_sized(1, 64).unwrap();
        let slot = &rings.header().sessions[0];
        let switch = |at_ns| Switch {
            at_ns,
            on: at_ns % 2 == 0,
        };
        for at_ns in 0..MAX_SWITCHES {
            assert!(slot.push_switch(switch(at_ns), 0));
        }
        assert!(!slot.push_switch(switch(9999), 0));
        assert!(slot.push_switch(switch(MAX_SWITCHES), 1));
        assert_eq!(slot.newest_switch().1, Some(switch(MAX_SWITCHES)));
        assert!(slot.switches(1).eq((1..=MAX_SWITCHES).map(switch)));
    }
}
