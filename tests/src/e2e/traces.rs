//! Traces of a real run, judged by the validator.

use crate::client::{Stream, StreamEvent, long_completion, post};
use crate::programs::golden;
use crate::server::{Server, ServerOptions};
use nano_trace::check::{OpenSlices, Report, check};
use nano_trace::read::Source;
use nano_trace::{Event, TraceFileName};
use nix::sys::signal::Signal;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Trace files in a directory, by role.
fn files(dir: &Path) -> Vec<(String, PathBuf)> {
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

fn judge(paths: &[&PathBuf], open: &OpenSlices) -> Report {
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

fn end(server: &mut Server) {
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
    let requests = report
        .timeline
        .slices
        .iter()
        .filter(|slice| slice.event == Some(Event::Request));
    assert_eq!(requests.count(), 8);

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
