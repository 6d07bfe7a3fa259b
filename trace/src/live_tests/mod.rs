//! The recorder as a process uses it, with its writer, its file, and a parent
//! that salvages. A process records once, so each test runs this test binary
//! again as a child that plays one scene.

mod flight;
mod reading;
mod samples;
mod sessions;

use crate::check::{OpenSlices, Rule, check};
use crate::clock::boottime_ns;
use crate::read::Source;
use crate::{
    Event, Flow, ProcessTrace, RequestTrack, Rings, Salvaged, SessionError, SessionSpec,
    SessionState, SessionStatus, StartError, counter, instant, slice, slice_with,
};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use reading::{Shown, read};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const RUN: u64 = 0x0123_4567_89ab_cdef;

/// A child that plays the scene of the test that starts it.
struct Stage {
    dir: tempfile::TempDir,
    rings: Rings,
    child: Child,
}

/// In the child: plays the scene and exits. In the parent: starts the child.
fn stage(test: &str, max_bytes: u64, scene: impl FnOnce()) -> Stage {
    stage_with(Rings::create().unwrap(), test, vec![auto(max_bytes)], scene)
}

fn auto(max_bytes: u64) -> SessionSpec {
    SessionSpec::new("auto".parse().unwrap(), max_bytes)
}

fn stage_with(rings: Rings, test: &str, sessions: Vec<SessionSpec>, scene: impl FnOnce()) -> Stage {
    stage_keeping(rings, None, test, sessions, scene)
}

fn stage_keeping(
    rings: Rings,
    keep: Option<Duration>,
    test: &str,
    sessions: Vec<SessionSpec>,
    scene: impl FnOnce(),
) -> Stage {
    if let Ok(dir) = std::env::var("NANO_TRACE_SCENE_DIR") {
        let fd = std::env::var("NANO_TRACE_SCENE_RINGS")
            .unwrap()
            .parse()
            .unwrap();
        crate::start(ProcessTrace {
            dir: dir.into(),
            role: "worker-3".to_owned(),
            run: RUN,
            // SAFETY: inherited for us alone, and not used otherwise.
            rings: unsafe { OwnedFd::from_raw_fd(fd) },
            facts: vec![("model".to_owned(), "tiny".to_owned())],
            keep,
            sessions,
        })
        .unwrap();
        scene();
        std::process::exit(0);
    }
    let dir = tempfile::tempdir().unwrap();
    let inherited = rings.fd().try_clone_to_owned().unwrap();
    fcntl(&inherited, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &format!("live_tests::{test}")])
        .env("NANO_TRACE_SCENE_DIR", dir.path())
        .env("NANO_TRACE_SCENE_RINGS", inherited.as_raw_fd().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Stage { dir, rings, child }
}

/// In the child: how its newest session stands.
fn now() -> SessionStatus {
    crate::sessions().pop().unwrap()
}

/// In the child: tells the parent that it may go on.
fn signal_parent() {
    std::io::stdout().write_all(b"\nready\n").unwrap();
    std::io::stdout().flush().unwrap();
}

/// In the child: waits for the parent, which kills us or closes our input.
fn wait_for_parent() {
    let _ = std::io::stdin().read(&mut [0]);
}

impl Stage {
    fn wait_until_ready(&mut self) {
        let out = BufReader::new(self.child.stdout.take().unwrap());
        assert!(out.lines().any(|line| line.unwrap() == "ready"));
    }

    fn file(&self) -> PathBuf {
        self.file_of("auto")
    }

    fn file_of(&self, session: &str) -> PathBuf {
        let pid = self.child.id();
        let name = format!("{session}.worker-3.0123456789abcdef-{pid}.pftrace");
        self.dir.path().join(name)
    }

    /// Waits for the child's good end.
    fn finished(&mut self) -> Shown {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        self.rings.check_integrity().unwrap();
        self.assert_nothing_to_salvage();
        read(&self.file())
    }

    fn assert_nothing_to_salvage(&self) {
        let salvaged = self.rings.salvage(self.dir.path());
        assert!(salvaged.is_empty(), "{salvaged:?}");
    }

