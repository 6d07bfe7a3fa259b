//! Sessions: which records each shows, and how they follow each other.

mod bounds;
mod kills;

use super::*;
use crate::check::Report;
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
                // None, if the last one was finished this very moment.
                if let Some(ending) = ending.iter().find(|s| s.state == SessionState::Flushing) {
                    assert!(crate::wait_whole(&ending.name, PATIENCE));
                }
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
        track.describe(Event::Request, &[("request_id", "long")]);
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
        track.describe(
            Event::Queued,
            &[("request_id", "cmpl-7"), ("traceparent", "00-ab-cd-01")],
        );
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
    const SESSIONS: u64 = 24;
    let session = |number: u64| format!("s{number}");
    let test = "one_session_ends_where_the_next_begins";
    let mut stage = staged(test, vec![spec(&session(0))], || {
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let mut late = 0;
        let made = std::thread::scope(|scope| {
            let player = scope.spawn(|| {
                let mut made = 0;
                while !is_over.load(SeqCst) {
                    instant(Event::EventLoopStall, [made], &[]);
                    made += 1;
                    // Slow enough for the writer.
                    std::thread::sleep(Duration::from_micros(20));
                }
                made
            });
            for number in 1..SESSIONS {
                std::thread::sleep(Duration::from_millis(number));
                // Moments that the writer has passed, or may have, or not.
                let at_ns = boottime_ns() + 3_000_000 - number % 4 * 2_000_000;
                let next = SessionSpec {
                    begin: Begin::At(at_ns),
                    ..spec(&session(number))
                };
                let begun = crate::replace_session(&name(&session(number - 1)), at_ns, next);
                assert!(!begun.unwrap().state.has_ended());
                assert!(crate::wait_whole(&name(&session(number - 1)), PATIENCE));
                let ended = status_of(&session(number - 1));
                late += ended.drops + ended.late_records;
            }
            is_over.store(true, SeqCst);
            player.join().unwrap()
        });
        crate::finish();
        let last = status_of(&session(SESSIONS - 1));
        late += last.drops + last.late_records;
        fs::write(last.file.with_extension("txt"), format!("{late} {made}")).unwrap();
    });
    stage.ended();
    let last = stage.file_of(&session(SESSIONS - 1));
    let told = fs::read_to_string(last.with_extension("txt")).unwrap();
    let (late, made) = told.split_once(' ').unwrap();
    let all: Vec<Shown> = (0..SESSIONS).map(|s| stage.read(&session(s))).collect();
    let stalls = all.iter().flat_map(|shown| &shown.instants);
    let numbers: Vec<u64> = stalls
        .filter(|i| i.name == "event_loop.stall")
        .map(|i| i.args["late_us"].parse().unwrap())
        .collect();
    assert!(
        numbers.is_sorted_by(|a, b| a < b),
        "none is in two sessions"
    );
    // A record that was published late, because its thread lost the processor
    // in between, may be in none; then that is said.
    let missing = made.parse::<u64>().unwrap() - numbers.len() as u64;
    assert!(missing <= late.parse().unwrap(), "{missing} {late}");
    for pair in all.windows(2) {
        let [before, after] = [&pair[0], &pair[1]].map(|shown| shown.slices_named("recording")[0]);
        assert_eq!(before.end.unwrap() + 1, after.begin.ns);
    }
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
            track.describe(Event::Request, &[("request_id", &format!("r{}", key & 15))]);
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
