//! Sessions: which records each shows, how they follow each other, and how they end.

use super::*;
use crate::check::Report;
use crate::read::Tail;
use crate::{Begin, Detail, SessionName};
use std::fs;
use std::time::Duration;

fn name(text: &str) -> SessionName {
    text.parse().unwrap()
}

fn spec(text: &str) -> SessionSpec {
    SessionSpec::new(name(text), 8 << 20)
}

const PATIENCE: Duration = Duration::from_secs(60);

/// In the child: begins a session, if need be when another one is whole.
fn begin(spec: SessionSpec) -> SessionStatus {
    loop {
        match crate::begin_session(spec.clone()) {
            Err(SessionError::TooMany(_)) => {
                let ending = crate::sessions();
                let ending = ending.iter().find(|s| s.state == SessionState::Flushing);
                assert!(crate::wait_whole(&ending.unwrap().name, PATIENCE));
            }
            begun => return begun.unwrap(),
        }
    }
}

/// In the child: ends a session and waits for its file.
fn end(text: &str) -> SessionStatus {
    crate::end_session(&name(text), None).unwrap();
    assert!(crate::wait_whole(&name(text), PATIENCE));
    status_of(text)
}

fn status_of(text: &str) -> SessionStatus {
    let mut all = crate::sessions().into_iter().rev();
    all.find(|status| status.name == name(text)).unwrap()
}

fn staged(test: &str, sessions: Vec<SessionSpec>, scene: impl FnOnce()) -> Stage {
    let test = format!("sessions::{test}");
    stage_with(Rings::create().unwrap(), &test, sessions, scene)
}

impl Stage {
    /// Waits for the child's good end.
    fn ended(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        self.rings.check_integrity().unwrap();
        self.assert_nothing_to_salvage();
    }

    fn read(&self, session: &str) -> Shown {
        read(&self.file_of(session))
    }
}

fn tokens(shown: &Shown) -> Vec<u64> {
    let slices = shown.slices_named("forward").into_iter();
    slices
        .map(|slice| slice.begin.args["tokens"].parse().unwrap())
        .collect()
}

/// Joined in this order, whatever readers cannot show right is found.
fn joined(files: &[PathBuf]) -> Report {
    let bytes: Vec<u8> = files.iter().flat_map(|f| fs::read(f).unwrap()).collect();
    check(&[Source::bytes("joined", bytes)], &OpenSlices::None).unwrap()
}

fn assert_nests(report: &Report) {
    let counts = report.violations.counts();
    for rule in [
        Rule::EndWithoutBegin,
        Rule::SliceOverlap,
        Rule::EqualStamps,
        Rule::SliceOpen,
        Rule::TrackDescribed,
    ] {
        assert!(
            !counts.contains_key(&rule),
            "{:#?}",
            report.violations.kept()
        );
    }
}