    /// Kills the child and salvages.
    fn killed(&mut self) -> (Shown, Salvaged) {
        let before = boottime_ns();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let after = boottime_ns();
        self.rings.check_integrity().unwrap();
        let mut salvaged = self.rings.salvage(self.dir.path());
        assert_eq!(salvaged.len(), 1, "{salvaged:?}");
        let salvaged = salvaged.remove(0).unwrap();
        self.assert_nothing_to_salvage();
        let shown = read(&self.file());
        assert!(shown.last_ns <= after && before.saturating_sub(shown.last_ns) < 1_000_000_000);
        (shown, salvaged)
    }
}

#[test]
fn everything_shows_as_it_was_recorded() {
    let mut stage = stage("everything_shows_as_it_was_recorded", 1 << 20, || {
        let request = RequestTrack::new(77);
        request.describe(
            Event::Request,
            &[("request_id", "cmpl-1\n"), ("traceparent", "00-ab-cd-01")],
        );
        request.begin(Event::Request, [], &[Flow::request(77)]);
        request.begin(Event::Preprocess, [], &[]);
        {
            let step = slice_with(Event::WorkerStep, [9, 100], &[Flow::step_to_rank(9, 3)]);
            let forward = slice(Event::Forward, [100]);
            instant(Event::EventLoopStall, [5], &[]);
            drop(forward);
            step.end([4]);
        }
        std::thread::Builder::new()
            .name("other".to_owned())
            .spawn(move || {
                request.end(Event::Preprocess, [], &[]);
                request.instant(Event::NotAdmitted, [2], &[]);
                request.end(Event::Request, [10, 5, 3, 1], &[Flow::request(77)]);
                counter(Event::ResidentBytes, 1 << 40);
            })
            .unwrap()
            .join()
            .unwrap();
        counter(Event::ResidentBytes, 7);
        let status = now();
        assert_eq!(status.state, SessionState::Recording);
        crate::finish();
        crate::finish();
        drop(slice(Event::Forward, [1]));
        let status = now();
        assert_eq!(
            (status.state, status.events, status.drops),
            (SessionState::Finished, 12, 0)
        );
        assert_eq!(status.bytes, status.file.metadata().unwrap().len());
    });
    let shown = stage.finished();

    let args = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        pairs.collect()
    };
    let request = &shown.slices_named("request")[0].begin;
    assert_eq!(
        request.args,
        args(&[
            ("request_id", "cmpl-1\u{fffd}"),
            ("traceparent", "00-ab-cd-01"),
            ("prompt_tokens", "10"),
            ("cached_tokens", "5"),
            ("output_tokens", "3"),
            ("finish_reason", "length"),
        ])
    );
    assert_eq!(request.flows, [Flow::request(77).id(RUN); 2]);
    assert_eq!(shown.slices_named("preprocess")[0].within, ["request"]);
    assert_eq!(
        shown.slices_named("preprocess")[0].begin.track,
        request.track
    );
    let step = &shown.slices_named("step")[0].begin;
    assert_eq!(
        step.args,
        args(&[("step_id", "9"), ("tokens", "100"), ("sequences", "4")])
    );
    assert_eq!(step.flows, [Flow::step_to_rank(9, 3).id(RUN)]);
    let forward = shown.slices_named("forward");
    assert_eq!(forward.len(), 1, "nothing after the end");
    assert_eq!(forward[0].within, ["step"]);
    assert_eq!(shown.open(), [""; 0]);
    let reason = shown
        .instants
        .iter()
        .find(|i| i.name == "not admitted")
        .unwrap();
    assert_eq!(reason.args, args(&[("reason", "KV blocks")]));
    let values: Vec<i64> = shown.counters.iter().map(|c| c.2).collect();
    assert_eq!(values, [1 << 40, 7]);
    assert_eq!(shown.attributes["model"], "tiny");
    assert_eq!(shown.attributes["role"], "worker-3");
    assert_eq!(shown.end()["reason"], "finished");
    assert_eq!(shown.end()["events"], "12");

    let track = &shown.tracks[&request.track];
    assert_eq!(track.name(), "request");
    let process = &shown.tracks[&track.parent_uuid.unwrap()]
        .process
        .clone()
        .unwrap();
    assert_eq!(process.process_name(), "nano-serve worker-3");
    assert_eq!(process.pid(), stage.child.id() as i32);
    let mut threads: Vec<String> = shown
        .tracks
        .values()
        .filter_map(|t| t.thread.as_ref()?.thread_name.clone())
        .collect();
    threads.sort_unstable();
    assert_eq!(threads[..2], ["live_tests::eve", "other"], "and the writer");
}

