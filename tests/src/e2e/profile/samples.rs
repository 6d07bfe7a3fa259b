//! Stack samples of real servers.
//!
//! The soak is short; `scripts/soak-samples` runs it long, by
//! `NANO_SAMPLES_SECONDS`.

use super::support::{
    Load, PATIENCE, all, auto, dir, files, judge_session, manual, start, states, stop_whole, tiny,
    wait_idle,
};
use crate::client::post;
use crate::programs::{built_programs, default_model};
use crate::server::{Server, ServerOptions};
use nano_trace::check::Report;
use nano_trace::flame::{Filter, folded};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn stacks(report: &Report, process: &str, inside: Option<&str>) -> BTreeMap<String, u64> {
    let filter = Filter {
        process: Some(process.to_owned()),
        inside: inside.map(str::to_owned),
        ..Filter::default()
    };
    folded(&report.timeline, &filter).unwrap_or_else(|error| panic!("{process}: {error}"))
}

fn any_is_in(stacks: &BTreeMap<String, u64>, function: &str) -> bool {
    stacks.keys().any(|stack| stack.contains(function))
}

#[test]
fn a_session_shows_where_the_threads_of_every_process_were() {
    let dir = dir();
    let server = manual(tiny(), dir.path()).start();
    let load = Load::start(&server, 16, 1900);
    let wishes =
        json!({"activities": ["samples"], "sample_hz": 999, "duration_ms": 2500, "name": "x"});
    let answer = start(&server, wishes);
    for process in answer["processes"].as_array().expect("processes") {
        assert_eq!(process["sample_hz"], 999, "{process}");
        assert_eq!(process.get("no_samples"), None);
    }
    let ended = wait_idle(&server);
    assert_eq!(states(&ended), all("timed out"));
    drop(load);
    let report = judge_session(dir.path(), "x", 3);
    let samples = &report.timeline.samples;
    let whole = samples.iter().filter(|sample| sample.is_whole).count();
    println!("{} samples, {whole} of them whole", samples.len());
    assert!(whole as f64 > 0.9 * samples.len() as f64, "{whole}");
    for (process, own) in [
        ("frontend", "nano_frontend::"),
        ("core", "nano_core::"),
        ("worker", "nano_worker::"),
    ] {
        assert!(any_is_in(&stacks(&report, process, None), own), "{process}");
    }
    let forward = stacks(&report, "worker", Some("forward"));
    let with_forward = forward
        .iter()
        .filter(|(stack, _)| stack.contains("forward"));
    let (of_it, whole): (u64, u64) = (with_forward.map(|(_, ns)| ns).sum(), forward.values().sum());
    println!("inside forward: {whole} ns, {of_it} of them in functions of that name");
    assert!(of_it as f64 > 0.8 * whole as f64, "{forward:#?}");

    let paths = files(dir.path(), "x").into_iter().map(|(_, path)| path);
    let (folded_out, picture) = (flame(paths.clone(), &["--folded"]), flame(paths, &[]));
    assert!(folded_out.lines().count() > 1, "{folded_out}");
    assert!(picture.contains("<svg") && picture.contains("nano_worker::"));
}

/// What `nano-trace flame` draws of the worker.
fn flame(files: impl Iterator<Item = PathBuf>, args: &[&str]) -> String {
    let output = Command::new(built_programs().join("nano-trace"))
        .arg("flame")
        .args(files)
        .args(["--process", "worker", "--inside", "forward", "-o", "-"])
        .args(args)
        .output()
        .expect("it was built");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_operator_has_the_threads_of_one_process_sampled_from_its_start_on() {
    let dir = dir();
    let mut server = auto(tiny(), dir.path())
        .env("NANO_ENABLE_MULTIPROCESSING", "0")
        .env("NANO_PROFILER_SAMPLE_HZ", "499")
        .start();
    let load = Load::start(&server, 16, 1900);
    for times in load.finish() {
        assert!(!times.is_empty());
    }
    server.signal("nano-serve-single", Signal::SIGTERM);
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    let report = judge_session(dir.path(), "auto", 1);
    let facts = &report.timeline.facts;
    assert!(facts.contains(&("sample_hz".to_owned(), "499".to_owned())));
    let stacks = stacks(&report, "", None);
    for own in ["nano_frontend::", "nano_core::", "nano_worker::"] {
        assert!(any_is_in(&stacks, own), "{own}");
    }
    let threads: BTreeSet<i64> = report.timeline.samples.iter().map(|s| s.tid).collect();
    assert!(threads.len() >= 3, "{threads:?}");
}

#[test]
fn a_client_s_session_samples_faster_than_the_operator_s_before_it() {
    let dir = dir();
    let server = auto(ServerOptions::mock(0), dir.path())
        .env("NANO_PROFILER_SAMPLE_HZ", "20")
        .start();
    let answer = start(&server, json!({"sample_hz": "200", "name": "fast"}));
    for process in answer["processes"].as_array().expect("processes") {
        assert_eq!(process["sample_hz"], 200, "{process}");
    }
    // Work for a second, in every process.
    Load::start(&server, 8, 4000).finish();
    stop_whole(&server);
    let report = judge_session(dir.path(), "fast", 3);
    let weights: BTreeSet<u64> = report.timeline.samples.iter().map(|s| s.weight).collect();
    // Whole periods, and never less than one of the faster rate.
    assert!(
        weights.iter().all(|ns| ns.is_multiple_of(5_000_000)),
        "{weights:?}"
    );
    assert!(weights.contains(&5_000_000), "{weights:?}");
    // Nobody asked for samples.
    let answer = start(&server, json!({"name": "plain"}));
    assert_eq!(answer["processes"][0].get("sample_hz"), None, "{answer}");
    stop_whole(&server);
    let report = judge_session(dir.path(), "plain", 3);
    assert!(report.timeline.samples.is_empty());
}

/// How long each rate lasts.
fn seconds() -> Duration {
    let seconds = std::env::var("NANO_SAMPLES_SECONDS");
    Duration::from_secs(seconds.map_or(4, |text| text.parse().expect("seconds")))
}

const CLIENTS: u64 = 6;
/// Different requests of a client.
const KINDS: u64 = 4;

fn body(client: u64, kind: u64) -> Value {
    let length = 1 + (client * 37 + kind * 61) % 200;
    json!({
        "prompt": (0..length).map(|i| 100 + (client + kind + i) * 31 % 40_000).collect::<Vec<_>>(),
        "max_tokens": 4 + (client * 5 + kind * 7) % 30,
        "temperature": 0.8,
        "seed": client * KINDS + kind,
        "ignore_eos": true,
    })
}

fn text(url: &str, body: &Value) -> String {
    let (status, answer) = post(url, body).expect("answered");
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0]["text"]
        .as_str()
        .expect("a text")
        .to_owned()
}

