//! Between a thread's signal handler and the sampler: one ring of records for
//! each sampled thread.
//!
//! Invariants:
//! - a slot belongs to one thread (`tid`) or to nobody; only that thread's
//!   handler writes records and `head`, only the sampler `tail`;
//! - a slot changes its owner only when the old one is gone, for a handler may
//!   still run although its timer was deleted;
//! - `head - tail` is at most [`RECORDS`], and records from `tail` to `head`
//!   are whole;
//! - memory once given to a slot stays mapped as long as the process lives.

use super::record::RawSample;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Threads that are sampled at once, at most: of a worker one a core, and some.
pub(crate) const SLOTS: usize = 1024;
/// Records between two passes of the sampler; it is woken at half of them. The
/// first pass comes when the program's tables are read: half a second at the
/// 250 Hz that many kernels fire CPU clocks at most.
pub(crate) const RECORDS: u32 = 128;

/// See the module.
pub(crate) struct Slot {
    tid: AtomicU32,
    /// Where the thread's stack ends; 0: at its control block, see the handler.
    pub(crate) stack_top: AtomicU64,
    /// Of the thread's timer.
    pub(crate) period_ns: AtomicU64,
    records: AtomicPtr<RawSample>,
    head: AtomicU32,
    tail: AtomicU32,
    /// Samples that found no room.
    drops: AtomicU64,
}

/// A place in a ring for the handler to fill.
pub(crate) struct Room<'s> {
    slot: &'s Slot,
    head: u32,
    pub(crate) record: *mut RawSample,
}

static POOL: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

/// All slots.
pub(crate) fn all() -> &'static [Slot; SLOTS] {
    &POOL
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            tid: AtomicU32::new(0),
            stack_top: AtomicU64::new(0),
            period_ns: AtomicU64::new(0),
            records: AtomicPtr::new(ptr::null_mut()),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            drops: AtomicU64::new(0),
        }
    }

    pub(crate) fn tid(&self) -> u32 {
        self.tid.load(Ordering::Acquire)
    }

    /// Gives the slot to a thread whose handler cannot run yet, and throws away
    /// what its last owner left. `false`: no memory.
    pub(crate) fn give(&self, tid: u32, stack_top: u64) -> bool {
        if self.records.load(Ordering::Acquire).is_null() {
            let Some(memory) = map_records() else {
                return false;
            };
            self.records.store(memory, Ordering::Release);
        }
        self.stack_top.store(stack_top, Ordering::Relaxed);
        self.forget();
        self.tid.store(tid, Ordering::Release);
        true
    }

    /// Throws away what is in the ring.
    pub(crate) fn forget(&self) {
        self.tail
            .store(self.head.load(Ordering::Acquire), Ordering::Release);
        self.drops.store(0, Ordering::Relaxed);
    }

    /// The slot's thread is gone.
    pub(crate) fn free(&self) {
        self.tid.store(0, Ordering::Release);
        self.release_memory();
    }

    /// Gives the records' pages back to the system; what they hold is lost.
    pub(crate) fn release_memory(&self) {
        let records = self.records.load(Ordering::Acquire);
        if !records.is_null() {
            let bytes = RECORDS as usize * RawSample::BYTES;
            // SAFETY: a private mapping of this size that nothing borrows: the
            // sampler is between two passes, and a handler that still writes
            // writes into new pages.
            unsafe { libc::madvise(records.cast(), bytes, libc::MADV_DONTNEED) };
        }
    }

    /// For the handler of the slot's thread, and no one else: the next record,
    /// or `None` if the ring is full. Neither allocates nor locks.
    #[inline]
    pub(crate) fn room(&self) -> Option<Room<'_>> {
        let records = self.records.load(Ordering::Acquire);
        let head = self.head.load(Ordering::Relaxed);
        let used = head.wrapping_sub(self.tail.load(Ordering::Acquire));
        if records.is_null() || used >= RECORDS {
            self.count_drop();
            return None;
        }
        // SAFETY: the mapping holds RECORDS records.
        let record = unsafe { records.add((head % RECORDS) as usize) };
        Some(Room {
            slot: self,
            head,
            record,
        })
    }

    #[inline]
    fn count_drop(&self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }

    /// Samples lost since the last call.
    pub(crate) fn take_drops(&self) -> u64 {
        self.drops.swap(0, Ordering::Relaxed)
    }

    /// Nothing is there to be taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire) == self.tail.load(Ordering::Relaxed)
    }

    /// For the sampler: gives every record that is there to `take`, the oldest first.
    pub(crate) fn drain(&self, mut take: impl FnMut(&RawSample)) {
        let records = self.records.load(Ordering::Acquire);
        let head = self.head.load(Ordering::Acquire);
        let mut tail = self.tail.load(Ordering::Relaxed);
        while tail != head && !records.is_null() {
            // SAFETY: within the mapping; the handler published this record
            // before `head` and writes none before `tail` has passed it.
            take(unsafe { &*records.add((tail % RECORDS) as usize) });
            tail = tail.wrapping_add(1);
            self.tail.store(tail, Ordering::Release);
        }
    }

    /// The first invariant that does not hold, in words.
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        let tail = self.tail.load(Ordering::Acquire);
        let used = self.head.load(Ordering::Acquire).wrapping_sub(tail);
        if used > RECORDS {
            return Err(format!("{used} records in a ring of {RECORDS}"));
        }
        if self.tid() != 0 && self.records.load(Ordering::Acquire).is_null() {
            return Err(format!("thread {} has a slot without memory", self.tid()));
        }
        Ok(())
    }
}