#[test]
fn a_kill_leaves_the_open_slice_and_loses_nothing() {
    let mut stage = stage(
        "a_kill_leaves_the_open_slice_and_loses_nothing",
        1 << 20,
        || {
            let request = RequestTrack::new(1);
            request.begin(Event::Request, [], &[]);
            request.begin(Event::Waiting, [], &[]);
            let _step = slice(Event::WorkerStep, [1, 2]);
            assert!(crate::flush());
            // From here on the records lie in the ring: the writer sleeps for
            // another 200 ms, or comes by in the midst; either must do.
            request.end(Event::Waiting, [], &[]);
            // Its BEGIN was never recorded.
            request.end(Event::Streaming, [], &[]);
            for layer in 0..100 {
                drop(slice(Event::Forward, [layer]));
            }
            let _open = slice(Event::Sample, [8]);
            signal_parent();
            wait_for_parent();
        },
    );
    stage.wait_until_ready();
    let (shown, salvaged) = stage.killed();
    assert_eq!(salvaged.file, stage.file());
    assert_eq!(salvaged.bytes, stage.file().metadata().unwrap().len());
    assert_eq!(shown.open(), ["request", "step", "sample"]);
    assert_eq!(shown.slices_named("sample")[0].within, ["step"]);
    assert!(shown.slices_named("waiting")[0].end.is_some());
    let layers = shown.slices_named("forward");
    let layers: Vec<_> = layers
        .iter()
        .map(|s| s.begin.args["tokens"].clone())
        .collect();
    let expected: Vec<_> = (0..100).map(|layer| layer.to_string()).collect();
    assert_eq!(layers, expected);
    assert_eq!(shown.end()["reason"], "process died");
    assert_eq!(shown.end()["dropped"], "1", "the END without BEGIN");
}

#[test]
fn a_kill_in_full_flight_leaves_whole_packets_and_every_record_once() {
    let name = "a_kill_in_full_flight_leaves_whole_packets_and_every_record_once";
    let mut stage = stage(name, 256 << 20, || {
        for i in 0_u64.. {
            drop(slice(Event::Forward, [i]));
            if i == 100_000 {
                signal_parent();
            }
            if i % 512 == 0 {
                // Slow enough for the writer, so that nothing is dropped.
                std::thread::yield_now();
                while now().events + 4_000 < 2 * i {
                    std::thread::yield_now();
                    crate::recorder::wake_writer();
                }
            }
        }
    });
    stage.wait_until_ready();
    let (shown, _) = stage.killed();
    assert_eq!(shown.end()["dropped"], "0");
    let slices = shown.slices_named("forward");
    assert!(slices.len() > 100_000);
    for (i, slice) in slices.iter().enumerate() {
        assert_eq!(slice.begin.args["tokens"], i.to_string());
    }
    assert!(slices.iter().rev().skip(1).all(|s| s.end.is_some()));
}

#[test]
fn a_child_that_never_recorded_leaves_nothing() {
    let rings = Rings::create().unwrap();
    let dir = tempfile::tempdir().unwrap();
    assert!(rings.salvage(dir.path()).is_empty());
}

