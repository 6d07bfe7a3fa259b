//! nano-bench against the real server: what it has recorded, and one timeline
//! from the client's request to its last token.

use crate::perfetto::{assert_shows, python};
use crate::profile::support::{judge, judge_session, manual, tiny, wait_idle};
use crate::programs::{built_programs, default_model};
use crate::server::{Server, ServerOptions};
use nano_trace::Event;
use nano_trace::check::{OpenSlices, Report};
use nano_trace::proto::{BuiltinClock, trace_packet::Data};
use nano_trace::read::Source;
use nano_trace::timeline::{Through, TimelineSlice};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const WARM_UP: usize = 2;
const MEASURED: usize = 20;
/// How long after the start was sent the trace may begin.
const BEGINS_WITHIN_NS: u64 = 50_000_000;
/// A busy machine delays whoever it likes: one of so many runs must be in time.
const ATTEMPTS: usize = 5;

fn run(command: &mut Command) -> String {
    let output = command.output().expect("built");
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{errors}");
    out
}

/// Has each of its performance phases recorded, and records itself.
fn bench(server: &Server, traces: &Path, results: &Path) {
    let lengths = ["--input-len", "4..40", "--output-len", "3..12"];
    let load = ["--concurrency", "4", "--api", "completions", "--ignore-eos"];
    run(Command::new(built_programs().join("nano-bench"))
        .args(["--base-url", server.base_url(), "--profile", "nano"])
        .args(lengths)
        .args(load)
        .args(["--warmup-requests", &WARM_UP.to_string()])
        .args(["--num-requests", &MEASURED.to_string()])
        .arg("--output-dir")
        .arg(results)
        .env("NANO_PROFILER_DIR", traces));
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("written");
    serde_json::from_str(&text).expect("JSON")
}

/// The trace ids of the measured requests.
fn measured(results: &Path) -> Vec<String> {
    let text = fs::read_to_string(results.join("records.jsonl")).expect("written");
    let ids = text.lines().map(|line| {
        let record: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(record["outcome"], "complete", "{line}");
        record["trace_id"].as_str().expect("an id").to_owned()
    });
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    ids
}

fn trace_id(request: &TimelineSlice) -> String {
    let parent = request.arg("traceparent").and_then(|arg| arg.text());
    let id = parent.and_then(|parent| parent.split('-').nth(1));
    id.expect("a traceparent").to_owned()
}

fn by_trace_id(report: &Report, event: Event) -> BTreeMap<String, &TimelineSlice> {
    let slices = report.timeline.slices_of(event);
    let by_id: BTreeMap<_, _> = slices.map(|(_, slice)| (trace_id(slice), slice)).collect();
    assert_eq!(by_id.len(), report.timeline.slices_of(event).count());
    by_id
}

/// Nanoseconds by which CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC, as a trace
/// tells.
fn boottime_ahead(file: &Path) -> u64 {
    let mut packets = Source::File(file.to_owned()).packets().expect("readable");
    while let Some(packet) = packets.next_packet().expect("readable") {
        if let Some(Data::ClockSnapshot(snapshot)) = packet.content.data {
            let read = |id: BuiltinClock| {
                let mut clocks = snapshot.clocks.iter();
                let clock = clocks.find(|clock| clock.clock_id == Some(id as u32));
                clock.and_then(|clock| clock.timestamp).expect("told")
            };
            return read(BuiltinClock::Boottime) - read(BuiltinClock::Monotonic);
        }
    }
    panic!("no clocks in {}", file.display());
}

