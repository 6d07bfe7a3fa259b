//! What is open, and what counters stand at, where kept records begin, as
//! records: a request's texts and BEGINs, and a counter's value. (A request
//! that was named right before, and begins right after, shows without its name.)
//!
//! ```text
//! word 0  words in all
//! then    records, without their times
//! ```

use crate::clock::Timeline;
use crate::entry::{FIXED_WORDS, Head, Kind, TEXT_WORDS, pack_text};
use crate::request_tracks::RequestTracks;
use crate::walk::{Counters, Span, Walk};
use crate::{Event, identity::Identity};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

/// Writes the account. What finds no room in `to` is left out: such a request
/// shows again from its next BEGIN on.
pub(crate) fn write(requests: &RequestTracks, counters: &Counters, to: &[AtomicU64]) {
    // As in a commit.
    fence(Release);
    let mut account = Account { to, len: 1 };
    for &(event, value) in counters.values() {
        account.put(head(Kind::Counter, event, 1, 1), &[&[value]]);
    }
    for (_, track) in requests.open() {
        let begun = account.len;
        let mut fits = true;
        let key = [track.trace_key];
        for (name, text) in track.texts(requests.keys()) {
            let mut packed = [0; TEXT_WORDS];
            let words = pack_text(name, text, &mut packed);
            let head = head(Kind::Text, track.open[0].event, 0, 1 + words);
            fits &= account.put(head, &[&key, &packed[..words]]);
        }
        for slice in &track.open {
            let args = slice.args();
            let head = head(Kind::RequestBegin, slice.event, args.len(), 1 + args.len());
            fits &= account.put(head, &[&key, args]);
        }
        if !fits {
            // Its slices nest as a whole or not at all.
            account.len = begun;
        }
    }
    account.end();
}

/// Takes in an account.
pub(crate) fn read(account: &[AtomicU64], process: Identity) -> (RequestTracks, Counters) {
    let span = Span {
        words: account,
        tail: 1,
        head: len(account),
    };
    let mut walk = Walk::new(process, vec![span]);
    // Its records have no times.
    let mut timeline = Timeline::default();
    walk.begin(u64::MAX);
    while let Some(record) = walk.next(&mut timeline) {
        let request = walk.step(&record);
        walk.pass(&record, request);
    }
    (walk.requests, walk.counters)
}

/// Words of an account.
pub(crate) fn len(account: &[AtomicU64]) -> u64 {
    let len = account.first().map_or(1, |word| word.load(Relaxed));
    len.clamp(1, account.len().max(1) as u64)
}

struct Account<'a> {
    to: &'a [AtomicU64],
    len: usize,
}

impl Account<'_> {
    /// Appends a record if it has room.
    fn put(&mut self, head: Head, parts: &[&[u64]]) -> bool {
        let end = self.len + usize::from(head.words);
        let Some(to) = self.to.get(self.len..end) else {
            return false;
        };
        let fixed = [head.to_word(), 0];
        let words = fixed.iter().chain(parts.iter().copied().flatten());
        for (to, &word) in to.iter().zip(words) {
            to.store(word, Relaxed);
        }
        self.len = end;
        true
    }

    fn end(self) {
        if let Some(first) = self.to.first() {
            first.store(self.len as u64, Relaxed);
        }
    }
}

fn head(kind: Kind, event: Event, args: usize, words: usize) -> Head {
    Head {
        kind,
        event,
        first_arg: 0,
        args: args as u8,
        flows: 0,
        words: (FIXED_WORDS + words) as u16,
    }
}
