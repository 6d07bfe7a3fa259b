//! From the rings of one process to the files of its sessions.
//!
//! The process's own writer thread and, after its death, its launcher do this
//! alike: they take an anchor, look how far every ring is, and give what lies
//! before the anchor, in order of time over all rings, to every session that
//! it belongs to.
//!
//! Why before the anchor: what happened before a record (a request handed from
//! one thread to another) was published before the record's time was read. If
//! that time lies before the anchor, so does the publication, and a look at
//! the rings after the anchor sees it. So nothing is encoded before what it
//! follows from, although rings are looked at one by one. A session that
//! begins now begins after the anchor, or is known by the look at the sessions
//! that follows it: so it misses nothing.

use crate::Event;
use crate::clock::{Anchor, Timeline};
use crate::encoder::Thread;
use crate::entry::{Entry, Kind};
use crate::identity::Identity;
use crate::recording::Recording;
use crate::request_tracks::RequestTracks;
use crate::rings::{CommittedSession, MAX_SESSIONS, Owner, RingHeader, Rings, SlotFacts};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// See the module.
pub(crate) struct Drain<'r> {
    rings: &'r Rings,
    readers: Vec<Reader<'r>>,
    /// During a pass: rings with records that belong to it, the oldest first.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    timeline: Timeline,
    process: Identity,
    requests: RequestTracks,
    counters: Counters,
    /// One for each session that is not over.
    pub(crate) recordings: Vec<Recording>,
    /// Of all records up to this moment has been decided whose they are.
    decided_ns: u64,
    passed: Passed,
}

/// What a pass does beside draining.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassPlan {
    /// Records as young as that stay in the rings, as long as these have room.
    pub(crate) lag: Duration,
    /// What counters were set to before is not what they stand at.
    pub(crate) counters_since_ns: u64,
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

/// What the counters of the process stand at.
#[derive(Debug, Default)]
struct Counters {
    since_ns: u64,
    values: Vec<(Event, u64)>,
}

/// How many records came by in the last passes.
#[derive(Debug, Default)]
struct Passed {
    /// Each with the moment up to which it decided.
    passes: VecDeque<(u64, u64)>,
    in_this: u64,
}

impl<'r> Drain<'r> {
    /// Starts at the last commit of `rings`.
    pub(crate) fn new(rings: &'r Rings) -> Drain<'r> {
        let (decided_ns, tails) = rings.committed();
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
            timeline: rings.timeline(),
            process: rings.identity(),
            requests: RequestTracks::default(),
            counters: Counters::default(),
            recordings: Vec::new(),
            decided_ns,
            passed: Passed::default(),
        }
    }

    /// Goes on with the file of a process that died.
    pub(crate) fn resume(&mut self, slot: usize, facts: SlotFacts, dir: &Path) -> io::Result<()> {
        let mut recording = Recording::resume(self.rings, slot, facts, dir, &mut self.requests)?;
        // An earlier drainer was alive then.
        recording.alive_at(self.timeline.newest().map_or(0, |anchor| anchor.boottime));
        self.recordings.push(recording);
        Ok(())
    }

