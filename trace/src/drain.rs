//! From the rings of one process to the file of one session.
//!
//! The process's own writer thread and, after its death, its launcher do this
//! alike: they take an anchor, look how far every ring is, and encode what
//! lies before the anchor, in order of time over all rings.
//!
//! Why before the anchor: what happened before a record (a request handed from
//! one thread to another) was published before the record's time was read. If
//! that time lies before the anchor, so does the publication, and a look at
//! the rings after the anchor sees it. So nothing is encoded before what it
//! follows from, although rings are looked at one by one.

use crate::clock::{Anchor, Timeline};
use crate::encoder::{Encoder, EndReason, Thread};
use crate::entry::Entry;
use crate::rings::{Owner, RingHeader, Rings};
use crate::trace_file::TraceFile;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
pub(crate) struct Drain<'r> {
    rings: &'r Rings,
    readers: Vec<Reader<'r>>,
    /// During a pass: rings with records that belong to it, the oldest first.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    timeline: Timeline,
    encoder: Encoder,
    file: TraceFile,
    max_bytes: u64,
    /// Lost records that the file tells of.
    dropped_told: u64,
    /// Records and newest time in the file; `None` before it tells of a writer.
    in_file: Option<(u64, u64)>,
}

/// The reading side of a ring.
struct Reader<'r> {
    ring: &'r RingHeader,
    words: &'r [AtomicU64],
    tail: u64,
    /// As of the last look.
    head: u64,
    /// As of the last look, which saw all that a thread that had ended wrote.
    owner: Owner,
}

/// Why nothing more goes into the file.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The next packet would not fit below the cap.
    ByteCap,
    /// The file cannot be written.
    Io(io::Error),
}

/// Encoded bytes that are written at once.
const CHUNK: usize = 64 << 10;
/// More than one record and what it needs told (1024 flows take 10 KiB), and
/// the file's end: room below the cap for one more of each.
const CAP_RESERVE: u64 = 32 << 10;

