//! The writing side of a ring: one thread's.
//!
//! Invariants, all in words of the ring (`tail <= head` are positions):
//! - `head + reserved <= tail + ring_words`: whatever else is recorded, the
//!   END of every slice whose BEGIN lies in the ring has room;
//! - `reserved` is `MAX_END_WORDS` times the open slices of this thread;
//! - `limit <= tail + ring_words`, so below `limit` nothing need be asked.

use crate::clock::RawClock;
use crate::entry::{FIXED_WORDS, Head, Kind, MAX_END_WORDS, MAX_FLOWS};
use crate::rings::{Owner, RingHeader, Rings};
use crate::{Event, Flow};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a producer asks for when it runs out of room.
pub(crate) trait Home {
    /// The rings to claim one of; `None` while nothing records.
    fn rings(&self) -> Option<&'static Rings>;
    /// A ring is half full: its drainer should come soon.
    fn wake_drainer(&self);
}

/// The writing side of a ring. Starts without one, and claims one with its
/// first record.
pub(crate) struct Producer {
    ring: Cell<&'static RingHeader>,
    words: Cell<&'static [AtomicU64]>,
    head: Cell<u64>,
    /// Positions before it may be written without asking; 0 without a ring.
    limit: Cell<u64>,
    reserved: Cell<u64>,
    phase: Cell<Phase>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// May claim a ring.
    Idle,
    /// Has one.
    Claimed,
    /// Its thread ends.
    Over,
}

/// Stands in for a ring while there is none. Nothing is ever written to it.
static NO_RING: RingHeader = RingHeader::new();
static NO_WORDS: [AtomicU64; 1] = [AtomicU64::new(0)];

impl Producer {
    pub(crate) const fn new() -> Producer {
        Producer {
            ring: Cell::new(&NO_RING),
            words: Cell::new(&NO_WORDS),
            head: Cell::new(0),
            limit: Cell::new(0),
            reserved: Cell::new(0),
            phase: Cell::new(Phase::Idle),
        }
    }

    /// Begins a slice; `false`: there was no room, and it must not be ended.
    #[inline(always)]
    pub(crate) fn begin<const N: usize>(
        &self,
        home: &impl Home,
        clock: RawClock,
        event: Event,
        args: [u64; N],
        flows: &[Flow],
    ) -> bool {
        let flows = &flows[..flows.len().min(MAX_FLOWS)];
        let head = head(Kind::Begin, event, 0, N, flows);
        if !self.has_room(home, head.words, MAX_END_WORDS) {
            return false;
        }
        self.write(head, clock.now(), None, &args, flows);
        self.reserved.set(self.reserved.get() + MAX_END_WORDS);
        true
    }

    /// Ends the slice begun last; uses the room that its `begin` reserved.
    #[inline(always)]
    pub(crate) fn end<const N: usize>(
        &self,
        home: &impl Home,
        clock: RawClock,
        event: Event,
        first_arg: u8,
        args: [u64; N],
    ) {
        let now = clock.now();
        let reserved = self.reserved.get().saturating_sub(MAX_END_WORDS);
        self.reserved.set(reserved);
        let head = head(Kind::End, event, first_arg, N, &[]);
        if self.has_room(home, head.words, 0) {
            self.write(head, now, None, &args, &[]);
        }
    }

    /// Records anything that reserves no room.
    #[inline]
    pub(crate) fn record<const N: usize>(
        &self,
        home: &impl Home,
        clock: RawClock,
        (kind, event): (Kind, Event),
        trace_key: Option<u64>,
        args: [u64; N],
        flows: &[Flow],
    ) {
        let flows = &flows[..flows.len().min(MAX_FLOWS)];
        let mut head = head(kind, event, 0, N, flows);
        head.words += u16::from(trace_key.is_some());
        if self.has_room(home, head.words, 0) {
            self.write(head, clock.now(), trace_key, &args, flows);
        }
    }

    /// Records packed words of a text, see [`crate::entry::pack_text`].
    pub(crate) fn record_text(
        &self,
        home: &impl Home,
        clock: RawClock,
        (trace_key, event): (u64, Event),
        packed: &[u64],
    ) {
        let mut head = head(Kind::Text, event, 0, 0, &[]);
        head.words += 1 + packed.len() as u16;
        if self.has_room(home, head.words, 0) {
            self.write(head, clock.now(), Some(trace_key), packed, &[]);
        }
    }

    /// Whether `words` fit beside everything reserved and `extra`; counts what does not.
    #[inline(always)]
    fn has_room(&self, home: &impl Home, words: u16, extra: u64) -> bool {
        let need = u64::from(words) + self.reserved.get() + extra;
        self.head.get() + need <= self.limit.get() || self.find_room(home, need)
    }

