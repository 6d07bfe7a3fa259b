//! Flight recording: what is kept, what is forgotten, and what a dump shows.

use super::reading::{Shown, ShownSlice, read};
use super::*;
use crate::clock::RawClock;
use crate::drain::{Drain, PassPlan};
use crate::encoder::Thread;
use crate::entry::Kind;
use crate::flight::{read_account, write_account};
use crate::identity::Identity;
use crate::producer::Producer;
use crate::recording::Recording;
use crate::request_tracks::RequestTracks;
use crate::rings::SlotFacts;
use crate::switches::Switch;
use crate::trace_file::TraceFile;
use crate::walk::Counters;
use crate::{DumpSpec, SessionName};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

const HOUR: Duration = Duration::from_secs(3600);
const CLOCK: RawClock = RawClock::Boottime;
const IDENTITY: Identity = Identity {
    run: RUN,
    pid: 17,
    started_ns: 1,
};

/// A process that is played by hand: producers, and the writer's passes.
struct Played {
    rings: &'static Rings,
    drain: Drain<'static>,
    dir: tempfile::TempDir,
    dumps: u32,
}

/// One of a thread of its own, which has ended.
fn producer(rings: &'static Rings) -> Producer {
    let claim = move || {
        let producer = Producer::new();
        let what = (Kind::Instant, Event::Finish);
        producer.record(&rings, CLOCK, what, None, [], &[]);
        producer
    };
    std::thread::spawn(claim).join().unwrap()
}

fn name(text: &str) -> SessionName {
    text.parse().unwrap()
}

fn played(ring_words: u32, keep: Duration) -> Played {
    let rings = Rings::create_keeping_sized(4, ring_words).unwrap();
    let rings: &'static Rings = Box::leak(Box::new(rings));
    rings.set_clock(CLOCK);
    rings.set_identity(&IDENTITY);
    rings.set_keep(Some(keep));
    let mut played = Played {
        rings,
        drain: Drain::new(rings, Some(keep)),
        dir: tempfile::tempdir().unwrap(),
        dumps: 0,
    };
    played.drain.anchor();
    played
}

impl Played {
    fn pass(&mut self) {
        while self.drain.pass(|_| PassPlan::default()) {}
        self.rings.check_integrity().unwrap();
    }

    fn instant(&self, on: &Producer, number: u64) {
        let what = (Kind::Instant, Event::EventLoopStall);
        on.record(&self.rings, CLOCK, what, None, [number], &[]);
    }

    fn request<const N: usize>(&self, on: &Producer, kind: Kind, event: Event, args: [u64; N]) {
        on.record(&self.rings, CLOCK, (kind, event), Some(7), args, &[]);
    }

    fn begin_session(&mut self) {
        let facts = SlotFacts {
            number: 1,
            file_name: "all.core.0-17.pftrace".to_owned(),
            max_bytes: 64 << 20,
            begun_len: 0,
            drops_before: 0,
            marked_only: false,
            detail: 1,
        };
        let file = TraceFile::create(self.dir.path().join(&facts.file_name)).unwrap();
        let who = ("core", &Thread::writer(18));
        let recording = Recording::begin((0, facts), IDENTITY, 4, who, &[], file).unwrap();
        let slot = &self.rings.header().sessions[0];
        slot.fill(recording.facts());
        slot.push_switch(Switch { at_ns: 1, on: true }, 0);
        self.drain.recordings.push(recording);
    }

    /// Ends it, and reads it.
    fn end_session(&mut self) -> Shown {
        self.rings.header().sessions[0].set_end(boottime_ns());
        self.pass();
        let finished = self.drain.take_finished();
        read(finished[0].file().path())
    }

    fn dump(&mut self, from_ns: u64, to_ns: u64) -> Shown {
        self.dumps += 1;
        let spec = DumpSpec {
            number: self.dumps,
            ..dump_spec(
                self.dir.path(),
                &format!("dump-{}", self.dumps),
                from_ns,
                to_ns,
            )
        };
        let status = self.rings.dump(&spec).unwrap();
        assert_eq!(status.state, SessionState::Finished);
        assert_eq!(status.bytes, status.file.metadata().unwrap().len());
        let shown = read(&status.file);
        assert_eq!(shown.end()["reason"], "finished");
        assert_eq!(shown.end()["events"], status.events.to_string());
        assert_eq!(shown.end()["dropped"], status.drops.to_string());
        assert_eq!(shown.open(), [""; 0]);
        shown
    }
}