#[test]
fn sessions_follow_each_other_while_earlier_ones_are_written() {
    const SESSIONS: u64 = 40;
    let test = "sessions_follow_each_other_while_earlier_ones_are_written";
    let mut stage = staged(test, vec![], || {
        // A thread that is older than every session.
        let (work, orders) = std::sync::mpsc::channel::<u64>();
        let (done, answers) = std::sync::mpsc::channel();
        let older = std::thread::spawn(move || {
            for session in orders {
                drop(slice(Event::Forward, [1000 + session]));
                done.send(()).unwrap();
            }
        });
        let track = RequestTrack::new(1);
        track.describe(&[("request_id", "long")]);
        track.begin(Event::Request, [], &[]);
        for session in 0..SESSIONS {
            let begun = begin(spec(&format!("s{session}")));
            assert_eq!(begun.state, SessionState::Recording);
            for _ in 0..50 {
                drop(slice(Event::Forward, [session]));
            }
            work.send(session).unwrap();
            answers.recv().unwrap();
            let ended = crate::end_session(&begun.name, None).unwrap();
            assert!(ended.state.has_ended(), "{ended:?}");
            // Between the sessions.
            drop(slice(Event::Forward, [9999]));
        }
        drop(work);
        older.join().unwrap();
        track.end(Event::Request, [1, 2, 3, 0], &[]);
        crate::finish();
        for status in crate::sessions() {
            assert_eq!(status.state, SessionState::Finished);
            // 51 slices.
            assert_eq!((status.events, status.drops), (102, 0), "{status:?}");
            assert_eq!(status.bytes, status.file.metadata().unwrap().len());
        }
        assert_eq!(crate::begin_session(spec("late")), Err(SessionError::Off));
    });
    stage.ended();
    let files: Vec<PathBuf> = (0..SESSIONS)
        .map(|s| stage.file_of(&format!("s{s}")))
        .collect();
    assert_eq!(fs::read_dir(stage.dir.path()).unwrap().count(), files.len());
    for (session, file) in (0..).zip(&files) {
        let shown = read(file);
        let mut found = tokens(&shown);
        found.sort_unstable();
        let expected = [vec![session; 50], vec![1000 + session]].concat();
        assert_eq!(found, expected);
        let request = shown.slices_named("request");
        assert_eq!(request.len(), 1);
        assert_eq!(request[0].begin.args["request_id"], "long");
        assert_eq!(request[0].begin.args["clipped"], "true");
        assert_eq!(shown.open(), [""; 0]);
        assert_eq!(shown.end()["reason"], "finished");
        assert_eq!(shown.attributes["session"], format!("s{session}"));
    }
    let forwards = joined(&files);
    assert_nests(&forwards);
    let reversed: Vec<PathBuf> = files.iter().rev().cloned().collect();
    assert_nests(&joined(&reversed));
    let [first, .., last] = &files[..] else {
        unreachable!()
    };
    assert_nests(&joined(&[last.clone(), files[7].clone(), first.clone()]));
}

