//! The mapping that a process's rings lie in, shared with its launcher.
//!
//! A memfd, so that the records of a process killed by SIGKILL outlive it:
//! the launcher maps it too. All positions and words are atomics; whatever one
//! side does to them, the other reads numbers, never undefined behaviour.

mod layout;
mod mapping;
mod slot;
#[cfg(test)]
mod stress;

pub(crate) use layout::{CommittedSession, Forgotten, Header, MAX_RINGS, Owner, RingHeader};
pub use mapping::RingsError;
use mapping::{Mapping, Size};
pub(crate) use slot::{MAX_SESSIONS, SessionSlot, SlotFacts};

use crate::clock::{Anchor, RawClock, Timeline};
use crate::entry::Entry;
use crate::identity::Identity;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Words of a ring, where its maker says nothing else: 256 KiB, some 6500 slices.
const RING_WORDS: u32 = 1 << 15;
/// Words of a ring that keeps what has been read: 2 MiB, some 52,000 slices, of
/// which half are kept at least.
const KEEPING_RING_WORDS: u32 = 1 << 18;
/// Words for what is open before the kept records: 1 MiB, some 4,000 requests.
const OPEN_WORDS: usize = 1 << 17;

/// Rings of one process, in memory that outlives it.
#[derive(Debug)]
pub struct Rings(Mapping);

