//! The real server under load, recorded: no flow runs backwards in time.
//!
//! A few seconds of it in every test run; `scripts/soak-trace` makes it long.

use crate::client::{Stream, StreamEvent, post};
use crate::programs::default_model;
use crate::server::ServerOptions;
use crate::traces::{end, files, judge};
use nano_trace::Event;
use nano_trace::check::{OpenSlices, Rule};
use nano_trace::timeline::{Hop, Through, Timeline};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the load lasts.
const SECONDS: &str = "NANO_SOAK_SECONDS";
const CLIENTS: u64 = 6;

#[test]
fn under_load_no_flow_runs_backwards() {
    let seconds = std::env::var(SECONDS).map_or(3, |text| text.parse().expect("seconds"));
    let load = Duration::from_secs(seconds);
    let temp = tempfile::tempdir().expect("temporary directory");
    let mut server = ServerOptions::real(&default_model())
        .args(&["--max-model-len", "1024", "--served-model-name", "any"])
        .env("NANO_PROFILER_DIR", temp.path().to_str().expect("UTF-8"))
        // The cap must not end it early.
        .env("NANO_PROFILER_MAX_MB", "16384")
        .start();
    let base_url = server.base_url();
    let until = Instant::now() + load;
    let asked: u64 = std::thread::scope(|scope| {
        let clients =
            (0..CLIENTS).map(|client| scope.spawn(move || keep_asking(base_url, client, until)));
        let clients: Vec<_> = clients.collect();
        clients
            .into_iter()
            .map(|c| c.join().expect("no panic"))
            .sum()
    });
    end(&mut server);

    let files = files(temp.path());
    let paths: Vec<&PathBuf> = files.iter().map(|(_, path)| path).collect();
    let bytes: u64 = paths
        .iter()
        .map(|p| p.metadata().expect("a file").len())
        .sum();
    let report = judge(&paths, &OpenSlices::None);
    let timeline = &report.timeline;
    let (first, last) = timeline.interval().expect("events");
    let recorded = Duration::from_nanos(last - first);
    let events = timeline.slices.len() + timeline.instants.len() + timeline.counters.len();
    let requests = timeline.slices_of(Event::Request).count() as u64;
    let backwards = report
        .violations
        .counts()
        .get(&Rule::FlowBackwards)
        .copied();
    let to_worker = gaps(timeline, Event::Dispatch, Event::WorkerStep);
    let to_core = gaps(timeline, Event::WorkerSend, Event::Update);
    println!("load               {seconds} s, {CLIENTS} clients, {asked} requests");
    println!("recorded           {:.1} s", recorded.as_secs_f64());
    println!("requests           {requests}");
    println!("events             {events}");
    println!("records dropped    {}", timeline.dropped);
    println!(
        "bytes              {bytes}, {} a second",
        bytes / recorded.as_secs().max(1)
    );
    println!("flows              {}", timeline.flows.len());
    println!("flows backwards    {}", backwards.unwrap_or(0));
    println!("dispatch to worker {to_worker}");
    println!("worker to core     {to_core}");

    report.assert_clean();
    assert!(recorded >= load, "the recording ended after {recorded:?}");
    assert_eq!(timeline.dropped, 0);
    assert_eq!(requests, asked);
    // Both ways take time. A process whose clock is ahead would send before
    // the other one hears of it on one of them.
    assert!(to_worker.count > 10 && to_worker.least > 0, "{to_worker}");
    assert!(to_core.count > 10 && to_core.least > 0, "{to_core}");
}

/// Requests of many kinds, one after another; how many.
fn keep_asking(base_url: &str, client: u64, until: Instant) -> u64 {
    let mut asked = 0;
    while Instant::now() < until {
        let body = body(client, asked);
        match asked % 4 {
            0 => {
                let url = format!("{base_url}/v1/completions");
                let (status, answer) = post(&url, &body).expect("answered");
                assert_eq!(status, 200, "{answer}");
            }
            _ => {
                let stream = Stream::open(base_url, "/v1/completions", body);
                let events = stream.rest(Instant::now() + Duration::from_secs(120));
                assert!(events.contains(&StreamEvent::Done), "{events:?}");
            }
        }
        asked += 1;
    }
    asked
}

fn body(client: u64, number: u64) -> Value {
    let length = 1 + (client * 37 + number * 61) % 300;
    json!({
        "model": "any",
        "prompt": (0..length).map(|i| 100 + (client + number + i) * 31 % 40_000).collect::<Vec<_>>(),
        "max_tokens": 1 + (client * 13 + number * 7) % 60,
        "temperature": if number.is_multiple_of(2) { 0.0 } else { 0.8 },
        "seed": number,
        "ignore_eos": true,
    })
}

/// Times from one end of a step's flow to the other.
struct Gaps {
    count: usize,
    /// Nanoseconds; less than nothing if an effect comes before its cause.
    least: i64,
    median: i64,
}

impl std::fmt::Display for Gaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Gaps {
            count,
            least,
            median,
        } = self;
        write!(
            f,
            "{count} flows, {least} ns at least, {median} ns in the middle"
        )
    }
}

fn gaps(timeline: &Timeline, from: Event, to: Event) -> Gaps {
    let time = |hops: &[Hop], event: Event| {
        let hop = hops.iter().find(|hop| timeline.hop(hop).0 == Some(event));
        hop.filter(|hop| matches!(hop.through, Through::Begin(_)))
            .map(|hop| hop.time as i64)
    };
    let mut gaps: Vec<i64> = timeline
        .flows
        .values()
        .filter_map(|hops| Some(time(hops, to)? - time(hops, from)?))
        .collect();
    gaps.sort_unstable();
    Gaps {
        count: gaps.len(),
        least: gaps.first().copied().unwrap_or(0),
        median: gaps.get(gaps.len() / 2).copied().unwrap_or(0),
    }
}