#[test]
fn no_request_is_lost_or_changed_while_stacks_are_sampled() {
    let dir = dir();
    let mut server = manual(ServerOptions::real(&default_model()), dir.path())
        .env("NANO_PROFILER_MAX_MB", "4096")
        .start();
    let url = format!("{}/v1/completions", server.base_url());
    let kinds = (0..CLIENTS).flat_map(|client| (0..KINDS).map(move |kind| (client, kind)));
    let expected: BTreeMap<_, _> = kinds
        .map(|(client, kind)| ((client, kind), text(&url, &body(client, kind))))
        .collect();
    for hz in [99, 999] {
        let asked = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        let outcome = thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (asked, is_over, expected, url) = (&asked, &is_over, &expected, &url);
                scope.spawn(move || {
                    let mut kind = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let text = text(url, &body(client, kind));
                        assert_eq!(text, expected[&(client, kind)], "{client} {kind}");
                        asked.fetch_add(1, Ordering::Relaxed);
                        kind = (kind + 1) % KINDS;
                    }
                });
            }
            let outcome = sessions(&server, dir.path(), hz, seconds());
            is_over.store(true, Ordering::Relaxed);
            outcome
        });
        let asked = asked.load(Ordering::Relaxed);
        println!("{hz} Hz: {asked} requests as without samples; {outcome}");
        assert!(asked > 0);
    }
    crate::traces::end(&mut server);
}

/// What sessions under load showed.
#[derive(Default)]
struct Outcome {
    sessions: u32,
    samples: usize,
    whole: usize,
    weight_ns: u64,
    lost: u64,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = self.weight_ns as f64 / 1e9;
        write!(
            f,
            "{} sessions, {} samples ({} with a whole stack) of {cpu:.1} s of CPU time, {:.0} in a second of it; {} samples lost",
            self.sessions,
            self.samples,
            self.whole,
            self.samples as f64 / cpu,
            self.lost
        )
    }
}

/// One session after the other, for so long.
fn sessions(server: &Server, dir: &std::path::Path, hz: u32, time: Duration) -> Outcome {
    let mut outcome = Outcome::default();
    let until = Instant::now() + time;
    let each = (time / 3).min(Duration::from_secs(20));
    while Instant::now() < until {
        outcome.sessions += 1;
        let name = format!("{hz}-{}", outcome.sessions);
        let wishes = json!({"sample_hz": hz, "duration_ms": each.as_millis() as u64, "name": name});
        start(server, wishes);
        let ended = wait_idle(server);
        assert_eq!(states(&ended), all("timed out"), "{ended}");
        for process in ended["processes"].as_array().expect("processes") {
            // Or the judge would excuse what records lack.
            assert_eq!(process["drops"], 0, "{ended}");
            assert_eq!(process["unsampled_threads"], 0, "{ended}");
            outcome.lost += process["lost_samples"].as_u64().expect("a number");
        }
        let report = judge_session(dir, &name, 3);
        let samples = &report.timeline.samples;
        outcome.samples += samples.len();
        outcome.whole += samples.iter().filter(|sample| sample.is_whole).count();
        outcome.weight_ns += samples.iter().map(|sample| sample.weight).sum::<u64>();
        for (_, path) in files(dir, &name) {
            std::fs::remove_file(path).expect("ours");
        }
    }
    assert!(
        outcome.whole as f64 > 0.9 * outcome.samples as f64,
        "{outcome}"
    );
    outcome
}
