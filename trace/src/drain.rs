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

use crate::clock::{Anchor, Timeline};
use crate::encoder::Thread;
use crate::flight::Forgetting;
use crate::recording::Recording;
use crate::rings::{CommittedSession, MAX_SESSIONS, Owner, RingHeader, Rings, SlotFacts};
use crate::sampler::{Fed, WaitingSample};
use crate::walk::{Span, Walk};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// See the module.
pub(crate) struct Drain<'r> {
    rings: &'r Rings,
    /// By ring.
    readers: Vec<Reader<'r>>,
    walk: Walk<'r>,
    timeline: Timeline,
    /// Of a process that keeps its last seconds.
    forgetting: Option<Forgetting<'r>>,
    /// One for each session that is not over.
    pub(crate) recordings: Vec<Recording>,
    /// Of all records up to this moment has been decided whose they are.
    decided_ns: u64,
    passed: Passed,
    /// Stack samples from after `decided_ns`.
    early: Vec<WaitingSample>,
}

/// What a pass does beside draining.
#[derive(Debug, Default)]
pub(crate) struct PassPlan {
    /// Records as young as that stay in the rings, as long as these have room.
    pub(crate) lag: Duration,
    /// What counters were set to before is not what they stand at.
    pub(crate) counters_since_ns: u64,
    /// Stack samples that have come.
    pub(crate) fed: Fed,
}

/// What the last look at a ring saw.
struct Reader<'r> {
    ring: &'r RingHeader,
    /// Its length.
    words: u64,
    head: u64,
    /// Of a look that saw all that a thread that had ended wrote.
    owner: Owner,
}

/// How many records came by in the last passes.
#[derive(Debug, Default)]
struct Passed {
    /// Each with the moment up to which it decided.
    passes: VecDeque<(u64, u64)>,
    in_this: u64,
}