#[test]
fn what_goes_on_beyond_a_session_is_clipped() {
    let test = "what_goes_on_beyond_a_session_is_clipped";
    let mut stage = staged(test, vec![auto(1 << 20)], || {
        let track = RequestTrack::new(7);
        track.describe(&[("request_id", "cmpl-7"), ("traceparent", "00-ab-cd-01")]);
        track.begin(Event::Queued, [70], &[]);
        // Its BEGIN lies in the earlier session, its END in none, or in the next.
        let before = slice(Event::Load, []);
        counter(Event::Running, 5);
        end("auto");
        // Nothing records: only the request is watched.
        track.instant(Event::NotAdmitted, [1], &[]);
        let unseen = slice(Event::LoadOpen, [1]);
        begin(spec("middle"));
        drop(unseen);
        drop(before);
        track.end(Event::Queued, [], &[]);
        track.begin(Event::Decode, [], &[]);
        let step = slice(Event::WorkerStep, [1, 2]);
        let forward = slice(Event::Forward, [2]);
        end("middle");
        forward.end([]);
        step.end([3]);
        begin(spec("last"));
        counter(Event::Running, 6);
        begin(spec("beside"));
        end("beside");
        end("last");
        track.end(Event::Decode, [9], &[]);
        begin(spec("empty"));
        crate::finish();
    });
    stage.ended();

    let shown = stage.read("auto");
    assert_eq!(
        shown.slices_named("queued")[0].begin.args["clipped"],
        "true"
    );
    assert_eq!(shown.slices_named("load")[0].begin.args["clipped"], "true");

    let shown = stage.read("middle");
    let names: Vec<&str> = shown.slices.iter().map(|s| s.begin.name.as_str()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["decode", "forward", "queued", "recording", "step"]);
    let interval = shown.slices_named("recording")[0];
    let queued = shown.slices_named("queued")[0];
    assert_eq!(queued.begin.ns, interval.begin.ns);
    let expected = [
        ("clipped", "true"),
        ("prompt_tokens", "70"),
        ("request_id", "cmpl-7"),
        ("traceparent", "00-ab-cd-01"),
    ];
    let args = queued.begin.args.iter();
    assert!(args.map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
    for name in ["decode", "step", "forward"] {
        let slice = shown.slices_named(name)[0];
        assert_eq!(slice.begin.args["clipped"], "true", "{name}");
        assert_eq!(slice.end, interval.end, "{name}");
    }
    assert_eq!(shown.slices_named("forward")[0].within, ["step"]);
    assert!(!queued.begin.args.contains_key("output_tokens"));
    assert_eq!(shown.end()["dropped"], "0", "what is left out is not lost");
    assert!(shown.counters.is_empty(), "nobody knows what they stand at");

    assert_eq!(stage.read("last").slices_named("decode").len(), 1);
    let counters = stage.read("beside").counters;
    let values: Vec<i64> = counters.iter().map(|c| c.2).collect();
    assert_eq!(values, [6], "as it stood");
    let empty = stage.read("empty");
    assert_eq!(empty.slices.len(), 1, "the interval alone");

    let files = ["auto", "middle", "last", "empty"].map(|s| stage.file_of(s));
    assert_nests(&joined(&files));
    let [a, b, c, d] = files;
    assert_nests(&joined(&[d, c, b, a]));
}

#[test]
fn one_session_ends_where_the_next_begins() {
    let test = "one_session_ends_where_the_next_begins";
    let mut stage = staged(test, vec![auto(8 << 20)], || {
        let record = |from: u64| {
            for i in from..from + 50 {
                instant(Event::EventLoopStall, [i], &[]);
            }
            // Slow enough for the writer.
            let until = boottime_ns() + 100_000;
            while boottime_ns() < until {
                std::thread::yield_now();
            }
        };
        record(0);
        // The same moment for every process, a little ahead.
        let at_ns = boottime_ns() + 20_000_000;
        crate::end_session(&name("auto"), Some(at_ns));
        let next = begin(SessionSpec {
            begin: Begin::At(at_ns),
            ..spec("next")
        });
        assert!(!next.state.has_ended(), "{next:?}");
        record(50);
        let mut from = 100;
        while boottime_ns() < at_ns + 1_000_000 {
            record(from);
            from += 50;
        }
        record(from);
        crate::finish();
        assert_eq!(status_of("auto").drops + status_of("next").drops, 0);
        let late = status_of("auto").late_records + status_of("next").late_records;
        fs::write(
            status_of("next").file.with_extension("txt"),
            format!("{late} {}", from + 50),
        )
        .unwrap();
    });
    stage.ended();
    let told = fs::read_to_string(stage.file_of("next").with_extension("txt")).unwrap();
    let (late, made) = told.split_once(' ').unwrap();
    let numbers = |session| -> Vec<u64> {
        let shown = stage.read(session);
        let stalls = shown
            .instants
            .iter()
            .filter(|i| i.name == "event_loop.stall");
        stalls.map(|i| i.args["late_us"].parse().unwrap()).collect()
    };
    let (before, after) = (numbers("auto"), numbers("next"));
    assert!(before.len() >= 100 && after.len() >= 50);
    // A record that was published late, because its thread lost the processor
    // in between, may be in neither; then that is said.
    let all = [before, after].concat();
    assert!(all.is_sorted());
    let missing = made.parse::<u64>().unwrap() - all.len() as u64;
    assert!(missing <= late.parse().unwrap(), "{missing} {late}");
    let ends = [stage.read("auto"), stage.read("next")].map(|shown| {
        let interval = shown.slices_named("recording")[0].clone();
        (interval.begin.ns, interval.end.unwrap())
    });
    assert_eq!(ends[0].1 + 1, ends[1].0);
}

#[test]
fn stamps_select_exactly_what_lies_between_them() {
    const STEPS: u64 = 40;
    const RECORDED: [std::ops::Range<u64>; 2] = [10..20, 25..30];
    let test = "stamps_select_exactly_what_lies_between_them";
    let mut stage = staged(test, vec![], || {
        // Times of clocks that are read differently agree to a microsecond.
        let pause = || {
            let until = boottime_ns() + 20_000;
            while boottime_ns() < until {}
        };
        for attempt in 0.. {
            let session = format!("try-{attempt}");
            let begun = begin(SessionSpec {
                begin: Begin::Stamped,
                ..spec(&session)
            });
            assert_eq!(begun.state, SessionState::Armed);
            let mut stamps = Vec::new();
            for step in 0..STEPS {
                pause();
                if RECORDED.iter().any(|steps| steps.start == step) {
                    stamps.push((boottime_ns(), true));
                }
                pause();
                for _ in 0..5 {
                    drop(slice(Event::Forward, [step]));
                }
                pause();
                if RECORDED.iter().any(|steps| steps.end == step + 1) {
                    stamps.push((boottime_ns(), false));
                }
                // Known some steps later.
                if step % 7 == 0 {
                    for (ns, on) in stamps.drain(..) {
                        crate::stamp_session(&begun.name, ns, on);
                    }
                }
            }
            for (ns, on) in stamps.drain(..) {
                crate::stamp_session(&begun.name, ns, on);
            }
            assert_eq!(status_of(&session).state, SessionState::Paused);
            let ended = end(&session);
            // On a machine that stands still the stamps come too late, which is told.
            if ended.late_records == 0 {
                fs::copy(&ended.file, ended.file.with_file_name("good")).unwrap();
                break;
            }
            assert!(attempt < 50, "{ended:?}");
        }
        crate::finish();
    });
    stage.ended();
    let shown = read(&stage.dir.path().join("good"));
    let steps = RECORDED.into_iter().flatten();
    let expected: Vec<u64> = steps.flat_map(|step| [step; 5]).collect();
    assert_eq!(tokens(&shown), expected);
    assert_eq!(shown.slices_named("recording").len(), 2);
    assert_eq!(shown.end()["events"], (2 * expected.len()).to_string());
}

#[test]
fn a_stamp_that_is_too_late_is_told() {
    let test = "a_stamp_that_is_too_late_is_told";
    let mut stage = staged(test, vec![], || {
        let begun = begin(SessionSpec {
            begin: Begin::Stamped,
            ..spec("s")
        });
        let at_ns = boottime_ns();
        for _ in 0..10 {
            drop(slice(Event::Forward, [1]));
        }
        // Returns when they have been decided about.
        assert!(crate::flush());
        crate::stamp_session(&begun.name, at_ns, true);
        drop(slice(Event::Forward, [2]));
        crate::finish();
        let status = status_of("s");
        assert_eq!(status.late_records, 20, "{status:?}");
    });
    stage.ended();
    assert_eq!(tokens(&stage.read("s")), [2]);
}

#[test]
fn sessions_of_marked_requests_show_no_others() {
    let test = "sessions_of_marked_requests_show_no_others";
    let marked = SessionSpec {
        marked_only: true,
        ..spec("marked")
    };
    let mut stage = staged(test, vec![auto(1 << 20), marked], || {
        let keys = [5, 6 | RequestTrack::MARKED];
        for key in keys {
            let track = RequestTrack::new(key);
            track.describe(&[("request_id", &format!("r{}", key & 15))]);
            track.begin(Event::Request, [], &[Flow::request(key)]);
        }
        let flows = keys.map(Flow::request);
        drop(slice_with(Event::Forward, [2], &flows));
        counter(Event::Running, 2);
        begin(SessionSpec {
            marked_only: true,
            ..spec("later")
        });
        for key in keys {
            RequestTrack::new(key).end(Event::Request, [1, 0, 1, 0], &[Flow::request(key)]);
        }
        crate::finish();
    });
    stage.ended();
    for (session, requests) in [("auto", 2), ("marked", 1), ("later", 1)] {
        let shown = stage.read(session);
        let found = shown.slices_named("request");
        assert_eq!(found.len(), requests, "{session}");
        assert_eq!(found[requests - 1].begin.args["request_id"], "r6");
        assert!(found.iter().all(|request| request.end.is_some()));
        assert_eq!(shown.counters.len(), 1);
        for forward in shown.slices_named("forward") {
            let flow = Flow::request(6 | RequestTrack::MARKED).id(RUN);
            assert_eq!(forward.begin.flows.len(), requests);
            assert!(forward.begin.flows.contains(&flow));
        }
    }
}

#[test]
fn details_are_shown_to_those_who_asked() {
    let test = "details_are_shown_to_those_who_asked";
    let mut stage = staged(test, vec![auto(1 << 20)], || {
        let work = || {
            let _forward = slice(Event::Forward, [1]);
            drop(slice(Event::Layer, [3]));
        };
        work();
        begin(SessionSpec {
            detail: Detail::Ops,
            ..spec("ops")
        });
        work();
        end("ops");
        work();
        crate::finish();
    });
    stage.ended();
    let (auto, ops) = (stage.read("auto"), stage.read("ops"));
    assert_eq!(auto.slices_named("forward").len(), 3);
    assert!(auto.slices_named("layer").is_empty());
    assert_eq!(ops.slices_named("layer")[0].within, ["forward"]);
    assert_eq!(ops.attributes["detail"], "2");
}

#[test]
fn caps_and_durations_end_a_session_fully_and_alone() {
    const DURATION: Duration = Duration::from_millis(60);
    let test = "caps_and_durations_end_a_session_fully_and_alone";
    let mut stage = staged(test, vec![auto(64 << 20)], || {
        let (tell, ends) = std::sync::mpsc::channel();
        let tell = std::sync::Mutex::new(tell);
        crate::on_session_end(move |status| tell.lock().unwrap().send(status).unwrap());
        begin(SessionSpec {
            max_bytes: SessionSpec::MIN_BYTES,
            ..spec("small")
        });
        begin(SessionSpec {
            duration: Some(DURATION),
            ..spec("short")
        });
        let mut ended = Vec::new();
        while ended.len() < 2 {
            for _ in 0..100 {
                drop(slice(Event::Forward, [1]));
            }
            ended.extend(ends.try_iter());
            std::thread::yield_now();
        }
        ended.sort_by_key(|status| status.name.clone());
        let states: Vec<_> = ended
            .iter()
            .map(|s| (s.name.as_str(), s.state.clone()))
            .collect();
        let expected = [
            ("short", SessionState::TimedOut),
            ("small", SessionState::Capped),
        ];
        assert_eq!(states, expected);
        assert_eq!(ended, ["short", "small"].map(status_of));
        assert_eq!(status_of("auto").state, SessionState::Recording);
        // Each of their places is free.
        for session in ["a", "b", "c"] {
            begin(spec(session));
        }
        let taken = crate::begin_session(spec("a"));
        assert_eq!(taken, Err(SessionError::Taken(name("a"))));
        let many = crate::begin_session(spec("d"));
        assert_eq!(many, Err(SessionError::TooMany(4)));
        drop(slice(Event::Forward, [2]));
        crate::finish();
        assert!(ends.try_recv().is_err(), "those were ended by us");
    });
    stage.ended();
    let small = stage.file_of("small").metadata().unwrap().len();
    let (cap, chunk) = (SessionSpec::MIN_BYTES, 64 << 10);
    assert!(small <= cap && small > cap - chunk, "{small}");
    assert_eq!(stage.read("small").end()["reason"], "byte cap");
    let short = stage.read("short");
    assert_eq!(short.end()["reason"], "duration");
    let interval = short.slices_named("recording")[0];
    let took = interval.end.unwrap() + 1 - interval.begin.ns;
    assert_eq!(Duration::from_nanos(took), DURATION);
    assert!(short.last_ns <= interval.end.unwrap());
    assert!(!tokens(&short).is_empty());
    for session in ["a", "b", "c"] {
        assert_eq!(tokens(&stage.read(session)), [2]);
    }
    assert_eq!(tokens(&stage.read("auto")).pop(), Some(2));
}

#[test]
fn every_record_is_in_the_file_or_counted() {
    let rings = Rings::create_sized(4, 512).unwrap();
    let test = "sessions::every_record_is_in_the_file_or_counted";
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 20_000;
    let mut stage = stage_with(rings, test, vec![auto(256 << 20)], || {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                std::thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let step = slice(Event::WorkerStep, [round]);
                        instant(Event::EventLoopStall, [round], &[]);
                        let request = RequestTrack::new(thread * ROUNDS + round);
                        request.begin(Event::Request, [], &[]);
                        request.begin(Event::Waiting, [], &[]);
                        request.end(Event::Waiting, [], &[]);
                        request.end(Event::Request, [], &[]);
                        drop(step);
                        if round % 32 == 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        crate::finish();
        assert!(now().drops > 0 && now().events > 100, "{:?}", now());
    });
    stage.ended();
    let shown = stage.read("auto");
    let [events, dropped] = ["events", "dropped"].map(|k| shown.end()[k].parse::<u64>().unwrap());
    // Of a slice that found no room no END was made.
    let steps = shown.slices_named("step").len() as u64;
    let made = THREADS * ROUNDS * 6 + steps;
    assert_eq!(events + dropped, made);
    // Packets say the same: slices twice (ENDs may have been lost), instants once.
    let instants = shown.instants.len() as u64 - 1;
    let begins = shown.slices.len() as u64 - 1;
    assert!(instants + begins <= events && events <= instants + 2 * begins);
}

#[test]
fn a_thousand_sessions_leave_nothing_behind() {
    const SESSIONS: u64 = 1000;
    let test = "a_thousand_sessions_leave_nothing_behind";
    let mut stage = staged(test, vec![], || {
        let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
        let resident = || {
            let statm = fs::read_to_string("/proc/self/statm").unwrap();
            let pages = statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
            pages * 4096
        };
        let mut before = (0, 0, 0);
        for session in 0..SESSIONS {
            if session == 100 {
                crate::flush();
                before = (resident(), count("fd"), count("task"));
            }
            let text = format!("s{session}");
            let track = RequestTrack::new(session);
            track.describe(&[("request_id", &text)]);
            track.begin(Event::Request, [], &[]);
            begin(spec(&text));
            for _ in 0..20 {
                let _step = slice(Event::WorkerStep, [session]);
                drop(slice(Event::Forward, [session]));
            }
            crate::end_session(&name(&text), None);
            track.end(Event::Request, [1, 0, 1, 0], &[]);
        }
        let last = format!("s{}", SESSIONS - 1);
        while !crate::sessions().iter().all(|s| s.state.is_over()) {
            assert!(crate::wait_whole(&name(&last), PATIENCE));
        }
        let (bytes, fds, threads) = (resident(), count("fd"), count("task"));
        println!(
            "{SESSIONS} sessions: {} bytes of memory before, {bytes} after",
            before.0
        );
        assert!(bytes < before.0 + (5 << 20), "{bytes} after {before:?}");
        assert_eq!((fds, threads), (before.1, before.2));
        crate::finish();
    });
    stage.ended();
    for session in 0..SESSIONS {
        let shown = stage.read(&format!("s{session}"));
        assert_eq!(tokens(&shown), [session; 20]);
        assert_eq!(shown.slices_named("request").len(), 1);
    }
}

/// Requests and slices without end, and sessions that come and go beside `auto`.
fn play_forever() {
    let play = |thread: u64| {
        for round in 0.. {
            let request = RequestTrack::new(thread << 32 | round);
            request.describe(&[("request_id", "r")]);
            request.begin(Event::Request, [], &[Flow::request(round)]);
            let _step = slice(Event::WorkerStep, [round]);
            request.begin(Event::Waiting, [], &[]);
            drop(slice(Event::Forward, [round]));
            request.end(Event::Waiting, [], &[]);
            request.end(Event::Request, [1, 0, 1, 0], &[]);
            // Slow enough for the writer: nothing is dropped.
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    std::thread::spawn(move || play(1));
    std::thread::spawn(move || play(2));
    for round in 0.. {
        let begin_how = if round % 3 == 0 {
            Begin::Stamped
        } else {
            Begin::Now
        };
        let begun = begin(SessionSpec {
            begin: begin_how,
            marked_only: round % 5 == 0,
            ..spec(&format!("s{round}"))
        });
        for on in [true, false, true] {
            crate::stamp_session(&begun.name, boottime_ns(), on);
            std::thread::yield_now();
        }
        crate::end_session(&begun.name, None);
        if round == 3 {
            signal_parent();
        }
    }
}

#[test]
fn kills_at_any_moment_leave_whole_files_with_the_last_records() {
    let test = "kills_at_any_moment_leave_whole_files_with_the_last_records";
    // A child asks for its own scene only.
    let rounds = if std::env::var("NANO_TRACE_SCENE_DIR").is_ok() {
        1
    } else {
        8
    };
    for round in 0..rounds {
        let mut stage = staged(test, vec![auto(256 << 20)], play_forever);
        stage.wait_until_ready();
        // Somewhere in the writer's round of 200 ms.
        std::thread::sleep(Duration::from_millis(round * 29));
        let before = boottime_ns();
        stage.child.kill().unwrap();
        stage.child.wait().unwrap();
        let files: Vec<PathBuf> = fs::read_dir(stage.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        for file in &files {
            let mut packets = Source::File(file.clone()).packets().unwrap();
            while packets.next_packet().unwrap().is_some() {}
            let tail = packets.tail();
            assert!(
                matches!(tail, Some(Tail::Whole | Tail::Cut { .. })),
                "{tail:?}"
            );
        }
        let salvaged = stage.rings.salvage(stage.dir.path());
        assert!(!salvaged.is_empty() && salvaged.len() <= 4);
        for salvaged in salvaged {
            let salvaged = salvaged.unwrap();
            assert_eq!(salvaged.bytes, salvaged.file.metadata().unwrap().len());
        }
        stage.assert_nothing_to_salvage();
        for file in &files {
            let mut packets = Source::File(file.clone()).packets().unwrap();
            while packets.next_packet().unwrap().is_some() {}
            // One that was being made, for a session that had not begun.
            if packets.packets() < 8 {
                continue;
            }
            let shown = read(file);
            let mut instants = shown.instants.iter();
            assert!(instants.any(|i| i.name == "trace.end"), "{file:?}");
        }
        let auto = stage.read("auto");
        assert_eq!(auto.end()["reason"], "process died");
        let last = auto.slices.iter().filter(|s| s.begin.name != "recording");
        let last = last.map(|slice| slice.begin.ns).max().unwrap();
        // Before the kill, or during it; in no file after all are dead.
        assert!(
            before.saturating_sub(last) < 1_000_000_000,
            "{before} {last}"
        );
    }
}

#[test]
fn a_disk_that_fails_fails_one_session_and_not_the_next() {
    let test = "a_disk_that_fails_fails_one_session_and_not_the_next";
    let mut stage = staged(test, vec![auto(1 << 20)], || {
        let dir = now().file.parent().unwrap().to_owned();
        drop(slice(Event::Forward, [1]));
        assert!(crate::flush());
        let reason = |text: &str| match status_of(text).state {
            SessionState::Failed(reason) => reason,
            state => panic!("{state:?}"),
        };
        // The directory goes, with all that is in it.
        fs::remove_dir_all(&dir).unwrap();
        assert!(!crate::flush());
        assert!(reason("auto").contains("removed"), "{}", reason("auto"));
        assert_eq!(begin(spec("again")).state, SessionState::Recording);
        drop(slice(Event::Forward, [2]));
        assert_eq!(end("again").state, SessionState::Finished);
        // Something else is in its place, for all users alike.
        let aside = dir.with_extension("aside");
        fs::rename(&dir, &aside).unwrap();
        fs::write(&dir, "").unwrap();
        let failed = begin(spec("nowhere"));
        assert!(
            matches!(failed.state, SessionState::Failed(_)),
            "{failed:?}"
        );
        assert!(!reason("nowhere").is_empty());
        fs::remove_file(&dir).unwrap();
        fs::rename(&aside, &dir).unwrap();
        // A name that somebody has put a link under leads nowhere.
        let file = failed
            .file
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let planted = dir.join(file.replacen("nowhere", "planted", 1));
        std::os::unix::fs::symlink("/tmp/nano-trace-planted", planted).unwrap();
        let refused = begin(spec("planted"));
        assert!(
            matches!(refused.state, SessionState::Failed(_)),
            "{refused:?}"
        );
        assert!(!PathBuf::from("/tmp/nano-trace-planted").exists());
        // A full disk, while two record.
        begin(spec("full"));
        drop(slice(Event::Forward, [3]));
        assert!(crate::flush());
        let size = status_of("full").bytes + 4096;
        let limit = libc::rlimit {
            rlim_cur: size,
            rlim_max: size,
        };
        // SAFETY: plain system calls with valid arguments.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
        let flows: Vec<Flow> = (0..1024).map(Flow::request).collect();
        drop(slice_with(Event::Forward, [4], &flows));
        crate::flush();
        assert!(!reason("full").is_empty());
        // A failed name may be used again, where there is no file of it.
        begin(spec("nowhere"));
        drop(slice(Event::Forward, [5]));
        assert_eq!(end("nowhere").state, SessionState::Finished);
        crate::finish();
    });
    stage.ended();
    assert_eq!(tokens(&stage.read("again")), [2]);
    assert_eq!(tokens(&stage.read("full")), [3]);
    assert_eq!(stage.read("full").end()["reason"], "write failed");
    assert_eq!(tokens(&stage.read("nowhere")), [5]);
}
