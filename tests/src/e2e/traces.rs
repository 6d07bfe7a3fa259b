//! Traces of a real run, judged by the validator.

use crate::client::{Stream, StreamEvent, long_completion, post};
use crate::perfetto::assert_shows;
use crate::programs::golden;
use crate::server::{Server, ServerOptions, wait_for};
use nano_trace::check::{OpenSlices, Report, check};
use nano_trace::read::Source;
use nano_trace::{Event, TraceFileName};
use nix::sys::signal::Signal;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Trace files in a directory, by role.
pub fn files(dir: &Path) -> Vec<(String, PathBuf)> {
    let mut files: Vec<(String, PathBuf)> = fs::read_dir(dir)
        .expect("made by the server")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            let name: TraceFileName = name.parse().expect("a trace file's name");
            assert_eq!(name.session, "auto");
            (name.role, path)
        })
        .collect();
    files.sort();
    files
}

pub fn judge(paths: &[&PathBuf], open: &OpenSlices) -> Report {
    let sources: Vec<Source> = paths
        .iter()
        .map(|path| Source::File((*path).clone()))
        .collect();
    check(&sources, open).expect("files can be read")
}

/// Eight requests at once, streaming and not, with prompts of many lengths.
fn eight_requests(server: &Server) {
    let body = |n: usize| {
        json!({
            "model": "tiny-llama",
            "prompt": (0..n * 20).map(|i| i % 700).collect::<Vec<_>>(),
            "max_tokens": 10 + n * 3,
            "ignore_eos": true,
        })
    };
    let streams: Vec<Stream> = (1..=4)
        .map(|n| Stream::open(server.base_url(), "/v1/completions", body(n)))
        .collect();
    std::thread::scope(|scope| {
        for n in 5..=8 {
            let url = format!("{}/v1/completions", server.base_url());
            scope.spawn(move || {
                let (status, answer) = post(&url, &body(n)).expect("answered");
                assert_eq!(status, 200, "{answer}");
            });
        }
    });
    for stream in streams {
        let events = stream.rest(Instant::now() + Duration::from_secs(60));
        assert!(events.contains(&StreamEvent::Done), "{events:?}");
    }
}

fn profiled(dir: &Path) -> ServerOptions {
    let dir = dir.to_str().expect("UTF-8");
    ServerOptions::real(&golden("models/tiny-llama")).env("NANO_PROFILER_DIR", dir)
}

pub fn end(server: &mut Server) {
    server.signal("nano-serve", Signal::SIGTERM);
    let status = server.wait_exit(Duration::from_secs(5));
    assert_eq!(status.code(), Some(0), "{}", server.log());
}

#[test]
fn each_process_writes_a_whole_trace_and_together_they_show_every_request_s_way() {
    let temp = tempfile::tempdir().expect("temporary directory");
    // The server makes what is missing.
    let dir = temp.path().join("traces/of/this run");
    let mut server = profiled(&dir).start();
    eight_requests(&server);
    end(&mut server);

    let files = files(&dir);
    let roles: Vec<&str> = files.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["core", "frontend", "worker"]);
    for (role, path) in &files {
        let report = judge(&[path], &OpenSlices::None);
        report.assert_clean();
        let counts = report.timeline.slices.len();
        assert!(counts > 8, "{role} shows {counts} slices");
    }
    let all: Vec<&PathBuf> = files.iter().map(|(_, path)| path).collect();
    let report = judge(&all, &OpenSlices::None);
    report.assert_clean();
    let paths: Vec<PathBuf> = all.iter().copied().cloned().collect();
    assert_eq!(report.timeline.slices_of(Event::Request).count(), 8);
    assert_shows(&paths, &report);

    // One file of the same bytes reads the same.
    let joined = temp.path().join("joined.pftrace");
    let mut bytes = Vec::new();
    for path in &all {
        bytes.extend(fs::read(path).expect("readable"));
    }
    fs::write(&joined, bytes).expect("written");
    judge(&[&joined], &OpenSlices::None).assert_clean();
}

#[test]
fn after_kill_9_of_any_process_all_traces_are_whole_and_end_at_the_kill() {
    for program in ["nano-serve", "nano-frontend", "nano-core", "nano-worker"] {
        let temp = tempfile::tempdir().expect("temporary directory");
        let mut server = profiled(temp.path()).start();
        let stream = Stream::open(server.base_url(), "/v1/completions", long_completion(400));
        stream.wait_started();
        let victim = server.process(program);
        let killed_at = nano_ipc::lifecycle::boottime_ns();
        let killed = server.signal(program, Signal::SIGKILL);
        server.wait_gone(killed, Duration::from_secs(2));
        server.wait_exit(Duration::from_secs(1));

        let files = files(temp.path());
        assert_eq!(files.len(), 3, "{program}");
        // Only who was killed had no chance to end what it was at.
        let open = OpenSlices::Of(vec![victim.pid.as_raw()]);
        for (role, path) in &files {
            let report = judge(&[path], &open);
            report.assert_clean();
            let slices = report.timeline.slices.iter();
            let last = slices.map(|slice| slice.end.unwrap_or(slice.begin)).max();
            let last = last.unwrap_or_else(|| panic!("{role} shows nothing"));
            assert!(
                last + 1_000_000_000 > killed_at,
                "{program} killed: {role} ends {} ms before it",
                (killed_at - last) / 1_000_000
            );
        }
        let all: Vec<&PathBuf> = files.iter().map(|(_, path)| path).collect();
        judge(&all, &open).assert_clean();
    }
}