#[test]
fn the_cap_ends_the_recording_and_is_never_passed() {
    const CAP: u64 = 256 << 10;
    let mut stage = stage(
        "the_cap_ends_the_recording_and_is_never_passed",
        CAP,
        || {
            let request = RequestTrack::new(5);
            request.begin(Event::Request, [], &[]);
            let flows: Vec<Flow> = (0..200).map(Flow::request).collect();
            let mut i = 0;
            while now().state == SessionState::Recording {
                i += 1;
                drop(slice_with(Event::Update, [i], &flows));
                std::thread::yield_now();
            }
            assert_eq!(now().state, SessionState::Capped);
            assert!(!crate::flush());
            crate::finish();
            assert_eq!(now().state, SessionState::Capped);
        },
    );
    let shown = stage.finished();
    let len = stage.file().metadata().unwrap().len();
    assert!(len <= CAP && len > CAP - (64 << 10), "{len}");
    assert_eq!(shown.end()["reason"], "byte cap");
    assert!(shown.open().contains(&"request"), "left open, as it was");
    assert!(shown.slices_named("update").len() > 50);
}

#[test]
fn a_removed_file_ends_the_recording_and_nothing_else() {
    let mut stage = stage(
        "a_removed_file_ends_the_recording_and_nothing_else",
        1 << 30,
        || {
            let status = now();
            std::fs::remove_file(&status.file).unwrap();
            while now().state == SessionState::Recording {
                drop(slice(Event::Forward, [1]));
                std::thread::yield_now();
            }
            let SessionState::Failed(reason) = now().state else {
                panic!("{:?}", now());
            };
            assert!(reason.contains("removed"), "{reason}");
            drop(slice(Event::Forward, [1]));
            crate::finish();
        },
    );
    drop(stage.child.stdin.take());
    assert!(stage.child.wait().unwrap().success());
    stage.assert_nothing_to_salvage();
}

#[test]
fn a_file_emptied_by_another_ends_the_recording_and_stays_as_it_is() {
    static ERRORS: AtomicU64 = AtomicU64::new(0);
    struct Log;
    impl log::Log for Log {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            ERRORS.fetch_add(u64::from(record.level() <= log::Level::Warn), SeqCst);
        }
        fn flush(&self) {}
    }
    let mut stage = stage(
        "a_file_emptied_by_another_ends_the_recording_and_stays_as_it_is",
        1 << 30,
        || {
            log::set_logger(&Log).unwrap();
            log::set_max_level(log::LevelFilter::Warn);
            drop(slice(Event::Forward, [1]));
            assert!(crate::flush());
            let status = now();
            std::fs::File::create(&status.file).unwrap();
            drop(slice(Event::Forward, [2]));
            assert!(!crate::flush());
            let SessionState::Failed(reason) = now().state else {
                panic!("{:?}", now());
            };
            assert!(reason.contains("another program"), "{reason}");
            drop(slice(Event::Forward, [3]));
            crate::finish();
            assert_eq!(ERRORS.load(SeqCst), 1, "said once");
        },
    );
    drop(stage.child.stdin.take());
    assert!(stage.child.wait().unwrap().success());
    assert_eq!(std::fs::read(stage.file()).unwrap(), b"");
    stage.assert_nothing_to_salvage();
}

#[test]
fn a_full_disk_ends_the_recording_at_a_whole_packet_that_says_so() {
    let mut stage = stage(
        "a_full_disk_ends_the_recording_at_a_whole_packet_that_says_so",
        1 << 30,
        || {
            let _open = slice(Event::WorkerStep, [1]);
            for _ in 0..200 {
                drop(slice(Event::Forward, [1]));
            }
            assert!(crate::flush());
            // A limit on the file's size is refused in the midst of a write, as a
            // full disk is.
            let size = now().bytes + 4096;
            let limit = libc::rlimit {
                rlim_cur: size,
                rlim_max: size,
            };
            // SAFETY: plain system calls with valid arguments.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
            }
            // One packet that is larger.
            let flows: Vec<Flow> = (0..1024).map(Flow::request).collect();
            drop(slice_with(Event::Forward, [2], &flows));
            assert!(!crate::flush());
            let status = now();
            assert!(
                matches!(status.state, SessionState::Failed(_)),
                "{status:?}"
            );
            assert_eq!(status.events, 401);
        },
    );
    let shown = stage.finished();
    assert_eq!(shown.slices_named("forward").len(), 200);
    assert_eq!(shown.open(), ["step"]);
    assert_eq!(shown.end()["reason"], "write failed");
    assert_eq!(shown.end()["events"], "401");
    // No rule asks for the end of what was open.
    let report = check(&[Source::File(stage.file())], &OpenSlices::None).unwrap();
    assert!(!report.violations.counts().contains_key(&Rule::SliceOpen));
}