#[test]
fn the_trace_holds_what_was_measured_and_one_timeline_shows_both_sides_of_it() {
    let temp = tempfile::tempdir().expect("temporary directory");
    let traces = temp.path().join("traces");
    let server = manual(tiny(), &traces).start();
    let mut begins = Vec::new();
    for attempt in 1..=ATTEMPTS {
        let results = temp.path().join(format!("results-{attempt}"));
        bench(&server, &traces, &results);
        let session = wait_idle(&server)["session"].as_str().map(str::to_owned);
        let report = judge_session(&traces, &session.expect("a session"), 3);

        let measured = measured(&results);
        assert_eq!(measured.len(), MEASURED);
        let recorded: Vec<String> = by_trace_id(&report, Event::Request).into_keys().collect();
        assert_eq!(recorded, measured, "exactly the measured requests");
        let requests = report.timeline.slices_of(Event::Request);
        let clipped = requests.filter(|(_, request)| request.arg("clipped").is_some());
        assert_eq!(clipped.count(), 0);

        let profiling = json(&results.join("profiling.json"));
        assert_eq!(profiling["starts"][0]["status"], 200, "{profiling}");
        assert_eq!(profiling["stops"][0]["status"], 200, "{profiling}");
        both_sides(&traces, temp.path(), &measured, attempt == 1);

        let any_file = fs::read_dir(&traces).expect("traces").next();
        let ahead = boottime_ahead(&any_file.expect("a file").expect("an entry").path());
        let sent = profiling["starts"][0]["sent_at_ns"].as_u64();
        let sent = sent.expect("a moment") + ahead;
        let begin = |(_, recording): (usize, &TimelineSlice)| recording.begin - sent;
        let processes = report.timeline.slices_of(Event::TraceRecording);
        let last = processes.map(begin).max().expect("three processes");
        begins.push(last);
        if last <= BEGINS_WITHIN_NS {
            println!("every process records {last} ns after the start was sent");
            return;
        }
    }
    panic!("begins {begins:?} ns after the start was sent");
}

/// What the flows that begin at the client go through, by its trace ids.
fn ways_of_clients(report: &Report) -> BTreeMap<String, Vec<Option<Event>>> {
    let timeline = &report.timeline;
    let flows = timeline.flows.values().filter_map(|hops| {
        let Through::Begin(first) = hops.first()?.through else {
            return None;
        };
        let request = &timeline.slices[timeline.slices[first].parent?];
        (request.event == Some(Event::ClientRequest)).then(|| {
            let events = hops.iter().map(|hop| timeline.hop(hop).0);
            (trace_id(request), events.collect())
        })
    });
    flows.collect()
}

/// Server and client write into one directory, and `nano-trace merge` finds
/// what belongs together.
fn both_sides(traces: &Path, temp: &Path, measured: &[String], ask_perfetto: bool) {
    let merged = temp.join("merged.pftrace");
    let said = run(Command::new(built_programs().join("nano-trace"))
        .arg("merge")
        .arg(traces)
        .arg("--output")
        .arg(&merged));
    assert!(said.contains(": 4 files"), "{said}");
    let paths: [PathBuf; 1] = [merged];
    let report = judge(&paths, &OpenSlices::None);
    let (clients, servers) = (
        by_trace_id(&report, Event::ClientRequest),
        by_trace_id(&report, Event::Request),
    );
    assert_eq!(
        (clients.len(), servers.len()),
        (WARM_UP + MEASURED, MEASURED)
    );
    let ways = ways_of_clients(&report);
    for id in measured {
        let (client, server) = (clients[id], servers[id]);
        assert!(client.begin < server.begin, "{id} begins at the client");
        assert!(client.end > server.end, "{id} ends at the client");
        let way = [
            Event::ClientSend,
            Event::Request,
            Event::Streaming,
            Event::ClientToken,
        ];
        assert_eq!(ways[id], way.map(Some), "{id}");
    }
    if ask_perfetto {
        assert_shows(&paths, &report);
    }
}

/// What the two clients find is compared by who runs the script; here, that
/// both still find something.
#[test]
fn another_client_measures_what_nano_bench_measures() {
    let server = ServerOptions::real(&default_model()).start();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (rounds, requests, concurrency) = ("1", "2", "2");
    let said = run(python()
        .arg(root.join("scripts/compare-bench.py"))
        .args([server.base_url(), rounds, requests, concurrency])
        .env("NANO_BENCH", built_programs().join("nano-bench"))
        .env_remove("NANO_PROFILER_DIR"));
    for row in [
        "TTFT ms, p50",
        "TPOT ms, mean",
        "E2E ms, p90",
        "output tokens/s",
    ] {
        let numbers = said.lines().find_map(|line| line.strip_prefix(row));
        let numbers = numbers.unwrap_or_else(|| panic!("no {row}: {said}"));
        let medians = numbers
            .split_whitespace()
            .filter(|word| !word.starts_with('('));
        let medians: Vec<f64> = medians
            .map(|word| word.parse().expect("a number"))
            .collect();
        assert!(
            matches!(medians[..], [a, b] if a > 0.0 && b > 0.0),
            "{said}"
        );
    }
}