    /// Reads both clocks.
    pub(crate) fn anchor(&mut self) -> Anchor {
        let anchor = Anchor::read(self.rings.clock());
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

    /// Encodes what was recorded until now, and writes it. `look` brings
    /// sessions that have begun, and a plan. `true`: the rings fill so fast
    /// that another pass should follow at once. Sessions that are over have an
    /// outcome then, and are the caller's to take away.
    pub(crate) fn pass(&mut self, look: impl FnOnce(&mut Vec<Recording>) -> PassPlan) -> bool {
        let anchor = self.anchor();
        let plan = look(&mut self.recordings);
        self.counters.begin_anew(plan.counters_since_ns);
        for recording in &mut self.recordings {
            let passed = &self.passed;
            recording.look(self.rings, self.decided_ns, |ns| passed.since(ns));
        }
        self.readers.iter_mut().for_each(Reader::look);
        let lags = !plan.lag.is_zero() && !self.readers.iter().any(Reader::is_half_full);
        let upto = match lags {
            true => self.timeline.raw_before(plan.lag).min(anchor.raw),
            false => anchor.raw,
        };
        self.queue.clear();
        for ring in 0..self.readers.len() {
            self.enqueue(ring, upto);
        }
        while let Some(Reverse((_, ring))) = self.queue.pop() {
            // No other ring has an older record until then.
            let until = self.queue.peek().map_or(upto, |Reverse((time, _))| *time);
            self.run(ring, until);
            self.enqueue(ring, upto);
        }
        self.decided_ns = self.decided_ns.max(self.timeline.convert(upto));
        self.passed.end_pass(self.decided_ns);
        for recording in &mut self.recordings {
            recording.advance(self.decided_ns, &self.requests, &self.counters.values);
        }
        self.flush();
        self.free_rings();
        self.readers.iter().any(Reader::fills_fast)
    }

    /// Queues a ring by its oldest record, if that is not beyond `upto`.
    fn enqueue(&mut self, ring: usize, upto: u64) {
        if let Some(entry) = self.readers[ring].peek(upto) {
            self.queue.push(Reverse((entry.time(), ring)));
        }
    }

    /// Gives a ring's records up to a time to the sessions.
    fn run(&mut self, ring: usize, until: u64) {
        let mut next_change_ns = self.next_change_ns();
        while let Some(entry) = self.readers[ring].peek(until) {
            let ns = self.timeline.convert(entry.time());
            if ns >= next_change_ns {
                for recording in &mut self.recordings {
                    recording.advance(ns, &self.requests, &self.counters.values);
                }
                next_change_ns = self.next_change_ns();
            }
            self.passed.in_this += 1;
            let kind = entry.head().kind;
            if kind == Kind::Counter {
                self.counters.set(entry.head().event, &entry, ns);
            }
            let request = kind.of_request().then(|| {
                let uuid = self.process.request(entry.trace_key(), entry.head().event);
                (uuid, self.requests.step(uuid, &entry))
            });
            let reader = &self.readers[ring];
            let mut has_chunk = false;
            for recording in &mut self.recordings {
                let thread = || reader.thread();
                has_chunk |= recording.take(ring, &entry, ns, request, &self.requests, thread);
            }
            if let Some((uuid, step)) = request {
                self.requests.settle(uuid, step);
            }
            self.readers[ring].tail += entry.len();
            if has_chunk {
                self.flush();
            }
        }
    }

    fn next_change_ns(&self) -> u64 {
        let changes = self.recordings.iter().map(Recording::next_change_ns);
        changes.min().unwrap_or(u64::MAX)
    }

    /// Writes what is encoded, and gives its room in the rings back.
    fn flush(&mut self) {
        let dropped = self.rings.drops();
        for recording in &mut self.recordings {
            recording.flush(dropped);
        }
        self.commit();
    }

    /// Completes the files of sessions that are over, and takes them away.
    pub(crate) fn take_finished(&mut self) -> Vec<Recording> {
        let dropped = self.rings.drops();
        let is_over = |recording: &mut Recording| recording.outcome.is_some();
        let mut finished: Vec<Recording> = self.recordings.extract_if(.., is_over).collect();
        for recording in &mut finished {
            recording.finish(dropped);
            // Before a commit says that the rings hold nothing of it any more.
            self.rings.header().sessions[recording.slot].free();
        }
        if !finished.is_empty() {
            self.commit();
        }
        finished
    }

    fn commit(&self) {
        let mut sessions = [CommittedSession::default(); MAX_SESSIONS];
        for recording in &self.recordings {
            sessions[recording.slot] = recording.committed();
        }
        let tails = self.readers.iter().map(|reader| reader.tail);
        self.rings.commit(self.decided_ns, sessions, tails);
    }

    /// Frees rings whose threads have ended, once they are empty.
    fn free_rings(&mut self) {
        for (ring, reader) in self.readers.iter().enumerate() {
            if reader.owner == Owner::Drainer && reader.tail == reader.head {
                for recording in &mut self.recordings {
                    recording.close(ring);
                }
                // Release: the next owner finds our tail.
                let owner = &reader.ring.producer.owner;
                owner.store(Owner::Nobody as u32, Ordering::Release);
            }
        }
    }

    /// Of all records up to this moment of CLOCK_BOOTTIME has been decided whose they are.
    pub(crate) fn decided_ns(&self) -> u64 {
        self.decided_ns
    }
}

impl Counters {
    /// What was known before a moment says nothing any more.
    fn begin_anew(&mut self, since_ns: u64) {
        if since_ns != self.since_ns {
            self.since_ns = since_ns;
            self.values.clear();
        }
    }

    fn set(&mut self, event: Event, entry: &Entry<'_>, ns: u64) {
        let Some(value) = entry.args().next().filter(|_| ns >= self.since_ns) else {
            return;
        };
        match self.values.iter_mut().find(|(known, _)| *known == event) {
            Some((_, last)) => *last = value,
            None => self.values.push((event, value)),
        }
    }
}

impl Passed {
    /// Passes that are remembered.
    const PASSES: usize = 64;

    fn end_pass(&mut self, decided_ns: u64) {
        let records = std::mem::take(&mut self.in_this);
        if records > 0 {
            self.passes.push_back((decided_ns, records));
        }
        if self.passes.len() > Self::PASSES {
            self.passes.pop_front();
        }
    }

    /// Records of passes that went beyond a moment: at least those since then.
    fn since(&self, ns: u64) -> u64 {
        let passes = self.passes.iter();
        let beyond = passes.filter(|(decided_ns, _)| *decided_ns >= ns);
        beyond.map(|(_, records)| records).sum()
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

    /// As of the last look.
    fn is_half_full(&self) -> bool {
        self.head - self.tail > self.words.len() as u64 / 2
    }

    /// More came during the pass than a pass should find.
    fn fills_fast(&self) -> bool {
        let head = self.ring.producer.head.load(Ordering::Relaxed);
        head.saturating_sub(self.tail.max(self.head)) > self.words.len() as u64 / 4
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
