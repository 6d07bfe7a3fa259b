//! What lies where in a mapping of rings, and who writes it.
//!
//! Layout (version 3): [`Header`], padded to a page, then `ring_count` times
//! `ring_words` words, then two times `open_words` words. Fresh memory is all
//! zeros, which is a valid mapping with free rings; pages are touched only when
//! used.
//!
//! Who writes what:
//! - its maker: the layout, before anybody else has it;
//! - a producer: its ring's `head`, `drops`, words, and (at claim and return) its owner;
//! - the drainer (the process's writer thread; after its death the launcher):
//!   tails, commits, anchors, what is open before the kept records, and the
//!   identity before recording begins;
//! - whoever begins, switches or ends a session: its slot, see [`super::slot`].

use super::slot::{MAX_SESSIONS, SessionSlot};
use crate::clock::Timeline;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Rings of a mapping at most.
pub(crate) const MAX_RINGS: usize = 128;
/// Says that a mapping is of this layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"nanorng\x03");

/// The head of a mapping.
#[repr(C)]
pub(crate) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) ring_count: AtomicU32,
    pub(super) ring_words: AtomicU32,
    /// Room, twice, for what is open before the kept records; 0: none are kept.
    pub(super) open_words: AtomicU32,
    /// 1: a process records into them, or did.
    pub(super) used: AtomicU32,
    /// 1: records carry [`RawClock::Tsc`](crate::clock::RawClock::Tsc).
    pub(super) tsc: AtomicU32,
    /// The fields of [`Identity`](crate::identity::Identity).
    pub(super) run: AtomicU64,
    pub(super) pid: AtomicU32,
    pub(super) started_ns: AtomicU64,
    /// So long are records kept that have been read, in ns; 0: not at all.
    pub(crate) keep_ns: AtomicU64,
    /// The drainer's thread, whose track a salvager goes on with.
    pub(crate) writer_tid: AtomicU32,
    pub(crate) sessions: [SessionSlot; MAX_SESSIONS],
    /// Claims of rings so far.
    pub(crate) claims: AtomicU64,
    /// Records of threads that found no free ring.
    pub(crate) unclaimed_drops: AtomicU64,
    /// Whole commits so far; the newest is `commits[count % 2]`.
    pub(super) commit_count: AtomicU64,
    pub(super) commits: [Commit; 2],
    pub(super) anchor_count: AtomicU64,
    pub(super) anchors: [[AtomicU64; 2]; Timeline::CAPACITY],
    pub(crate) rings: [RingHeader; MAX_RINGS],
}

/// What is safely in the files. Two of them, written in turn, so that one is
/// whole whenever the process dies.
#[repr(C)]
pub(super) struct Commit {
    /// Nanoseconds of CLOCK_BOOTTIME up to which records have been selected.
    pub(super) decided_ns: AtomicU64,
    /// By slot: words of a [`CommittedSession`].
    pub(super) sessions: [[AtomicU64; 4]; MAX_SESSIONS],
    pub(super) tails: [AtomicU64; MAX_RINGS],
    /// Words of a [`Forgotten`].
    pub(super) forgotten: [AtomicU64; 3],
    /// Where kept records begin; at `tails` if none are kept.
    pub(super) kept: [AtomicU64; MAX_RINGS],
}

/// What a commit says of the records that are not kept any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forgotten {
    /// CLOCK_BOOTTIME of the newest of them.
    pub(crate) ns: u64,
    /// Records that had found no room then.
    pub(crate) drops: u64,
    /// Which account of what was open then is meant: the `open % 2`th place has it.
    pub(crate) open: u64,
}

/// What a commit says of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommittedSession {
    /// Which; 0: none.
    pub(crate) number: u32,
    /// So much of its file holds every record before the commit's tails.
    pub(crate) file_len: u64,
    /// Switches that the file shows.
    pub(crate) switches: u64,
    /// Since when it is on; 0: it is off.
    pub(crate) on_since: u64,
}

/// Positions of one ring, in words since the mapping was made; never reset.
/// Invariant: `tail <= head <= tail + ring_words`, and from `tail` to `head`
/// lie whole entries.
#[repr(C)]
pub(crate) struct RingHeader {
    pub(crate) producer: ProducerLine,
    pub(crate) drainer: DrainerLine,
}

/// Written by the producer, on cache lines of its own.
#[repr(C, align(128))]
pub(crate) struct ProducerLine {
    /// Release: entries before it are whole.
    pub(crate) head: AtomicU64,
    /// Records that found no room.
    pub(crate) drops: AtomicU64,
    /// An [`Owner`].
    pub(crate) owner: AtomicU32,
    pub(crate) tid: AtomicU32,
    /// Which claim of a ring this is; orders the threads of the process.
    pub(crate) claim: AtomicU64,
    /// The thread's name as the kernel keeps it: 15 bytes and zeros.
    pub(crate) name: [AtomicU64; 2],
}

/// Written by the drainer.
#[repr(C, align(128))]
pub(crate) struct DrainerLine {
    /// Release: words before it may be overwritten.
    pub(crate) tail: AtomicU64,
}

/// Whose a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Owner {
    /// Anybody may claim it.
    Nobody = 0,
    /// A thread's.
    Thread = 1,
    /// Its thread has ended; the drainer frees it once it is empty.
    Drainer = 2,
}

impl RingHeader {
    pub(crate) const fn new() -> RingHeader {
        RingHeader {
            producer: ProducerLine {
                head: AtomicU64::new(0),
                drops: AtomicU64::new(0),
                owner: AtomicU32::new(Owner::Nobody as u32),
                tid: AtomicU32::new(0),
                claim: AtomicU64::new(0),
                name: [const { AtomicU64::new(0) }; 2],
            },
            drainer: DrainerLine {
                tail: AtomicU64::new(0),
            },
        }
    }

    /// The owner, and with it (Acquire) what the thread wrote at its claim.
    pub(crate) fn owner(&self) -> Owner {
        match self.producer.owner.load(Ordering::Acquire) {
            0 => Owner::Nobody,
            1 => Owner::Thread,
            _ => Owner::Drainer,
        }
    }
}
