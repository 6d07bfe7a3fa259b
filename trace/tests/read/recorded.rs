//! What the recorder writes, judged by the validator: three processes that
//! play a request's way, as the server does, one word of the parent at a time.
//! A process records once, so each is this test binary again.

use nano_trace::{
    Event, Flow, ProcessTrace, RequestTrack, Rings, SessionSpec, SessionState,
    check::{OpenSlices, Rule, check},
    counter, instant,
    merge::merge,
    read::{Source, Tail},
    selection::{Wanted, select},
    slice, slice_with,
};
use std::{
    io::{BufRead, BufReader, Write, stdin},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

const RUN: u64 = 0x51;
const KEY: u64 = 7;
const CAP: u64 = 1 << 20;

/// One process of the play.
struct Player {
    child: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
    rings: Rings,
}

impl Player {
    fn start(dir: &Path, role: &str) -> Player {
        let rings = Rings::create().unwrap();
        let inherited = rings.fd().try_clone_to_owned().unwrap();
        nix::fcntl::fcntl(
            &inherited,
            nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
        )
        .unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "recorded::player"])
            .env("NANO_TRACE_PLAYER", role)
            .env("NANO_TRACE_PLAYER_DIR", dir)
            .env("NANO_TRACE_PLAYER_RINGS", inherited.as_raw_fd().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let words = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Player {
            child,
            words,
            answers,
            rings,
        }
    }

    /// Lets the process do something, and waits until it is done.
    fn tell(&mut self, word: &str) {
        writeln!(self.words, "{word}").unwrap();
        let done = format!("did {word}");
        let mut answers = (&mut self.answers).lines();
        assert!(answers.any(|line| line.unwrap() == done), "{done}");
    }

    fn end(mut self) {
        drop(self.words);
        assert!(self.child.wait().unwrap().success());
    }
}

/// The child's side; as a test of its own it does nothing.
#[test]
fn player() {
    let Ok(role) = std::env::var("NANO_TRACE_PLAYER") else {
        return;
    };
    let rings = std::env::var("NANO_TRACE_PLAYER_RINGS").unwrap();
    nano_trace::start(ProcessTrace {
        dir: std::env::var("NANO_TRACE_PLAYER_DIR").unwrap().into(),
        role,
        run: RUN,
        // SAFETY: inherited for us alone, and not used otherwise.
        rings: unsafe { OwnedFd::from_raw_fd(rings.parse().unwrap()) },
        facts: vec![("model".to_owned(), "none".to_owned())],
        keep: None,
        sessions: vec![SessionSpec::new("auto".parse().unwrap(), CAP)],
    })
    .unwrap();
    let mut open = Vec::new();
    for line in stdin().lines() {
        let line = line.unwrap();
        play(&line, &mut open);
        println!("\ndid {line}");
    }
    while open.pop().is_some() {}
    nano_trace::finish();
    std::process::exit(0);
}

fn play(word: &str, open: &mut Vec<nano_trace::Slice>) {
    let track = RequestTrack::new(KEY);
    let flow = [Flow::request(KEY)];
    match word {
        "submit" => {
            track.describe(Event::Request, &[("request_id", "cmpl-1")]);
            track.begin(Event::Request, [], &flow);
            track.begin(Event::Preprocess, [], &[]);
            drop(slice(Event::HttpParse, [100]));
            slice(Event::Tokenize, [90]).end([20]);
            track.end(Event::Preprocess, [], &[]);
            track.begin(Event::Waiting, [], &[]);
            drop(slice_with(Event::EngineSubmit, [20], &flow));
        }
        "dispatch" => {
            open.push(slice(Event::CoreStep, [1, 20, 0, 1, 0]));
            drop(slice(Event::CoreReceive, [1]));
            track.begin(Event::Queued, [20], &flow);
            {
                let _schedule = slice(Event::Schedule, []);
                track.end(Event::Queued, [], &[]);
                track.begin(Event::Prefill, [1, 20], &flow);
            }
            counter(Event::BatchedTokens, 20);
            slice_with(Event::Dispatch, [], &[Flow::step_to_rank(1, 0)]).end([64]);
            open.push(slice(Event::WaitWorkers, []));
        }
        "step" => {
            let step = slice_with(Event::WorkerStep, [], &[Flow::step_to_rank(1, 0)]);
            slice(Event::WorkerReceive, []).end([64]);
            drop(slice_with(Event::Forward, [20], &flow));
            drop(slice_with(
                Event::WorkerSend,
                [64],
                &[Flow::rank_to_core(1, 0)],
            ));
            step.end([1, 20, 1]);
        }
        "open step" => open.push(slice(Event::WorkerStep, [])),
        "decode until the cap" => {
            open.push(slice(Event::CoreStep, []));
            let state = || nano_trace::sessions()[0].state.clone();
            for request in (0..).take_while(|_| state() == SessionState::Recording) {
                RequestTrack::new(request).begin(Event::Decode, [], &[]);
                // Slow enough for the writer.
                std::thread::yield_now();
            }
            assert_eq!(state(), SessionState::Capped);
        }
        "update" => {
            open.pop();
            {
                let _update = slice_with(Event::Update, [1], &[Flow::rank_to_core(1, 0)]);
                track.end(Event::Prefill, [], &[]);
                track.begin(Event::Decode, [], &flow);
                track.end(Event::Decode, [1], &[]);
            }
            drop(slice(Event::CoreSend, [1]));
            open.pop();
        }
        "answer" => {
            drop(slice(Event::EngineReceive, [1]));
            track.end(Event::Waiting, [], &[]);
            track.begin(Event::Streaming, [], &flow);
            slice(Event::SseWrite, []).end([30]);
            track.end(Event::Streaming, [], &[]);
            track.instant(Event::Finish, [0], &flow);
            track.end(Event::Request, [20, 0, 1, 0], &[]);
        }
        "tick" => {
            instant(Event::EventLoopStall, [1], &[]);
        }
        other => panic!("what is {other}?"),
    }
}