impl<'r> Drain<'r> {
    /// Starts at the last commit of `rings`. `keep`: so long stays in the rings
    /// what has been read.
    pub(crate) fn new(rings: &'r Rings, keep: Option<Duration>) -> Drain<'r> {
        let (decided_ns, tails) = rings.committed();
        let spans = (0..).zip(&tails).map(|(ring, &tail)| Span {
            words: rings.ring(ring).1,
            tail,
            head: tail,
        });
        let readers = (0..).zip(spans.clone()).map(|(ring, span)| Reader {
            ring: rings.ring(ring).0,
            words: span.words.len() as u64,
            head: span.head,
            owner: Owner::Nobody,
        });
        let walk = || Walk::new(rings.identity(), spans.clone().collect());
        Drain {
            rings,
            readers: readers.collect(),
            walk: walk(),
            timeline: rings.timeline(),
            forgetting: keep.map(|keep| Forgetting::new(rings, walk(), keep)),
            recordings: Vec::new(),
            decided_ns,
            passed: Passed::default(),
            early: Vec::new(),
        }
    }

    /// Goes on with the file of a process that died.
    pub(crate) fn resume(&mut self, slot: usize, facts: SlotFacts, dir: &Path) -> io::Result<()> {
        let requests = &mut self.walk.requests;
        let mut recording = Recording::resume(self.rings, slot, facts, dir, requests)?;
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
        self.walk.counters.begin_anew(plan.counters_since_ns);
        for recording in &mut self.recordings {
            let passed = &self.passed;
            recording.look(self.rings, self.decided_ns, |ns| passed.since(ns));
        }
        self.look();
        let lags = !plan.lag.is_zero() && !self.is_half_unread();
        let upto = match lags {
            true => self.timeline.raw_before(plan.lag).min(anchor.raw),
            false => anchor.raw,
        };
        self.select(upto);
        self.decided_ns = self.decided_ns.max(self.timeline.convert(upto));
        self.passed.end_pass(self.decided_ns);
        self.advance(self.decided_ns);
        if let Some(forgetting) = &mut self.forgetting {
            let heads = self.readers.iter().map(|reader| reader.head);
            forgetting.forget(&self.walk, heads, &mut self.timeline);
        }
        self.give_samples(plan.fed);
        self.flush();
        self.free_rings();
        self.readers.iter().any(Reader::fills_fast)
    }

    fn look(&mut self) {
        for (ring, reader) in self.readers.iter_mut().enumerate() {
            reader.look(self.walk.span(ring).tail);
            self.walk.set_head(ring, reader.head);
        }
    }

    /// Gives stack samples to the sessions, once it is decided whose they are.
    fn give_samples(&mut self, fed: Fed) {
        self.early.extend(fed.samples);
        let decided_ns = self.decided_ns;
        let is_due = |sample: &mut WaitingSample| sample.time_ns <= decided_ns;
        let due: Vec<WaitingSample> = self.early.extract_if(.., is_due).collect();
        for recording in &mut self.recordings {
            recording.take_samples(&due, fed.missed, fed.upto_ns);
        }
    }

    /// More waits in a ring than is good for those who write there.
    fn is_half_unread(&self) -> bool {
        let half_unread = |span: &Span<'_>| span.head - span.tail > span.words.len() as u64 / 2;
        self.walk.spans().iter().any(half_unread)
    }

    /// Gives the records up to a time to the sessions.
    fn select(&mut self, upto: u64) {
        self.walk.begin(upto);
        let mut next_change_ns = self.next_change_ns();
        while let Some(record) = self.walk.next(&mut self.timeline) {
            if record.ns >= next_change_ns {
                self.advance(record.ns);
                next_change_ns = self.next_change_ns();
            }
            self.passed.in_this += 1;
            let request = self.walk.step(&record);
            let reader = &self.readers[record.ring];
            let mut has_chunk = false;
            for recording in &mut self.recordings {
                let thread = || Thread::of(reader.ring);
                has_chunk |= recording.take(&record, request, &self.walk.requests, thread);
            }
            self.walk.pass(&record, request);
            if has_chunk {
                self.flush();
                next_change_ns = self.next_change_ns();
            }
        }
    }

    /// Lets the sessions' changes come that are due at a moment.
    fn advance(&mut self, ns: u64) {
        let (requests, counters) = (&self.walk.requests, self.walk.counters.values());
        for recording in &mut self.recordings {
            recording.advance(ns, requests, counters);
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
        let is_over = |recording: &mut Recording| recording.is_over();
        let mut finished: Vec<Recording> = self.recordings.extract_if(.., is_over).collect();
        for recording in &mut finished {
            recording.finish(dropped);
            // Before a commit says that the rings hold nothing of it any more.
            if let Some(slot) = recording.slot(self.rings) {
                slot.free();
            }
        }
        if !finished.is_empty() {
            self.commit();
        }
        finished
    }

    fn commit(&self) {
        let mut sessions = [CommittedSession::default(); MAX_SESSIONS];
        for recording in &self.recordings {
            if let Some(slot) = recording.slot {
                sessions[slot] = recording.committed();
            }
        }
        let read = self.walk.spans().iter().map(|span| span.tail);
        match &self.forgetting {
            None => self.rings.commit(self.decided_ns, sessions, read),
            Some(forgetting) => {
                self.rings.commit_kept(
                    (self.decided_ns, sessions, read),
                    (forgetting.forgotten(), forgetting.tails()),
                );
            }
        }
    }

    /// Frees rings whose threads have ended, once they are empty.
    fn free_rings(&mut self) {
        for (ring, reader) in self.readers.iter().enumerate() {
            let tail = match &self.forgetting {
                None => self.walk.span(ring).tail,
                Some(forgetting) => forgetting.tail(ring),
            };
            if reader.owner == Owner::Drainer && tail == reader.head {
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

impl Reader<'_> {
    /// `tail`: so much was read before.
    fn look(&mut self, tail: u64) {
        // In this order: a ring that is given back gets no more records.
        self.owner = self.ring.owner();
        let head = self.ring.producer.head.load(Ordering::Acquire);
        // A head that cannot be is the work of a process that went wrong.
        if head >= tail && head - tail <= self.words {
            self.head = head;
        }
    }

    /// More came during the pass than a pass should find.
    fn fills_fast(&self) -> bool {
        let head = self.ring.producer.head.load(Ordering::Relaxed);
        head.saturating_sub(self.head) > self.words / 4
    }
}