fn dump_spec(dir: &std::path::Path, session: &str, from_ns: u64, to_ns: u64) -> DumpSpec {
    DumpSpec {
        dir: dir.to_owned(),
        name: name(session),
        number: 1,
        role: "core".to_owned(),
        max_bytes: 64 << 20,
        from_ns,
        to_ns,
        facts: vec![("trigger".to_owned(), "test".to_owned())],
        is_dead: false,
    }
}

/// Numbers of the instants that are shown.
fn numbers(shown: &Shown) -> Vec<u64> {
    let stalls = shown
        .instants
        .iter()
        .filter(|i| i.name == "event_loop.stall");
    stalls.map(|i| i.args["late_us"].parse().unwrap()).collect()
}

fn wait_ns(ns: u64) {
    let until = boottime_ns() + ns;
    while boottime_ns() < until {
        std::thread::yield_now();
    }
}

#[test]
fn what_does_not_fit_is_the_begin_of_a_dump() {
    const LAST: u64 = 10_000;
    let mut played = played(1 << 17, HOUR);
    let producer = producer(played.rings);
    let from_ns = boottime_ns();
    for number in 0..=LAST {
        played.instant(&producer, number);
        wait_ns(2_000);
    }
    played.pass();
    let spec = DumpSpec {
        max_bytes: SessionSpec::MIN_BYTES,
        ..dump_spec(played.dir.path(), "small", from_ns, boottime_ns())
    };
    let status = played.rings.dump(&spec).unwrap();
    assert_eq!(status.state, SessionState::Capped);
    assert!(status.bytes <= SessionSpec::MIN_BYTES, "{}", status.bytes);
    let shown = read(&status.file);
    let numbers = numbers(&shown);
    assert_eq!(shown.end()["reason"], "finished");
    let newest = LAST + 1 - numbers.len() as u64..=LAST;
    assert_eq!(numbers, newest.collect::<Vec<_>>());
    assert!((100..LAST as usize).contains(&numbers.len()));
}

#[test]
fn what_is_older_than_asked_is_forgotten_and_nothing_else() {
    const KEEP: Duration = Duration::from_millis(50);
    let mut played = played(1 << 12, KEEP);
    let producer = producer(played.rings);
    for number in 0..10 {
        played.instant(&producer, number);
    }
    played.pass();
    assert_eq!(
        numbers(&played.dump(0, boottime_ns())),
        (0..10).collect::<Vec<_>>()
    );
    wait_ns(60_000_000);
    let young_ns = boottime_ns();
    for number in 10..20 {
        played.instant(&producer, number);
    }
    // Not read by the writer yet, and there all the same.
    let all = numbers(&played.dump(0, boottime_ns()));
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    played.pass();
    let left = numbers(&played.dump(0, boottime_ns()));
    // A pass that came late may have forgotten more.
    if boottime_ns() < young_ns + 50_000_000 {
        assert_eq!(left, (10..20).collect::<Vec<_>>());
    }
    assert!(!left.contains(&9), "{left:?}");
    wait_ns(60_000_000);
    played.pass();
    assert!(numbers(&played.dump(0, boottime_ns())).is_empty());
}

#[test]
fn a_ring_that_is_half_full_keeps_that_half_and_drops_nothing() {
    let mut played = played(1 << 10, HOUR);
    let (busy, quiet) = (producer(played.rings), producer(played.rings));
    played.instant(&quiet, 1_000_000);
    for round in 0..1000 {
        for number in 0..50 {
            played.instant(&busy, round * 50 + number);
        }
        played.pass();
        if round == 500 {
            played.instant(&quiet, 2_000_000);
        }
        let (header, words) = played.rings.ring(0);
        let kept = [&header.producer.head, &header.drainer.tail].map(|word| word.load(Relaxed));
        // Entries are 3 words long.
        let kept = kept[0] - kept[1];
        assert!(kept <= words.len() as u64 / 2);
        assert!(round < 10 || kept > words.len() as u64 / 2 - 3, "{kept}");
    }
    played.instant(&quiet, 3_000_000);
    assert_eq!(played.rings.drops(), 0);
    let shown = played.dump(0, boottime_ns());
    // What is older in other rings is forgotten with it.
    let mut expected: Vec<u64> = (50_000 - 170..50_000).collect();
    expected.push(3_000_000);
    assert_eq!(numbers(&shown), expected);
    assert_eq!(shown.end()["dropped"], "0");
}

