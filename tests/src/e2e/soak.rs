//! Many requests, and nothing that grows: memory, descriptors and threads of
//! each process.
//!
//! The test is short; `scripts/soak` runs it long, by `NANO_SOAK_SMALL` and
//! `NANO_SOAK_LONG`, the numbers of small and of long requests.

use crate::metrics::wait_for_nobody;
use crate::procfs::{Found, Usage};
use crate::random::Random;
use crate::server::{ServerOptions, wait_for};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use ureq::Agent;

const PROGRAMS: [&str; 4] = ["nano-serve", "nano-frontend", "nano-core", "nano-worker"];

/// Clients at once, each with a connection that it keeps for a round.
const CLIENTS: usize = 16;

/// The load comes in so many equal parts; after each one the server is looked
/// at while nobody is in it.
const ROUNDS: usize = 15;

/// Rounds before everything has its size: caches, allocators, thread pools.
const WARM_UP: usize = 5;

/// Growth per request that is noise: a kept sequence, track or connection
/// would be more.
const FLAT_BYTES: f64 = 200.0;

/// Growth over a whole run that is noise, pages of an allocator.
const FLAT_TOTAL: f64 = (2 << 20) as f64;

/// One request of the load.
fn body(number: usize, is_long: bool) -> (&'static str, Value) {
    let mut random = Random::new(number as u64);
    let streams = number.is_multiple_of(2);
    if is_long {
        let length = random.within(200..400);
        let body = json!({
            "model": "tiny-llama",
            "prompt": random.prompt(length),
            "max_tokens": random.within(500..1000),
            "ignore_eos": true,
            "stream": streams,
        });
        return ("/v1/completions", body);
    }
    let max_tokens = random.within(1..12);
    if number % 4 < 2 {
        let length = random.within(1..40);
        let body = json!({
            "model": "tiny-llama",
            "prompt": random.prompt(length),
            "max_tokens": max_tokens,
            "logprobs": number % 3,
            "stream": streams,
        });
        return ("/v1/completions", body);
    }
    let body = json!({
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": format!("What is {number}?")}],
        "max_tokens": max_tokens,
        "temperature": 0.8,
        "stream": streams,
    });
    ("/v1/chat/completions", body)
}

/// Sends the requests of one round, by clients that keep their connections,
/// and reads each answer to its end.
fn round(base_url: &str, requests: &[(usize, bool)]) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let config = Agent::config_builder().proxy(None);
                let agent = config.http_status_as_error(false).build().new_agent();
                while let Some(&(number, is_long)) =
                    requests.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let (path, body) = body(number, is_long);
                    let mut response = agent
                        .post(format!("{base_url}{path}"))
                        .header("Content-Type", "application/json")
                        .send(body.to_string())
                        .expect("answered");
                    let text = response.body_mut().read_to_string().expect("a whole body");
                    assert_eq!(response.status(), 200, "{text}");
                    let whole = text.contains("\"finish_reason\":\"");
                    assert!(whole, "request {number} has no end: {text}");
                }
            });
        }
    });
}

/// What a process holds after each round.
struct History {
    process: Found,
    usages: Vec<Usage>,
}

impl History {
    fn look(&mut self) {
        let usage = self.process.usage();
        self.usages.push(usage);
    }

    /// Bytes of resident memory that a request adds: the slope of the line
    /// nearest to all rounds after the warm-up (least squares).
    fn bytes_per_request(&self, requests_per_round: f64) -> f64 {
        let usages = &self.usages[WARM_UP..];
        let n = usages.len() as f64;
        let mean_x = (n - 1.0) / 2.0;
        let mean_y = usages
            .iter()
            .map(|usage| usage.resident as f64)
            .sum::<f64>()
            / n;
        let (mut xy, mut xx) = (0.0, 0.0);
        for (x, usage) in usages.iter().enumerate() {
            let x = x as f64 - mean_x;
            xy += x * (usage.resident as f64 - mean_y);
            xx += x * x;
        }
        xy / xx / requests_per_round
    }

    fn print(&self, requests_per_round: usize) {
        println!("{}", self.process.name);
        println!("  requests  resident KiB  descriptors  threads");
        for (round, usage) in self.usages.iter().enumerate() {
            println!(
                "{:>10} {:>13} {:>12} {:>8}",
                (round + 1) * requests_per_round,
                usage.resident >> 10,
                usage.descriptors,
                usage.threads
            );
        }
        let slope = self.bytes_per_request(requests_per_round as f64);
        println!("  slope after warm-up: {slope:+.1} bytes of resident memory a request");
    }

    fn assert_flat(&self, requests_per_round: usize) {
        let name = &self.process.name;
        let slope = self.bytes_per_request(requests_per_round as f64);
        let requests = (requests_per_round * (ROUNDS - WARM_UP)) as f64;
        assert!(
            slope < FLAT_BYTES.max(FLAT_TOTAL / requests),
            "{name}: memory grows by {slope:.0} bytes a request"
        );
        let (before, after) = self.usages.split_at(WARM_UP);
        let most = |usages: &[Usage], of: fn(&Usage) -> usize| usages.iter().map(of).max();
        let descriptors = |usage: &Usage| usage.descriptors;
        let threads = |usage: &Usage| usage.threads;
        assert!(
            most(after, descriptors) <= most(before, descriptors),
            "{name}: descriptors"
        );
        assert!(
            most(after, threads) <= most(before, threads),
            "{name}: threads"
        );
    }
}

fn number_from_env(name: &str, default: usize) -> usize {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn nothing_grows_over_many_requests() {
    let small = number_from_env("NANO_SOAK_SMALL", 3000);
    let long = number_from_env("NANO_SOAK_LONG", 30);
    let server = ServerOptions::mock(0)
        .args(&["--log-level", "warn"])
        .start();
    let mut histories = PROGRAMS.map(|name| History {
        process: server.process(name),
        usages: Vec::new(),
    });
    let idle = histories[1].process.usage().descriptors;
    // Long ones are spread evenly among the small ones.
    let total = small + long;
    let load: Vec<(usize, bool)> = (0..total)
        .map(|number| (number, number * long / total != (number + 1) * long / total))
        .collect();
    let per_round = total / ROUNDS;
    assert!(per_round > 0, "more requests than {ROUNDS} are needed");
    let begun = Instant::now();
    for requests in load.chunks(per_round).take(ROUNDS) {
        round(server.base_url(), requests);
        wait_for_nobody(&server);
        wait_for("end of all connections", Duration::from_secs(5), || {
            (histories[1].process.usage().descriptors <= idle).then_some(())
        });
        histories.iter_mut().for_each(History::look);
    }
    println!(
        "{total} requests, {long} of them long, in {:.1?}",
        begun.elapsed()
    );
    histories
        .iter()
        .for_each(|history| history.print(per_round));
    histories
        .iter()
        .for_each(|history| history.assert_flat(per_round));
}