impl Room<'_> {
    /// Publishes the record. `true`: the ring is half full.
    #[inline]
    pub(crate) fn publish(self) -> bool {
        let head = self.head.wrapping_add(1);
        self.slot.head.store(head, Ordering::Release);
        head.wrapping_sub(self.slot.tail.load(Ordering::Relaxed)) == RECORDS / 2
    }
}

/// Zeroed records, whose pages take memory once they are written; small pages, for
/// a huge one would be cleared whole, and within the handler.
fn map_records() -> Option<*mut RawSample> {
    let bytes = RECORDS as usize * RawSample::BYTES;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the new mapping. A kernel without huge pages refuses it, rightly.
    unsafe { libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE) };
    Some(memory.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(slot: &Slot, time_ns: u64) -> Option<bool> {
        let room = slot.room()?;
        // SAFETY: ours until it is published.
        unsafe { (*room.record).time_ns = time_ns };
        Some(room.publish())
    }

    fn take(slot: &Slot) -> Vec<u64> {
        let mut times = Vec::new();
        slot.drain(|raw| times.push(raw.time_ns));
        slot.check_integrity().unwrap();
        times
    }

    #[test]
    fn records_come_out_in_order_and_what_finds_no_room_is_counted() {
        let slot = Slot::new();
        assert!(put(&slot, 0).is_none(), "no memory yet");
        assert!(slot.give(7, 0));
        assert_eq!(slot.take_drops(), 0, "of the owner before");
        for round in 0..5 {
            let woken: Vec<_> = (0..RECORDS + 3)
                .map(|n| put(&slot, u64::from(round * 100 + n)))
                .collect();
            let half = woken.iter().position(|woken| *woken == Some(true));
            assert_eq!(half, Some(RECORDS as usize / 2 - 1));
            assert_eq!(woken.iter().filter(|woken| woken.is_none()).count(), 3);
            let expected: Vec<_> = (0..RECORDS).map(|n| u64::from(round * 100 + n)).collect();
            assert_eq!((take(&slot), slot.take_drops()), (expected, 3));
        }
        put(&slot, 1);
        slot.free();
        assert!(slot.give(8, 0));
        assert_eq!(take(&slot), [0_u64; 0]);
    }

    #[test]
    fn a_ring_holds_while_both_ends_are_busy() {
        const ROUNDS: u64 = 20_000;
        let slot = Slot::new();
        assert!(slot.give(7, 0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=ROUNDS {
                    while put(&slot, n).is_none() {
                        std::thread::yield_now();
                    }
                }
            });
            let mut last = 0;
            while last < ROUNDS {
                slot.drain(|raw| {
                    assert_eq!(raw.time_ns, last + 1);
                    last += 1;
                });
                std::thread::yield_now();
            }
        });
    }
}