#[test]
fn a_dump_shows_exactly_what_a_session_shows_of_its_interval() {
    let mut played = played(1 << 14, HOUR);
    played.begin_session();
    played.pass();
    let play = |rings: &'static Rings, thread: u64| {
        let producer = Producer::new();
        for round in 0..300 {
            let key = Some(round * 3 + thread);
            let begin = (Kind::RequestBegin, Event::Request);
            producer.record(&rings, CLOCK, begin, key, [], &[Flow::request(1)]);
            assert!(producer.begin(&rings, CLOCK, Event::Forward, [round], &[]));
            let instant = (Kind::Instant, Event::EventLoopStall);
            producer.record(&rings, CLOCK, instant, None, [round * 3 + thread], &[]);
            producer.end(&rings, CLOCK, Event::Forward, 1, []);
            let end = (Kind::RequestEnd, Event::Request);
            producer.record(&rings, CLOCK, end, key, [1, 2, 3, 0], &[]);
            wait_ns(50_000);
        }
    };
    let rings = played.rings;
    let threads: Vec<_> = (0..3)
        .map(|thread| std::thread::spawn(move || play(rings, thread)))
        .collect();
    let mut edges = Vec::new();
    while threads.iter().any(|thread| !thread.is_finished()) {
        wait_ns(3_000_000);
        edges.push(boottime_ns());
        played.drain.pass(|_| PassPlan::default());
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    edges.push(boottime_ns());
    let edges = [edges[0], edges[edges.len() / 2], edges[edges.len() - 1]];
    let dumped = played.dump(edges[0], edges[1]);
    let again = played.dump(edges[1], edges[2]);
    let all = played.end_session();
    let mut num_shown = 0;
    for (shown, from, to) in [(&dumped, edges[0], edges[1]), (&again, edges[1], edges[2])] {
        let belongs = |ns: u64| from <= ns && ns < to;
        let of = |shown: &Shown| -> BTreeSet<(u64, String)> {
            let instants = shown.instants.iter().map(|i| (i.ns, i.name.clone()));
            let is_cut =
                |s: &&ShownSlice| s.begin.ns == from && s.begin.args.contains_key("clipped");
            let slices = shown.slices.iter().filter(|slice| !is_cut(slice));
            let slices = slices.map(|s| (s.begin.ns, s.begin.name.clone()));
            let events = instants.chain(slices).filter(|(ns, name)| {
                belongs(*ns) && !["recording", "trace.end"].contains(&name.as_str())
            });
            events.collect()
        };
        assert_eq!(of(shown), of(&all));
        num_shown += of(shown).len();
        let interval = shown.slices_named("recording")[0];
        assert_eq!((interval.begin.ns, interval.end), (from, Some(to - 1)));
        assert_eq!(shown.attributes["trigger"], "test");
        assert_eq!(shown.attributes["role"], "core");
    }
    assert!(num_shown > 100, "{num_shown}");
}

