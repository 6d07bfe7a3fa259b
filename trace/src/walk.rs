//! A walk through the rings of one process: records of all of them in order of
//! time, and what requests and counters are at after each.

use crate::Event;
use crate::clock::Timeline;
use crate::entry::{Entry, Kind};
use crate::identity::Identity;
use crate::request_tracks::{RequestTracks, Step};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::AtomicU64;

/// See the module. It goes in parts ([`Walk::begin`]), each up to a moment.
pub(crate) struct Walk<'r> {
    /// By ring.
    spans: Vec<Span<'r>>,
    /// Rings with records that belong to this part, the oldest first.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    /// Where the walk is, and until when no other ring has an older record.
    current: Option<(usize, u64)>,
    /// End of this part.
    upto: u64,
    process: Identity,
    pub(crate) requests: RequestTracks,
    pub(crate) counters: Counters,
}

/// What of a ring is still to come.
#[derive(Clone, Copy)]
pub(crate) struct Span<'r> {
    pub(crate) words: &'r [AtomicU64],
    pub(crate) tail: u64,
    pub(crate) head: u64,
}

/// The next record.
#[derive(Clone, Copy)]
pub(crate) struct Record<'r> {
    pub(crate) ring: usize,
    pub(crate) entry: Entry<'r>,
    /// CLOCK_BOOTTIME.
    pub(crate) ns: u64,
}

/// What the counters of the process stand at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    since_ns: u64,
    values: Vec<(Event, u64)>,
}

impl<'r> Walk<'r> {
    pub(crate) fn new(process: Identity, spans: Vec<Span<'r>>) -> Walk<'r> {
        Walk {
            spans,
            queue: BinaryHeap::new(),
            current: None,
            upto: 0,
            process,
            requests: RequestTracks::default(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn span(&self, ring: usize) -> &Span<'r> {
        &self.spans[ring]
    }

    pub(crate) fn spans(&self) -> &[Span<'r>] {
        &self.spans
    }

    /// So much of a ring is known from now on.
    pub(crate) fn set_head(&mut self, ring: usize, head: u64) {
        self.spans[ring].head = head;
    }

    /// Begins a part: up to this raw time, of what is known now.
    pub(crate) fn begin(&mut self, upto: u64) {
        self.upto = upto;
        self.current = None;
        self.queue.clear();
        for ring in 0..self.spans.len() {
            self.enqueue(ring);
        }
    }

    /// Queues a ring by its oldest record, if that belongs to this part.
    fn enqueue(&mut self, ring: usize) {
        if let Some(entry) = self.spans[ring].peek(self.upto) {
            self.queue.push(Reverse((entry.time(), ring)));
        }
    }

    /// The next record of this part, which stays the next until it is
    /// [passed](Walk::pass).
    #[inline]
    pub(crate) fn next(&mut self, timeline: &mut Timeline) -> Option<Record<'r>> {
        loop {
            if let Some((ring, until)) = self.current {
                if let Some(entry) = self.spans[ring].peek(until) {
                    let ns = timeline.convert(entry.time());
                    return Some(Record { ring, entry, ns });
                }
                self.enqueue(ring);
            }
            let Some(Reverse((_, ring))) = self.queue.pop() else {
                self.current = None;
                return None;
            };
            let other = self.queue.peek();
            let until = other.map_or(self.upto, |Reverse((time, _))| *time);
            self.current = Some((ring, until));
        }
    }

    /// Takes in the next record; track and meaning, if it is of a request's track.
    #[inline]
    pub(crate) fn step(&mut self, record: &Record<'_>) -> Option<(u64, Step)> {
        let entry = &record.entry;
        let kind = entry.head().kind;
        if kind == Kind::Counter {
            self.counters.set(entry.head().event, entry, record.ns);
        }
        kind.of_request().then(|| {
            let uuid = self.process.request(entry.trace_key(), entry.head().event);
            (uuid, self.requests.step(uuid, entry))
        })
    }

    /// The next record has been shown to everybody.
    #[inline]
    pub(crate) fn pass(&mut self, record: &Record<'_>, request: Option<(u64, Step)>) {
        if let Some((uuid, step)) = request {
            self.requests.settle(uuid, step);
        }
        self.spans[record.ring].tail += record.entry.len();
    }
}

impl<'r> Span<'r> {
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
}

impl Counters {
    /// What was known before a moment says nothing any more.
    pub(crate) fn begin_anew(&mut self, since_ns: u64) {
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

    pub(crate) fn values(&self) -> &[(Event, u64)] {
        &self.values
    }
}
