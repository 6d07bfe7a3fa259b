//! Tiny rings, more threads than rings, threads that come and go, and a
//! drainer beside them: every record arrives whole, once and in order, or is
//! counted as dropped. Small enough for Miri (`scripts/check-unsafe`), which
//! sees data races and faults of memory.

use super::{Owner, Rings};
use crate::clock::RawClock;
use crate::entry::{Entry, Kind};
use crate::producer::{Home, Producer};
use crate::{Event, Flow};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

const RINGS: usize = 2;
const WORDS: u32 = 128;
const THREADS: u64 = 3;
const GENERATIONS: u64 = 3;
const ROUNDS: u64 = if cfg!(miri) { 40 } else { 20_000 };
/// The other clock is an instruction that Miri does not know.
const CLOCK: RawClock = RawClock::Boottime;

impl Home for &'static Rings {
    fn rings(&self) -> Option<&'static Rings> {
        Some(self)
    }
    fn wake_drainer(&self) {}
}

/// One thread's life; returns how many records it tried to make.
fn produce(rings: &'static Rings, thread: u64) -> u64 {
    let producer = Producer::new();
    let mut sequence = 0;
    for round in 0..ROUNDS {
        let mut open = 0;
        for _ in 0..=round % 3 {
            let (args, flow) = ([thread, sequence], [Flow::request(sequence)]);
            sequence += 1;
            if producer.begin(&rings, CLOCK, Event::CoreStep, args, &flow) {
                open += 1;
            } else {
                // Nothing to end. Let the drainer have its turn.
                std::thread::yield_now();
            }
        }
        let (what, args) = ((Kind::RequestInstant, Event::Finish), [thread, sequence]);
        producer.record(&rings, CLOCK, what, Some(thread), args, &[]);
        sequence += 1;
        for _ in 0..open {
            producer.end(&rings, CLOCK, Event::CoreStep, 2, [thread, sequence]);
            sequence += 1;
        }
    }
    producer.give_back();
    sequence
}

/// What the drainer has seen of one thread.
#[derive(Default)]
struct Seen {
    records: u64,
    open: u64,
    next: u64,
}

/// Reads every ring once; whether there was anything.
fn drain(rings: &Rings, tails: &mut [u64], seen: &mut HashMap<u64, Seen>) -> bool {
    let looks: Vec<(Owner, u64)> = (0..RINGS)
        .map(|ring| {
            let (header, _) = rings.ring(ring);
            // In this order: a ring that is given back gets no more records.
            (header.owner(), header.producer.head.load(Ordering::Acquire))
        })
        .collect();
    let mut any = false;
    for (ring, (_, head)) in looks.iter().enumerate() {
        let (_, words) = rings.ring(ring);
        while let Some(entry) = Entry::read(words, tails[ring], *head) {
            any = true;
            tails[ring] += entry.len();
            check(&entry, seen);
        }
        assert_eq!(tails[ring], *head, "whole entries only");
    }
    rings.commit(0, Default::default(), tails.iter().copied());
    for (ring, (owner, _)) in looks.into_iter().enumerate() {
        if owner == Owner::Drainer {
            let free = &rings.ring(ring).0.producer.owner;
            free.store(Owner::Nobody as u32, Ordering::Release);
        }
    }
    any
}

fn check(entry: &Entry<'_>, seen: &mut HashMap<u64, Seen>) {
    let args: Vec<u64> = entry.args().collect();
    let [thread, sequence] = args[..] else {
        panic!("{args:?}")
    };
    let seen = seen.entry(thread).or_default();
    assert!(sequence >= seen.next, "thread {thread} runs backwards");
    seen.next = sequence + 1;
    seen.records += 1;
    match entry.head().kind {
        Kind::Begin => {
            seen.open += 1;
            assert!(entry.flows().eq([Flow::request(sequence)]));
        }
        Kind::End => seen.open = seen.open.checked_sub(1).expect("an END of its own"),
        Kind::RequestInstant => assert_eq!(entry.trace_key(), thread),
        kind => panic!("nobody records {kind:?}"),
    }
}

#[test]
fn records_arrive_whole_once_and_in_order_or_are_counted() {
    // Threads hold rings as long as the process lives.
    let rings: &'static Rings = Box::leak(Box::new(Rings::create_sized(RINGS, WORDS).unwrap()));
    let over = AtomicBool::new(false);
    let mut seen = HashMap::new();
    let mut tails = vec![0; RINGS];
    let tried: u64 = std::thread::scope(|scope| {
        let producers = scope.spawn(|| {
            let generation = |generation| {
                std::thread::scope(|scope| {
                    let first = generation * THREADS;
                    let threads = (first..first + THREADS)
                        .map(|thread| scope.spawn(move || produce(rings, thread)));
                    let threads: Vec<_> = threads.collect();
                    threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
                })
            };
            let tried = (0..GENERATIONS).map(generation).sum();
            over.store(true, Ordering::Release);
            tried
        });
        loop {
            let last = over.load(Ordering::Acquire);
            if !drain(rings, &mut tails, &mut seen) {
                if last {
                    break;
                }
                std::thread::yield_now();
            }
        }
        producers.join().unwrap()
    });
    assert!(seen.values().all(|seen| seen.open == 0), "every END came");
    let records: u64 = seen.values().map(|seen| seen.records).sum();
    assert_eq!(records + rings.drops(), tried);
    assert!(records > 0 && rings.drops() > 0, "{records} of {tried}");
    let wraps = if cfg!(miri) { 2 } else { 100 };
    assert!(
        tails.iter().sum::<u64>() > wraps * u64::from(WORDS),
        "{tails:?}"
    );
    rings.check_integrity().unwrap();
}