    #[cold]
    #[inline(never)]
    fn find_room(&self, home: &impl Home, need: u64) -> bool {
        if self.phase.get() == Phase::Idle {
            self.claim(home);
        }
        if self.phase.get() != Phase::Claimed {
            if let Some(rings) = home.rings() {
                let drops = &rings.header().unclaimed_drops;
                drops.fetch_add(1, Ordering::Relaxed);
            }
            return false;
        }
        let (ring, head) = (self.ring.get(), self.head.get());
        // Acquire: the drainer has read what we are about to overwrite.
        let tail = ring.drainer.tail.load(Ordering::Acquire);
        let room = self.words.get().len() as u64;
        if head + need > tail + room / 2 {
            home.wake_drainer();
        }
        let fits = head + need <= tail + room;
        if !fits {
            let drops = &ring.producer.drops;
            drops.store(drops.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        // Come back at half full to wake the drainer, then a few times more.
        let next = (tail + room / 2).max(head + need + room / 16);
        self.limit.set(next.min(tail + room));
        fits
    }

    /// Takes a free ring, if there is one.
    fn claim(&self, home: &impl Home) {
        let Some(rings) = home.rings() else { return };
        let free = (0..rings.count()).find(|&index| {
            let owner = &rings.ring(index).0.producer.owner;
            // Acquire: the drainer is done with the ring's last owner.
            let (free, taken) = (Owner::Nobody as u32, Owner::Thread as u32);
            owner.load(Ordering::Relaxed) == free
                && owner
                    .compare_exchange(free, taken, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        });
        let Some(index) = free else { return };
        let (ring, words) = rings.ring(index);
        let claim = rings.header().claims.fetch_add(1, Ordering::Relaxed);
        // The first record's Release of `head` publishes these.
        ring.producer.claim.store(claim, Ordering::Relaxed);
        let tid = nix::unistd::gettid().as_raw() as u32;
        ring.producer.tid.store(tid, Ordering::Relaxed);
        for (slot, word) in ring.producer.name.iter().zip(thread_name()) {
            slot.store(word, Ordering::Relaxed);
        }
        self.ring.set(ring);
        self.words.set(words);
        self.head.set(ring.producer.head.load(Ordering::Relaxed));
        self.phase.set(Phase::Claimed);
    }

    /// The thread ends: nothing more is recorded, and the drainer frees the ring.
    pub(crate) fn give_back(&self) {
        if self.phase.replace(Phase::Over) == Phase::Claimed {
            self.limit.set(0);
            self.head.set(0);
            // Release: our last records are whole.
            let owner = &self.ring.get().producer.owner;
            owner.store(Owner::Drainer as u32, Ordering::Release);
        }
    }

    /// Writes a record that `has_room` admitted.
    #[inline(always)]
    fn write(&self, head: Head, time: u64, key: Option<u64>, args: &[u64], flows: &[Flow]) {
        let start = self.head.get();
        let words = self.words.get();
        let mut at = start;
        let mut put = |word: u64| {
            let index = at as usize & (words.len() - 1);
            // SAFETY: a ring's length is a power of two (Rings), NO_WORDS's
            // too, so the mask keeps the index below it.
            unsafe { words.get_unchecked(index) }.store(word, Ordering::Relaxed);
            at += 1;
        };
        put(head.to_word());
        put(time);
        key.map(&mut put);
        args.iter().copied().for_each(&mut put);
        for flow in flows {
            put(flow.kind as u64);
            put(flow.key);
        }
        self.head.set(at);
        // Release: the record is whole for whoever sees the new head.
        self.ring.get().producer.head.store(at, Ordering::Release);
    }
}

#[inline(always)]
fn head(kind: Kind, event: Event, first_arg: u8, args: usize, flows: &[Flow]) -> Head {
    Head {
        kind,
        event,
        first_arg,
        args: args as u8,
        flows: flows.len() as u16,
        words: (FIXED_WORDS + args + 2 * flows.len()) as u16,
    }
}

/// The current thread's name as the kernel keeps it: 15 bytes and zeros.
fn thread_name() -> [u64; 2] {
    let mut name = [0_u8; 16];
    // SAFETY: it writes at most the 16 bytes that it is told of.
    unsafe { libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast(), 16) };
    let [low, high] = [name[..8].try_into(), name[8..].try_into()];
    [low, high].map(|half| half.map_or(0, u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;

    struct TestHome {
        rings: &'static Rings,
        woken: Cell<u32>,
    }

    impl Home for TestHome {
        fn rings(&self) -> Option<&'static Rings> {
            Some(self.rings)
        }
        fn wake_drainer(&self) {
            self.woken.set(self.woken.get() + 1);
        }
    }

    fn home(rings: usize, words: u32) -> TestHome {
        let rings = Rings::create_sized(rings, words).unwrap();
        TestHome {
            rings: Box::leak(Box::new(rings)),
            woken: Cell::new(0),
        }
    }

    /// Kinds of the records between tail and head.
    fn kinds(home: &TestHome, ring: usize) -> Vec<Kind> {
        let (header, words) = home.rings.ring(ring);
        let head = header.producer.head.load(Ordering::Acquire);
        let mut at = header.drainer.tail.load(Ordering::Acquire);
        let mut kinds = Vec::new();
        while let Some(entry) = Entry::read(words, at, head) {
            kinds.push(entry.head().kind);
            at += entry.len();
        }
        assert_eq!(at, head);
        kinds
    }

    const CLOCK: RawClock = RawClock::Boottime;

    #[test]
    fn every_begun_slice_finds_room_for_its_end() {
        let home = home(1, 64);
        let producer = Producer::new();
        let mut open = 0;
        while producer.begin(&home, CLOCK, Event::CoreStep, [1, 2, 3], &[]) {
            open += 1;
        }
        // 5 words a BEGIN and 7 reserved for its END.
        assert_eq!(open, 5);
        producer.record(
            &home,
            CLOCK,
            (Kind::Instant, Event::CoreStep),
            None,
            [1, 2, 3],
            &[],
        );
        assert_eq!(home.rings.drops(), 2, "neither had room");
        for _ in 0..open {
            producer.end(&home, CLOCK, Event::CoreStep, 3, [4, 5, 6, 7, 8]);
        }
        let expected = [[Kind::Begin; 5], [Kind::End; 5]].concat();
        assert_eq!(kinds(&home, 0), expected);
        assert_eq!(home.rings.drops(), 2);
        home.rings.check_integrity().unwrap();
        assert!(home.woken.get() > 0);
    }

    #[test]
    fn room_returns_as_the_drainer_goes_on() {
        let home = home(1, 64);
        let producer = Producer::new();
        let (header, _) = home.rings.ring(0);
        for round in 0..1000_u64 {
            assert!(producer.begin(&home, CLOCK, Event::Forward, [round], &[]));
            producer.end(&home, CLOCK, Event::Forward, 1, []);
            assert_eq!(kinds(&home, 0), [Kind::Begin, Kind::End]);
            home.rings.check_integrity().unwrap();
            let head = header.producer.head.load(Ordering::Acquire);
            home.rings.commit(0, Default::default(), [head].into_iter());
        }
        assert_eq!(home.rings.drops(), 0);
    }

    #[test]
    fn threads_without_a_ring_are_counted_and_rings_return() {
        let home = home(1, 64);
        let (first, second) = (Producer::new(), Producer::new());
        assert!(first.begin(&home, CLOCK, Event::Load, [], &[]));
        first.end(&home, CLOCK, Event::Load, 0, []);
        assert!(!second.begin(&home, CLOCK, Event::Load, [], &[]));
        assert_eq!(home.rings.drops(), 1);
        first.give_back();
        let (header, _) = home.rings.ring(0);
        assert_eq!(header.owner(), Owner::Drainer);
        assert!(
            !first.begin(&home, CLOCK, Event::Load, [], &[]),
            "it is over"
        );
        // What the drainer does.
        home.rings.commit(
            0,
            Default::default(),
            [header.producer.head.load(Ordering::Acquire)].into_iter(),
        );
        let owner = &header.producer.owner;
        owner.store(Owner::Nobody as u32, Ordering::Release);
        assert!(second.begin(&home, CLOCK, Event::Load, [], &[]));
        assert_eq!(header.producer.claim.load(Ordering::Relaxed), 1);
        home.rings.check_integrity().unwrap();
    }

    #[test]
    fn flows_are_bounded() {
        let home = home(1, 4096);
        let producer = Producer::new();
        let flows = vec![Flow::request(7); 5000];
        assert!(producer.begin(&home, CLOCK, Event::Update, [1], &flows));
        let (header, words) = home.rings.ring(0);
        let head = header.producer.head.load(Ordering::Acquire);
        let entry = Entry::read(words, 0, head).unwrap();
        assert_eq!(entry.flows().count(), MAX_FLOWS);
        assert!(entry.flows().all(|flow| flow == Flow::request(7)));
    }
}