#[test]
fn full_rings_drop_and_count_and_the_rest_stays_right() {
    let rings = Rings::create_sized(8, 512).unwrap();
    let name = "full_rings_drop_and_count_and_the_rest_stays_right";
    let mut stage = stage_with(rings, name, vec![auto(256 << 20)], || {
        let threads: Vec<_> = (0..4)
            .map(|t| {
                std::thread::spawn(move || {
                    for i in 0..20_000 {
                        let request = RequestTrack::new(t * 1_000_000 + i / 3);
                        let step = slice(Event::WorkerStep, [i]);
                        request.begin(Event::Request, [], &[]);
                        request.begin(Event::Waiting, [], &[]);
                        let forward = slice(Event::Forward, [i]);
                        request.end(Event::Waiting, [], &[]);
                        forward.end([]);
                        request.end(Event::Request, [i, 0, 0, 0], &[]);
                        step.end([i, i]);
                        if i % 64 == 0 {
                            // Lets the writer in between.
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        crate::finish();
        let status = now();
        assert!(status.drops > 0 && status.events > 100, "{status:?}");
    });
    // Reading fails at an END without BEGIN.
    let shown = stage.finished();
    let last = shown.counters.last().unwrap();
    assert_eq!(last.0, "dropped_records");
    assert_eq!(last.2.to_string(), shown.end()["dropped"]);
    for slice in shown.slices_named("step") {
        // On threads, every END had room.
        assert_eq!(slice.begin.args["sequences"], slice.begin.args["step_id"]);
    }
    assert_eq!(
        shown
            .slices_named("forward")
            .iter()
            .filter(|s| s.end.is_none())
            .count(),
        0
    );
}

#[test]
fn rings_return_and_serve_more_threads_than_there_are() {
    let rings = Rings::create_sized(4, 1024).unwrap();
    let name = "rings_return_and_serve_more_threads_than_there_are";
    let mut stage = stage_with(rings, name, vec![auto(1 << 20)], || {
        for i in 0..100 {
            std::thread::Builder::new()
                .name(format!("short-{i}"))
                .spawn(move || drop(slice(Event::Forward, [i])))
                .unwrap()
                .join()
                .unwrap();
            assert!(crate::flush());
        }
        crate::finish();
        assert_eq!(now().drops, 0);
    });
    let shown = stage.finished();
    let slices = shown.slices_named("forward");
    assert_eq!(slices.len(), 100);
    for (i, slice) in slices.iter().enumerate() {
        let thread = shown.tracks[&slice.begin.track].thread.clone().unwrap();
        assert_eq!(thread.thread_name(), format!("short-{i}"));
    }
}

#[test]
fn a_process_records_once_and_into_its_own_rings() {
    let mut stage = stage(
        "a_process_records_once_and_into_its_own_rings",
        1 << 20,
        || {
            let start = |rings: &Rings, role: &str| {
                crate::start(ProcessTrace {
                    dir: now().file.parent().unwrap().into(),
                    role: role.to_owned(),
                    run: RUN,
                    rings: rings.fd().try_clone_to_owned().unwrap(),
                    facts: vec![],
                    keep: None,
                    sessions: vec![],
                })
            };
            let rings = Rings::create().unwrap();
            assert!(matches!(start(&rings, "core"), Err(StartError::Twice)));
            for role in ["", "../core", "a.b-c.d", "x\0", "core-", "k\n"] {
                let refused = start(&rings, role);
                assert!(matches!(refused, Err(StartError::Role(_))), "{role}");
            }
            assert_eq!(
                crate::begin_session(SessionSpec::new("x".parse().unwrap(), 1)),
                Err(SessionError::Cap(1))
            );
            drop(slice(Event::Forward, [1]));
            crate::finish();
        },
    );
    let shown = stage.finished();
    assert_eq!(shown.slices_named("forward").len(), 1);
}