impl Rings {
    /// Makes a mapping of the usual size: 128 rings of 256 KiB.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn create() -> Result<Rings, RingsError> {
        Rings::create_sized(MAX_RINGS, RING_WORDS)
    }

    /// Makes a mapping for flight recording: 128 rings of 2 MiB. Memory is
    /// taken as it is used: at most 2 MiB a thread that records, and 2 MiB for
    /// requests that began before what is kept.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn create_keeping() -> Result<Rings, RingsError> {
        Rings::create_keeping_sized(MAX_RINGS, KEEPING_RING_WORDS)
    }

    /// Makes a mapping of `count` rings (at most 128) of `words` words (a power of two).
    pub(crate) fn create_sized(count: usize, words: u32) -> Result<Rings, RingsError> {
        Rings::of_size(count, words, 0)
    }

    /// As [`Rings::create_sized`], for flight recording.
    pub(crate) fn create_keeping_sized(count: usize, words: u32) -> Result<Rings, RingsError> {
        Rings::of_size(count, words, OPEN_WORDS)
    }

    fn of_size(rings: usize, ring_words: u32, open_words: usize) -> Result<Rings, RingsError> {
        let size = Size {
            rings,
            ring_words: ring_words as usize,
            open_words,
        };
        Mapping::create(size).map(Rings)
    }

    /// Maps rings that another process made.
    ///
    /// # Errors
    /// When the descriptor is not of such rings.
    pub fn open(fd: OwnedFd) -> Result<Rings, RingsError> {
        Mapping::open(fd).map(Rings)
    }

    /// The descriptor to hand to the process that records.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    pub(crate) fn header(&self) -> &Header {
        self.0.header()
    }

    /// How many rings there are.
    pub(crate) fn count(&self) -> usize {
        self.0.count()
    }

    /// Header and words of a ring; `ring < count()`.
    pub(crate) fn ring(&self, ring: usize) -> (&RingHeader, &[AtomicU64]) {
        self.0.ring(ring)
    }

    /// The place of the `number`th account of what is open before the kept
    /// records; without room where none are kept.
    pub(crate) fn open_account(&self, number: u64) -> &[AtomicU64] {
        self.0.open_account(number)
    }

    /// Takes fresh rings for this process; `false`: they have been recorded into.
    pub(crate) fn take(&self) -> bool {
        self.header().used.swap(1, Ordering::AcqRel) == 0
    }

    pub(crate) fn clock(&self) -> RawClock {
        match self.header().tsc.load(Ordering::Relaxed) {
            1 => RawClock::Tsc,
            _ => RawClock::Boottime,
        }
    }

    pub(crate) fn set_clock(&self, clock: RawClock) {
        let tsc = u32::from(clock == RawClock::Tsc);
        self.header().tsc.store(tsc, Ordering::Relaxed);
    }

    /// How long records are kept that have been read. Comes after the identity:
    /// from then on others may ask for them.
    pub(crate) fn set_keep(&self, keep: Option<Duration>) {
        let ns = keep.map_or(0, |keep| keep.as_nanos() as u64);
        self.header().keep_ns.store(ns, Ordering::Release);
    }

    /// Who records.
    pub(crate) fn identity(&self) -> Identity {
        let header = self.header();
        Identity {
            run: header.run.load(Ordering::Relaxed),
            pid: header.pid.load(Ordering::Relaxed),
            started_ns: header.started_ns.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set_identity(&self, identity: &Identity) {
        let header = self.header();
        header.run.store(identity.run, Ordering::Relaxed);
        header.pid.store(identity.pid, Ordering::Relaxed);
        let started = &header.started_ns;
        started.store(identity.started_ns, Ordering::Relaxed);
    }

    /// Remembers that the files of `sessions` hold every entry before `tails`
    /// that they select, and gives that room back to the producers.
    pub(crate) fn commit(
        &self,
        decided_ns: u64,
        sessions: [CommittedSession; MAX_SESSIONS],
        tails: impl Iterator<Item = u64> + Clone,
    ) {
        let kept = (Forgotten::default(), tails.clone());
        self.commit_kept((decided_ns, sessions, tails), kept);
    }

    /// As [`Rings::commit`], but gives back only what lies before `kept`.
    pub(crate) fn commit_kept(
        &self,
        (decided_ns, sessions, tails): (
            u64,
            [CommittedSession; MAX_SESSIONS],
            impl Iterator<Item = u64>,
        ),
        (forgotten, kept): (Forgotten, impl Iterator<Item = u64> + Clone),
    ) {
        let header = self.header();
        let next = header.commit_count.load(Ordering::Relaxed) + 1;
        let commit = &header.commits[(next % 2) as usize];
        // Whoever reads what follows, and then the count, finds the last one or
        // a later one there ([`Rings::is_committed`]).
        fence(Ordering::Release);
        commit.decided_ns.store(decided_ns, Ordering::Relaxed);
        for (slot, session) in commit.sessions.iter().zip(sessions) {
            let number = u64::from(session.number);
            let words = [number, session.file_len, session.switches, session.on_since];
            for (word, value) in slot.iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
        }
        let forgotten = [forgotten.ns, forgotten.drops, forgotten.open];
        let words = commit.tails.iter().zip(tails);
        let words = words.chain(commit.kept.iter().zip(kept.clone()));
        for (word, value) in words.chain(commit.forgotten.iter().zip(forgotten)) {
            word.store(value, Ordering::Relaxed);
        }
        header.commit_count.store(next, Ordering::Release);
        for (ring, tail) in header.rings.iter().zip(kept) {
            ring.drainer.tail.store(tail, Ordering::Release);
        }
    }

    /// The newest whole commit: what was decided, and a tail for each ring.
    pub(crate) fn committed(&self) -> (u64, Vec<u64>) {
        let commit = self.newest_commit();
        let tails = commit.tails[..self.count()].iter();
        (
            commit.decided_ns.load(Ordering::Relaxed),
            tails.map(|t| t.load(Ordering::Relaxed)).collect(),
        )
    }

    /// Of the newest whole commit: how many there have been, what of it is not
    /// kept any more, and where the kept entries of each ring begin.
    pub(crate) fn committed_kept(&self) -> (u64, Forgotten, Vec<u64>) {
        let count = self.header().commit_count.load(Ordering::Acquire);
        let commit = &self.header().commits[(count % 2) as usize];
        let [ns, drops, open] =
            std::array::from_fn(|word| commit.forgotten[word].load(Ordering::Relaxed));
        let kept = commit.kept[..self.count()].iter();
        let kept = kept.map(|word| word.load(Ordering::Relaxed)).collect();
        (count, Forgotten { ns, drops, open }, kept)
    }

    /// Whether nothing has been committed since there were `count` commits;
    /// then what was read of it was whole.
    pub(crate) fn is_committed(&self, count: u64) -> bool {
        fence(Ordering::Acquire);
        self.header().commit_count.load(Ordering::Relaxed) == count
    }

    /// What the newest whole commit says of a slot's session, if it knows it.
    pub(crate) fn committed_session(&self, slot: usize, number: u32) -> Option<CommittedSession> {
        let words = &self.newest_commit().sessions[slot];
        let [committed, file_len, switches, on_since] =
            std::array::from_fn(|word| words[word].load(Ordering::Relaxed));
        (committed == u64::from(number)).then_some(CommittedSession {
            number,
            file_len,
            switches,
            on_since,
        })
    }

    fn newest_commit(&self) -> &layout::Commit {
        let header = self.header();
        let count = header.commit_count.load(Ordering::Acquire);
        &header.commits[(count % 2) as usize]
    }

    /// Records that had no room, in all rings together.
    pub(crate) fn drops(&self) -> u64 {
        let header = self.header();
        let rings = header.rings.iter();
        rings
            .map(|r| r.producer.drops.load(Ordering::Relaxed))
            .sum::<u64>()
            + header.unclaimed_drops.load(Ordering::Relaxed)
    }

    /// Shares an anchor with whoever may have to salvage.
    pub(crate) fn push_anchor(&self, anchor: Anchor) {
        let header = self.header();
        let count = header.anchor_count.load(Ordering::Relaxed);
        // As in a commit.
        fence(Ordering::Release);
        let [raw, boottime] = &header.anchors[count as usize % Timeline::CAPACITY];
        raw.store(anchor.raw, Ordering::Relaxed);
        boottime.store(anchor.boottime, Ordering::Relaxed);
        header.anchor_count.store(count + 1, Ordering::Release);
    }

    /// The anchors that were shared, oldest first.
    pub(crate) fn timeline(&self) -> Timeline {
        let header = self.header();
        let count = header.anchor_count.load(Ordering::Acquire);
        // The slot after the newest is the oldest; a drainer that died while
        // it wrote there left it torn. (Whatever the count says: others write it.)
        let oldest = |count: u64| {
            let next = count.saturating_add(1);
            next.saturating_sub(Timeline::CAPACITY as u64)
        };
        let anchors = (oldest(count)..count).map(|i| {
            let [raw, boottime] = &header.anchors[i as usize % Timeline::CAPACITY];
            Anchor {
                raw: raw.load(Ordering::Relaxed),
                boottime: boottime.load(Ordering::Relaxed),
            }
        });
        let anchors: Vec<Anchor> = anchors.collect();
        // So are those that one who lives has begun to overwrite meanwhile.
        fence(Ordering::Acquire);
        let now_oldest = oldest(header.anchor_count.load(Ordering::Relaxed));
        let torn = now_oldest.saturating_sub(oldest(count));
        let torn = usize::try_from(torn).unwrap_or(usize::MAX);
        let mut timeline = Timeline::default();
        for &anchor in anchors.iter().skip(torn) {
            timeline.push(anchor);
        }
        timeline
    }

    /// Checks the invariants of every ring; producers and drainer must rest.
    ///
    /// # Errors
    /// The first one that does not hold, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        let (_, committed) = self.committed();
        for (index, committed) in committed.into_iter().enumerate() {
            let (ring, words) = self.ring(index);
            let head = ring.producer.head.load(Ordering::Acquire);
            let tail = ring.drainer.tail.load(Ordering::Acquire);
            if !(tail <= head && head - tail <= words.len() as u64) {
                return Err(format!("ring {index}: head {head}, tail {tail}"));
            }
            if !(tail <= committed && committed <= head) && committed != 0 {
                return Err(format!(
                    "ring {index}: committed {committed}, head {head}, tail {tail}"
                ));
            }
            if ring.owner() == Owner::Nobody && tail != head {
                return Err(format!("ring {index}: free but not empty"));
            }
            let mut at = tail;
            let mut last = 0;
            while at < head {
                let Some(entry) = Entry::read(words, at, head) else {
                    return Err(format!("ring {index}: no entry at {at}"));
                };
                if entry.time() < last {
                    return Err(format!("ring {index}: time runs backwards at {at}"));
                }
                last = entry.time();
                at += entry.len();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_mapping_is_whole_and_opens_elsewhere() {
        let made = Rings::create().unwrap();
        made.check_integrity().unwrap();
        let opened = Rings::open(made.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(opened.count(), MAX_RINGS);
        made.set_clock(RawClock::Tsc);
        assert_eq!(opened.clock(), RawClock::Tsc);
        assert!(made.take());
        assert!(!opened.take(), "once");
    }

    #[test]
    fn other_files_are_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(Rings::open(file.into()), Err(RingsError::Layout)));
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        assert!(matches!(Rings::open(file.into()), Err(RingsError::Layout)));
    }

    #[test]
    fn the_newest_commit_is_found() {
        let rings = Rings::create_sized(2, 64).unwrap();
        assert_eq!(rings.committed(), (0, vec![0, 0]));
        for i in 1..4 {
            let mut sessions = [CommittedSession::default(); MAX_SESSIONS];
            sessions[2] = CommittedSession {
                number: 9,
                file_len: i * 10,
                switches: 1,
                on_since: 8,
            };
            rings.commit(i * 100, sessions, [i, i + 1].into_iter());
            assert_eq!(rings.committed(), (i * 100, vec![i, i + 1]));
            assert_eq!(rings.committed_session(2, 9), Some(sessions[2]));
            assert_eq!(rings.committed_session(2, 8), None, "an earlier one");
            assert_eq!(rings.committed_session(1, 9), None);
        }
    }

    #[test]
    fn anchors_survive_more_of_them_than_there_is_room() {
        let rings = Rings::create_sized(1, 64).unwrap();
        for i in 1..=10_000 {
            rings.push_anchor(Anchor {
                raw: i * 10,
                boottime: i * 5,
            });
        }
        let mut timeline = rings.timeline();
        assert_eq!(timeline.convert(99_995), 49_997);
        assert_eq!(timeline.convert(90_000), 45_000);
        assert_eq!(timeline.newest().unwrap().raw, 100_000);
        // A count that never was costs no more than what was shared.
        rings
            .header()
            .anchor_count
            .store(u64::MAX, Ordering::Relaxed);
        rings.timeline();
    }
}