#[test]
fn what_began_before_the_window_is_clipped_and_no_end_lacks_its_begin() {
    let mut played = played(1 << 10, HOUR);
    let (producer, busy) = (producer(played.rings), producer(played.rings));
    let mut packed = [0; crate::entry::TEXT_WORDS];
    let words = crate::entry::pack_text("request_id", "cmpl-7", &mut packed);
    producer.record_text(&played.rings, CLOCK, (7, Event::Queued), &packed[..words]);
    played.request(&producer, Kind::RequestBegin, Event::Queued, [70]);
    played.request(&producer, Kind::RequestBegin, Event::Preempted, []);
    let counter = (Kind::Counter, Event::Running);
    producer.record(&played.rings, CLOCK, counter, None, [3], &[]);
    assert!(producer.begin(&played.rings, CLOCK, Event::CoreStep, [], &[]));
    // Long ago, and forgotten.
    for number in 0..1000 {
        played.instant(&busy, number);
        if number % 50 == 0 {
            played.pass();
        }
    }
    played.pass();
    // In the window, before it, and after it.
    let from = boottime_ns();
    wait_ns(1000);
    producer.end(&played.rings, CLOCK, Event::CoreStep, 0, [1, 2, 3, 4, 5]);
    played.request(&producer, Kind::RequestEnd, Event::Preempted, []);
    played.request(&producer, Kind::RequestBegin, Event::Decode, []);
    wait_ns(1000);
    let to = boottime_ns();
    played.request(&producer, Kind::RequestEnd, Event::Decode, [5]);
    played.request(&producer, Kind::RequestEnd, Event::Queued, []);
    for shown in [played.dump(from, to), played.dump(from, boottime_ns() + 1)] {
        assert_eq!(shown.slices_named("preempted")[0].within, ["queued"]);
        let request = &shown.slices_named("queued")[0].begin;
        assert_eq!(request.args["prompt_tokens"], "70");
        assert_eq!(request.args["request_id"], "cmpl-7");
        assert_eq!(
            (request.args["clipped"].as_str(), request.ns),
            ("true", from)
        );
        assert!(shown.slices_named("step").is_empty());
        assert_eq!(shown.slices_named("decode").len(), 1);
        assert_eq!(shown.counters, [("running".to_owned(), from, 3)]);
        assert_eq!(shown.end()["dropped"], "0");
    }
    let shown = played.dump(from, to);
    assert_eq!(
        shown.slices_named("decode")[0].begin.args["clipped"],
        "true"
    );
    // Nothing of it is left.
    played.pass();
    assert!(
        played
            .dump(boottime_ns(), boottime_ns())
            .slices_named("queued")
            .is_empty()
    );
}

#[test]
fn lost_records_show_in_dumps_that_began_before() {
    let mut played = played(1 << 10, HOUR);
    let producer = producer(played.rings);
    let from = boottime_ns();
    for number in 0..1000 {
        played.instant(&producer, number);
    }
    let lost = played.rings.drops();
    assert!(lost > 500, "{lost}");
    played.pass();
    assert_eq!(
        played.dump(from, boottime_ns()).end()["dropped"],
        lost.to_string()
    );
    for number in 0..1000 {
        played.instant(&producer, number);
        played.pass();
    }
    assert_eq!(
        played.dump(from, boottime_ns()).end()["dropped"],
        "0",
        "long ago"
    );
}

#[test]
fn an_account_holds_whole_tracks_or_none_of_them() {
    let rings = Rings::create_keeping_sized(1, 1 << 16).unwrap();
    let rings: &'static Rings = Box::leak(Box::new(rings));
    let producer = Producer::new();
    const TRACKS: u64 = 1000;
    for key in 0..TRACKS {
        for event in [Event::Request, Event::Waiting] {
            let what = (Kind::RequestBegin, event);
            producer.record(&rings, CLOCK, what, Some(key), [key], &[]);
        }
    }
    let (header, words) = rings.ring(0);
    let span = crate::walk::Span {
        words,
        tail: 0,
        head: header.producer.head.load(Relaxed),
    };
    let mut walk = crate::walk::Walk::new(IDENTITY, vec![span]);
    walk.begin(u64::MAX);
    let mut timeline = crate::clock::Timeline::default();
    while let Some(record) = walk.next(&mut timeline) {
        let request = walk.step(&record);
        walk.pass(&record, request);
    }
    let open = |requests: &RequestTracks| -> BTreeSet<(u64, usize)> {
        requests
            .open()
            .map(|(_, track)| (track.trace_key, track.open.len()))
            .collect()
    };
    let all = open(&walk.requests);
    assert_eq!(all.len() as u64, TRACKS);
    for words in [0, 1, 2, 4, 8, 16, 32, 1 << 10, 1 << 14] {
        let account: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(9)).collect();
        write_account(&walk.requests, &Counters::default(), &account);
        let (read, _) = read_account(&account, IDENTITY);
        let left = open(&read);
        assert!(left.is_subset(&all));
        // Two BEGINs of 4 words each.
        let room = usize::saturating_sub(words, 1) / 8;
        assert_eq!(left.len(), room.min(TRACKS as usize));
    }
}