/// The step that the mock worker never ends; one token comes from each before it.
const ENDLESS_STEP: usize = 12;
const TOKENS: usize = ENDLESS_STEP - 1;

/// A server that hangs in a known place after a few tokens, all of them quicker
/// than any trace writer's turn: most of what each process recorded then lies
/// in its rings alone.
fn hanging_server(dir: &Path) -> (Server, Stream) {
    let server = ServerOptions::mock(0)
        .env("NANO_MOCK_ENDLESS_STEP", &ENDLESS_STEP.to_string())
        .env("NANO_PROFILER_DIR", dir.to_str().expect("UTF-8"))
        .start();
    let mut body = long_completion(400);
    body["return_token_ids"] = json!(true);
    let stream = Stream::open(server.base_url(), "/v1/completions", body);
    let mut seen = 0;
    while seen < TOKENS {
        let data = stream.next_data();
        let token_ids = data["choices"][0]["token_ids"].as_array();
        seen += token_ids.map_or(0, Vec::len);
    }
    // The core sleeps only to wait for step 12, which is then on its way to the
    // worker; and the worker, woken by that, only within the step.
    for program in ["nano-core", "nano-worker"] {
        let process = server.process(program);
        let within = Duration::from_secs(60);
        wait_for("sleep", within, || process.is_asleep().then_some(()));
    }
    (server, stream)
}

#[test]
fn after_kill_9_the_open_slices_stay_open_and_what_clients_saw_is_there() {
    for (program, role, innermost) in [
        ("nano-frontend", "frontend", Event::Streaming),
        ("nano-core", "core", Event::WaitWorkers),
        ("nano-worker", "worker", Event::Forward),
    ] {
        let temp = tempfile::tempdir().expect("temporary directory");
        let (mut server, _stream) = hanging_server(temp.path());
        let victim = server.process(program);
        let killed = server.signal(program, Signal::SIGKILL);
        server.wait_gone(killed, Duration::from_secs(2));
        server.wait_exit(Duration::from_secs(1));

        let files = files(temp.path());
        let (_, path) = files
            .iter()
            .find(|(of, _)| of == role)
            .expect("the dead one's file");
        let report = judge(&[path], &OpenSlices::Of(vec![victim.pid.as_raw()]));
        report.assert_clean();
        let timeline = &report.timeline;
        let open: Vec<Event> = timeline
            .slices
            .iter()
            .filter(|slice| slice.end.is_none())
            .filter_map(|slice| slice.event)
            .collect();
        let expected = match innermost {
            Event::Streaming => vec![Event::Request, Event::Streaming],
            // The request's own track in the core, then the thread's.
            Event::WaitWorkers => vec![Event::Decode, Event::CoreStep, Event::WaitWorkers],
            _ => vec![Event::WorkerStep, Event::Forward],
        };
        assert_eq!(open, expected, "{program}");
        // Each token that the client saw had come this way before the kill.
        let (event, arg) = match innermost {
            Event::Streaming => (Event::Detokenize, "token_ids"),
            Event::WaitWorkers => (Event::Update, "sampled_tokens"),
            _ => (Event::Sample, "sequences"),
        };
        let ended = timeline.slices_of(event).map(|(_, slice)| slice);
        let ended = ended.filter(|slice| slice.end.is_some());
        let counts = ended.filter_map(|slice| slice.arg(arg)?.uint());
        assert_eq!(counts.sum::<u64>(), TOKENS as u64, "{program}");
        assert_shows(std::slice::from_ref(path), &report);
    }
}

#[test]
fn a_single_process_writes_one_trace() {
    let temp = tempfile::tempdir().expect("temporary directory");
    let mut server = profiled(temp.path())
        .env("NANO_ENABLE_MULTIPROCESSING", "0")
        .start();
    eight_requests(&server);
    server.signal("nano-serve-single", Signal::SIGTERM);
    let status = server.wait_exit(Duration::from_secs(5));
    assert_eq!(status.code(), Some(0), "{}", server.log());
    let files = files(temp.path());
    let [(role, path)] = &files[..] else {
        panic!("{files:?}")
    };
    assert_eq!(role, "single");
    judge(&[path], &OpenSlices::None).assert_clean();
}