#[test]
fn three_processes_make_one_clean_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let [mut frontend, mut core, mut worker] =
        ["frontend", "core", "worker-0"].map(|role| Player::start(dir.path(), role));
    frontend.tell("tick");
    frontend.tell("submit");
    core.tell("dispatch");
    worker.tell("step");
    core.tell("update");
    frontend.tell("answer");
    for player in [frontend, core, worker] {
        player.end();
    }
    let files = select(&[dir.path().to_owned()], &Wanted::Newest)
        .unwrap()
        .files;
    assert_eq!(files.len(), 3);
    for file in &files {
        let report = check(&[Source::File(file.clone())], &OpenSlices::None).unwrap();
        report.assert_clean();
    }
    let merged = dir.path().join("merged.pftrace");
    merge(&files, &merged).unwrap();
    let report = check(&[Source::File(merged)], &OpenSlices::None).unwrap();
    report.assert_clean();

    let timeline = report.timeline;
    assert_eq!(timeline.dropped, 0);
    assert!(
        timeline
            .facts
            .contains(&("model".to_owned(), "none".to_owned()))
    );
    let mut ways = timeline.flows.values().map(|hops| {
        let names = hops.iter().map(|hop| timeline.hop(hop).0.unwrap());
        names.collect::<Vec<_>>()
    });
    use Event::*;
    assert!(ways.any(|way| way
        == [
            Request,
            EngineSubmit,
            Queued,
            Prefill,
            Forward,
            Decode,
            Streaming,
            Finish
        ]));
    assert_eq!(timeline.flows.len(), 3);
    let (_, request) = timeline.slices_of(Request).next().unwrap();
    assert_eq!(request.arg("request_id").unwrap().text(), Some("cmpl-1"));
    assert_eq!(request.arg("prompt_tokens").unwrap().uint(), Some(20));
    assert_eq!(request.arg("finish_reason").unwrap().text(), Some("stop"));
    let (place, step) = timeline.slices_of(CoreStep).next().unwrap();
    assert_eq!(step.arg("prefill_tokens").unwrap().uint(), Some(20));
    let parts = timeline
        .children(place)
        .map(|(_, part)| part.event.unwrap());
    assert_eq!(
        parts.collect::<Vec<_>>(),
        [
            CoreReceive,
            Schedule,
            Dispatch,
            WaitWorkers,
            Update,
            CoreSend
        ]
    );
    assert_eq!(
        timeline.counter_values(BatchedTokens).next().unwrap().value,
        20.0
    );
}

#[test]
fn a_killed_process_leaves_its_open_slice_and_nothing_broken() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = Player::start(dir.path(), "worker-0");
    worker.tell("step");
    worker.tell("open step");
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
    worker.rings.salvage(dir.path()).remove(0).unwrap();
    let files = select(&[dir.path().to_owned()], &Wanted::Newest)
        .unwrap()
        .files;
    let sources = files.into_iter().map(Source::File).collect::<Vec<_>>();

    let strict = check(&sources, &OpenSlices::None).unwrap();
    let rules = strict.violations.counts().keys().copied();
    assert_eq!(rules.collect::<Vec<_>>(), [Rule::SliceOpen]);

    let pid = worker.child.id() as i32;
    let report = check(&sources, &OpenSlices::Of(vec![pid])).unwrap();
    report.assert_clean();
    assert_eq!(report.files[0].tail, Tail::Whole);
    let open = report.timeline.slices.iter().filter(|s| s.end.is_none());
    let open = open.map(|s| s.event.unwrap()).collect::<Vec<_>>();
    assert_eq!(open, [Event::WorkerStep]);
}

#[test]
fn a_trace_that_its_cap_cut_short_is_clean_with_what_was_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut core = Player::start(dir.path(), "core");
    core.tell("decode until the cap");
    core.end();
    let files = select(&[dir.path().to_owned()], &Wanted::Newest)
        .unwrap()
        .files;
    let report = check(&[Source::File(files[0].clone())], &OpenSlices::None).unwrap();
    report.assert_clean();
    assert!(report.files[0].bytes <= CAP);
    let open = report.timeline.slices.iter().filter(|s| s.end.is_none());
    let (steps, decodes): (Vec<_>, Vec<_>) = open
        .map(|slice| slice.event.unwrap())
        .partition(|event| *event == Event::CoreStep);
    assert_eq!(steps.len(), 1);
    assert!(decodes.len() > 1000, "{}", decodes.len());
}
