//! All that the rings of a process hold, as of one moment, while it goes on, is
//! stopped, or is dead.
//!
//! Why a picture is whole: what a commit says is copied until no other commit
//! came meanwhile. Entries behind it are overwritten only after the writer has
//! committed that they may be, and then after half a ring of others; that this
//! has not happened is seen by how far the ring is after the copy.

use super::open_account;
use crate::clock::{Anchor, Timeline};
use crate::encoder::Thread;
use crate::entry::MAX_WORDS;
use crate::identity::Identity;
use crate::request_tracks::RequestTracks;
use crate::rings::{Forgotten, Rings};
use crate::walk::{Counters, Span, Walk};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

/// See the module.
pub(crate) struct Picture {
    pub(crate) identity: Identity,
    /// With an anchor before which every record is in the picture.
    pub(crate) timeline: Timeline,
    pub(crate) forgotten: Forgotten,
    /// Records that have found no room.
    pub(crate) drops: u64,
    requests: RequestTracks,
    counters: Counters,
    rings: Vec<PicturedRing>,
}

struct PicturedRing {
    /// At least those from `tail` to `head`, each at its place.
    words: Vec<AtomicU64>,
    tail: u64,
    head: u64,
    thread: Thread,
}

/// The writer commits, or a producer writes, faster than can be copied.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the process records faster than its rings can be copied")]
pub(crate) struct TooFast;

/// Pictures that are tried. A commit comes a few times a second.
const ATTEMPTS: u32 = 100;

impl Picture {
    /// `None`: the process keeps nothing.
    pub(crate) fn take(rings: &Rings) -> Result<Option<Picture>, TooFast> {
        if rings.header().keep_ns.load(Acquire) == 0 {
            return Ok(None);
        }
        for attempt in 0..ATTEMPTS {
            // In this order: an anchor that is older than the writer's newest one
            // would look like time that ran backwards.
            let mut timeline = rings.timeline();
            timeline.push(Anchor::read(rings.clock()));
            if let Some(picture) = attempt_at(rings, timeline) {
                return Ok(Some(picture));
            }
            std::thread::sleep(Duration::from_micros(100) * attempt);
        }
        Err(TooFast)
    }

    /// Through all that is in the picture, from where it begins.
    pub(crate) fn walk(&self) -> Walk<'_> {
        let spans = self.rings.iter().map(|ring| Span {
            words: &ring.words,
            tail: ring.tail,
            head: ring.head,
        });
        let mut walk = Walk::new(self.identity, spans.collect());
        walk.requests = self.requests.clone();
        walk.counters = self.counters.clone();
        walk
    }

    /// Whose a ring is, or was last.
    pub(crate) fn thread(&self, ring: usize) -> Thread {
        self.rings[ring].thread.clone()
    }

    pub(crate) fn num_rings(&self) -> usize {
        self.rings.len()
    }
}

/// `timeline` ends now. `None`: too much happened meanwhile.
fn attempt_at(rings: &Rings, timeline: Timeline) -> Option<Picture> {
    let identity = rings.identity();
    let (count, forgotten, kept) = rings.committed_kept();
    let account = rings.open_account(forgotten.open);
    let account = copy(account, 0, open_account::len(account));
    let of_ring = |(ring, &tail): (usize, &u64)| {
        let header = rings.ring(ring).0;
        (tail, header.producer.head.load(Acquire), Thread::of(header))
    };
    let looks: Vec<(u64, u64, Thread)> = kept.iter().enumerate().map(of_ring).collect();
    let drops = rings.drops();
    if !rings.is_committed(count) {
        return None;
    }
    let mut pictured = Vec::with_capacity(looks.len());
    for (ring, (tail, head, thread)) in looks.into_iter().enumerate() {
        let (header, words) = rings.ring(ring);
        // Positions that cannot be are the work of a process that went wrong.
        let head = match head.checked_sub(tail) {
            Some(len) if len <= words.len() as u64 => head,
            _ => tail,
        };
        let copied = copy(words, tail, head);
        fence(Acquire);
        let end = header.producer.head.load(Relaxed) + MAX_WORDS as u64;
        let may_be_overwritten = end > tail + words.len() as u64;
        if may_be_overwritten && header.drainer.tail.load(Relaxed) > tail {
            return None;
        }
        pictured.push(PicturedRing {
            words: copied,
            tail,
            head,
            thread,
        });
    }
    let (requests, counters) = open_account::read(&account, identity);
    Some(Picture {
        identity,
        timeline,
        forgotten,
        drops,
        requests,
        counters,
        rings: pictured,
    })
}

/// The words from one position to another one, in as many words as a power of
/// two, each at its position's place.
fn copy(words: &[AtomicU64], from: u64, to: u64) -> Vec<AtomicU64> {
    let len = usize::try_from(to - from).unwrap_or(0).min(words.len());
    let mut copied = Vec::new();
    copied.resize_with(len.next_power_of_two(), AtomicU64::default);
    let mask = copied.len() - 1;
    for position in from..from + len as u64 {
        let word = &words[position as usize & (words.len() - 1)];
        *copied[position as usize & mask].get_mut() = word.load(Relaxed);
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    #[test]
    fn times_hold_while_the_writer_adds_anchors() {
        let rings = Rings::create_keeping_sized(1, 64).unwrap();
        rings.set_keep(Some(Duration::from_secs(1)));
        let first = Anchor::read(rings.clock());
        rings.push_anchor(first);
        let is_over = AtomicBool::new(false);
        let wrong = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    rings.push_anchor(Anchor::read(rings.clock()));
                    std::thread::sleep(Duration::from_micros(1));
                }
            });
            let mut wrong = None;
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(200) {
                let mut picture = Picture::take(&rings).unwrap().unwrap();
                let newest = picture.timeline.newest().unwrap();
                let raw_ago = picture.timeline.raw_before(Duration::from_micros(500));
                let ago = newest.boottime - picture.timeline.convert(raw_ago);
                if newest.boottime > first.boottime + 1_000_000 && ago < 100_000 {
                    wrong = Some(ago);
                }
            }
            is_over.store(true, Relaxed);
            wrong
        });
        assert_eq!(wrong, None, "nanoseconds that 500 us took");
    }
}