#[test]
fn rings_that_keep_nothing_are_not_dumped() {
    let rings = Rings::create_keeping().unwrap();
    let dir = tempfile::tempdir().unwrap();
    assert!(rings.dump(&dump_spec(dir.path(), "x", 0, 1)).is_none());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Steps and requests in bursts, and a session that comes and goes beside.
fn play_forever() {
    for round in 0_u64.. {
        let request = RequestTrack::new(round);
        request.describe(Event::Request, &[("request_id", "r")]);
        request.begin(Event::Request, [], &[]);
        let step = slice(Event::WorkerStep, [round]);
        request.begin(Event::Waiting, [], &[]);
        drop(slice(Event::Forward, [round]));
        request.end(Event::Waiting, [], &[]);
        counter(Event::ResidentBytes, round);
        step.end([1, 2]);
        request.end(Event::Request, [1, 0, 1, 0], &[]);
        if round % 20 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        if round % 500 == 0 {
            let session = name(&format!("s{round}"));
            // There may be four that are being written.
            let _ = crate::begin_session(SessionSpec::new(session.clone(), 1 << 20));
            crate::end_session(&session, None);
        }
        if round == 2_000 {
            signal_parent();
        }
    }
}

#[test]
fn dumps_of_a_process_that_records_meanwhile_are_whole_and_so_is_the_last_one() {
    const KEEP: Duration = Duration::from_secs(1);
    const DUMPS: u32 = 12;
    let rings = Rings::create_keeping_sized(4, 1 << 18).unwrap();
    let test = "flight::dumps_of_a_process_that_records_meanwhile_are_whole_and_so_is_the_last_one";
    // Larger than what is recorded until the end.
    let sessions = vec![auto(1 << 30)];
    let mut stage = stage_keeping(rings, Some(KEEP), test, sessions, play_forever);
    stage.wait_until_ready();
    for number in 1..=DUMPS {
        let now_ns = boottime_ns();
        let spec = DumpSpec {
            number,
            role: "worker-3".to_owned(),
            ..dump_spec(
                stage.dir.path(),
                &format!("d{number}"),
                now_ns - 1_000_000_000,
                now_ns,
            )
        };
        let status = stage.rings.dump(&spec).unwrap();
        assert_eq!(status.state, SessionState::Finished, "{status:?}");
        // Reading fails at an END without BEGIN.
        let shown = read(&status.file);
        let tokens: Vec<u64> = shown
            .slices_named("forward")
            .iter()
            .map(|slice| slice.begin.args["tokens"].parse().unwrap())
            .collect();
        assert!(tokens.len() > 100, "{}", tokens.len());
        if shown.end()["dropped"] == "0" {
            let expected = tokens[0]..=tokens[tokens.len() - 1];
            assert!(expected.eq(tokens.iter().copied()), "a gap");
        }
    }
    stage.child.kill().unwrap();
    stage.child.wait().unwrap();
    let died_ns = boottime_ns();
    let spec = DumpSpec {
        number: DUMPS + 1,
        role: "worker-3".to_owned(),
        is_dead: true,
        ..dump_spec(stage.dir.path(), "last", died_ns - 1_000_000_000, died_ns)
    };
    let status = stage.rings.dump(&spec).unwrap();
    let shown = read(&status.file);
    assert_eq!(shown.end()["reason"], "process died");
    let last = shown.slices_named("forward").last().unwrap().begin.args["tokens"].clone();
    // The process's own files end with the same record.
    let salvaged = stage.rings.salvage(stage.dir.path()).into_iter();
    let files: Vec<_> = salvaged.map(|salvaged| salvaged.unwrap().file).collect();
    let mut names = files.iter().map(|file| file.file_name().unwrap());
    let recorded = names.position(|name| name.to_string_lossy().starts_with("auto."));
    let recorded = read(&files[recorded.expect("it was being recorded")]);
    assert_eq!(recorded.end()["reason"], "process died");
    let forwards = recorded.slices_named("forward");
    assert_eq!(forwards.last().unwrap().begin.args["tokens"], last);
}