impl<'r> Drain<'r> {
    /// Starts at the last commit of `rings`.
    pub(crate) fn new(
        rings: &'r Rings,
        mut encoder: Encoder,
        file: TraceFile,
        max_bytes: u64,
    ) -> Drain<'r> {
        let (_, tails) = rings.committed();
        let timeline = rings.timeline();
        // An earlier drainer was alive then.
        encoder.last_ns = timeline.newest().map_or(0, |anchor| anchor.boottime);
        let reader = |(index, tail)| {
            let (ring, words) = rings.ring(index);
            Reader {
                ring,
                words,
                tail,
                head: tail,
                owner: Owner::Nobody,
            }
        };
        Drain {
            rings,
            readers: tails.into_iter().enumerate().map(reader).collect(),
            queue: BinaryHeap::new(),
            timeline,
            encoder,
            file,
            max_bytes,
            dropped_told: 0,
            in_file: None,
        }
    }

    pub(crate) fn encoder(&mut self) -> &mut Encoder {
        &mut self.encoder
    }

    pub(crate) fn file(&self) -> &TraceFile {
        &self.file
    }

    /// Records encoded.
    pub(crate) fn events(&self) -> u64 {
        self.encoder.events
    }

    /// Records lost so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.encoder.dropped(self.rings.drops())
    }

    /// Reads both clocks.
    pub(crate) fn anchor(&mut self) -> Anchor {
        let anchor = Anchor::read(self.rings.clock());
        if self.timeline.newest().is_none() {
            self.encoder.last_ns = anchor.boottime;
        }
        self.rings.push_anchor(anchor);
        if self.timeline.push(anchor) {
            anchor
        } else {
            // Raw time ran backwards: records from before must not wait for it.
            Anchor {
                raw: u64::MAX,
                ..anchor
            }
        }
    }

    /// Encodes what was recorded until now, and writes it. `true`: the rings
    /// fill so fast that another pass should follow at once.
    pub(crate) fn pass(&mut self) -> Result<bool, Stop> {
        let upto = self.anchor().raw;
        self.queue.clear();
        for ring in 0..self.readers.len() {
            self.readers[ring].look();
            self.enqueue(ring, upto);
        }
        while let Some(Reverse((_, ring))) = self.queue.pop() {
            // No other ring has an older record until then.
            let until = self.queue.peek().map_or(upto, |Reverse((time, _))| *time);
            self.run(ring, until)?;
            self.enqueue(ring, upto);
        }
        let dropped = self.dropped();
        if dropped > self.dropped_told {
            self.dropped_told = dropped;
            // Not now: for a salvager, that is after the process's end.
            self.encoder.tell_dropped(dropped, self.encoder.last_ns);
        }
        self.flush()?;
        self.free_rings();
        Ok(self.readers.iter().any(Reader::fills_fast))
    }

    /// Queues a ring by its oldest record, if that is not beyond `upto`.
    fn enqueue(&mut self, ring: usize, upto: u64) {
        if let Some(entry) = self.readers[ring].peek(upto) {
            self.queue.push(Reverse((entry.time(), ring)));
        }
    }

    /// Encodes a ring's records up to a time.
    fn run(&mut self, ring: usize, until: u64) -> Result<(), Stop> {
        if !self.encoder.is_open(ring) {
            self.encoder.open(ring, &self.readers[ring].thread());
        }
        while let Some(entry) = self.readers[ring].peek(until) {
            let pending = self.encoder.out.len();
            if self.file.len() + pending as u64 + CAP_RESERVE > self.max_bytes {
                return Err(Stop::ByteCap);
            }
            let ns = self.timeline.convert(entry.time());
            self.encoder.encode(ring, &entry, ns);
            self.readers[ring].tail += entry.len();
            if pending >= CHUNK {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes what is encoded, and gives its room in the rings back.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        let written = self.file.append(self.encoder.out.packets());
        self.encoder.out.clear();
        if let Err(error) = written {
            self.end_at_last_write();
            return Err(Stop::Io(error));
        }
        self.in_file = Some((self.encoder.events, self.encoder.last_ns));
        let tails = self.readers.iter().map(|reader| reader.tail);
        self.rings.commit(self.file.len(), tails);
        Ok(())
    }

    /// Says that what was encoded since the last write could not be written.
    /// Where a disk is full, there mostly is room for this: what the failed
    /// write had begun with was given back, and it is small.
    fn end_at_last_write(&mut self) {
        let Some((events, ns)) = self.in_file else {
            return;
        };
        (self.encoder.events, self.encoder.last_ns) = (events, ns);
        let dropped = self.dropped();
        self.encoder.tell_end(EndReason::WriteFailed, dropped, ns);
        // The first error is the one to tell; the file is whole in any case.
        let _ = self.file.append(self.encoder.out.packets());
        self.encoder.out.clear();
    }

    /// Frees rings whose threads have ended, once they are empty.
    fn free_rings(&mut self) {
        for (ring, reader) in self.readers.iter().enumerate() {
            if reader.owner == Owner::Drainer && reader.tail == reader.head {
                self.encoder.close(ring);
                // Release: the next owner finds our tail.
                let owner = &reader.ring.producer.owner;
                owner.store(Owner::Nobody as u32, Ordering::Release);
            }
        }
    }

    /// Says that the file tells of nothing more, after `ns` and what was recorded.
    pub(crate) fn end(&mut self, reason: EndReason, ns: u64) -> Result<(), Stop> {
        let (ns, dropped) = (ns.max(self.encoder.last_ns), self.dropped());
        self.encoder.tell_end(reason, dropped, ns);
        self.flush()
    }

    /// CLOCK_BOOTTIME of the newest anchor.
    pub(crate) fn newest_ns(&self) -> u64 {
        self.timeline.newest().map_or(0, |anchor| anchor.boottime)
    }
}

impl<'r> Reader<'r> {
    fn look(&mut self) {
        // In this order: a ring that is given back gets no more records.
        self.owner = self.ring.owner();
        let head = self.ring.producer.head.load(Ordering::Acquire);
        // A head that cannot be is the work of a process that went wrong.
        if head >= self.tail && head - self.tail <= self.words.len() as u64 {
            self.head = head;
        }
    }

    /// The next record, if its time is not beyond `until`.
    #[inline]
    fn peek(&mut self, until: u64) -> Option<Entry<'r>> {
        if self.tail == self.head {
            return None;
        }
        let entry = Entry::read(self.words, self.tail, self.head);
        if entry.is_none() {
            // Not of our producers. What follows cannot be told apart from it.
            self.tail = self.head;
        }
        entry.filter(|entry| entry.time() <= until)
    }

    /// More came during the pass than a pass should find.
    fn fills_fast(&self) -> bool {
        let head = self.ring.producer.head.load(Ordering::Relaxed);
        head.saturating_sub(self.tail) > self.words.len() as u64 / 4
    }

    fn thread(&self) -> Thread {
        let producer = &self.ring.producer;
        let name: Vec<u8> = producer
            .name
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .take_while(|&byte| byte != 0)
            .collect();
        Thread {
            tid: producer.tid.load(Ordering::Relaxed),
            name: String::from_utf8_lossy(&name).into_owned(),
            claim: producer.claim.load(Ordering::Relaxed),
        }
    }
}
