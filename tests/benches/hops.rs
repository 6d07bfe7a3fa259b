//! What lies between HTTP and the model costs: `cargo bench --workspace --bench hops`.
//! Exits with 1 when a bar is missed.
//!
//! All processes and sockets are the real ones, but the worker computes nothing
//! and answers at once, so that what is left is the machinery: HTTP, IPC,
//! scheduling, detokenizing, SSE. The client is in this process, keeps its
//! connection, and does as little as a client can.
//!
//! - one stream, 10,000 tokens: from the request's first byte until the first
//!   event is read, and from event to event;
//! - 1 to 64 streams: CPU time of the core's process a step, which must grow no
//!   faster than the number of streams;
//! - one stream again, with every process recording: the traces of this run,
//!   which lie where the last line says, show where the time goes.

use nano_tests::harness::metrics::Metrics;
use nano_tests::harness::server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// From the request to its first event, the median.
const FIRST_EVENT_BAR: Duration = Duration::from_micros(300);
/// From event to event, the median.
const FURTHER_TOKEN_BAR: Duration = Duration::from_micros(60);
/// The core's CPU time for a step of 64 streams.
const STEP_BAR: Duration = Duration::from_micros(100);
/// By how much a step of 64 streams may cost more than the line through the
/// costs of 16 and 32 streams says.
const LINEAR_WITHIN: f64 = 1.25;

fn main() -> ExitCode {
    // `cargo test --benches` only tries out that everything runs.
    let measured = std::env::args().any(|arg| arg == "--bench");
    let (requests, tokens) = if measured { (100, 100) } else { (3, 10) };
    let mut bars = Vec::new();

    let server = ServerOptions::mock(0).start();
    let one = Latencies::of(&server, requests, tokens);
    println!("one stream, {} tokens\n{one}", requests * tokens);
    bars.push(("first event, p50", one.first.p50() <= FIRST_EVENT_BAR));
    bars.push(("further token, p50", one.further.p50() <= FURTHER_TOKEN_BAR));

    println!("CPU time of the core a step");
    let each = if measured { 2_000 } else { 20 };
    let costs = [1, 16, 32, 64].map(|streams| {
        let cost = core_cpu_per_step(&server, streams, each);
        println!("  {streams:>3} streams  {:>8.1} us", us(cost));
        cost
    });
    let [_, of_16, of_32, of_64] = costs.map(us);
    let line = of_32 + (of_32 - of_16) * 2.0;
    println!("  64 streams by the line through 16 and 32: {line:.1} us");
    bars.push(("core's step of 64 streams", costs[3] <= STEP_BAR));
    bars.push(("grows linearly", of_64 <= line * LINEAR_WITHIN));
    drop(server);

    let traces = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hops-traces");
    // From an earlier run; there may have been none.
    let _ = fs::remove_dir_all(&traces);
    let mut server = ServerOptions::mock(0)
        .env("NANO_PROFILER_DIR", &traces.to_string_lossy())
        .start();
    let recorded = Latencies::of(&server, requests, tokens);
    println!("one stream, every process records\n{recorded}");
    // An ordered end, so that the files hold every request to its end.
    server.signal("nano-serve", Signal::SIGTERM);
    server.wait_exit(Duration::from_secs(20));
    println!("traces: {}", traces.display());

    let mut met = true;
    for (bar, holds) in bars {
        println!("{} {bar}", if holds { "met:   " } else { "MISSED:" });
        met &= holds;
    }
    // Times of a few unmeasured requests judge nothing.
    ExitCode::from(u8::from(measured && !met))
}

/// Times in order of size.
struct Times(Vec<Duration>);

impl Times {
    fn new(mut times: Vec<Duration>) -> Times {
        times.sort();
        Times(times)
    }

    /// The time that `percent` of all do not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0[rank - 1]
    }

    fn p50(&self) -> Duration {
        self.percentile(50)
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [p50, p99] = [50, 99].map(|percent| us(self.percentile(percent)));
        write!(
            f,
            "p50 {p50:>8.1} us   p99 {p99:>8.1} us   of {}",
            self.0.len()
        )
    }
}

/// What the client of one stream waits for.
struct Latencies {
    first: Times,
    further: Times,
}

impl Latencies {
    fn of(server: &Server, requests: usize, tokens: usize) -> Latencies {
        let mut client = Client::connect(server.base_url());
        // The first request warms every process.
        read_stream(&mut client, tokens);
        let (mut first, mut further) = (Vec::new(), Vec::new());
        for _ in 0..requests {
            let sent = Instant::now();
            let events = read_stream(&mut client, tokens);
            first.push(events[0].at - sent);
            for pair in events.windows(2) {
                // An event of several tokens is several tokens' share of the time.
                let each = (pair[1].at - pair[0].at) / pair[1].num_tokens;
                further.extend((0..pair[1].num_tokens).map(|_| each));
            }
        }
        Latencies {
            first: Times::new(first),
            further: Times::new(further),
        }
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "  first event    {}", self.first)?;
        write!(f, "  further token  {}", self.further)
    }
}

/// One event with tokens, read.
struct TokenEvent {
    at: Instant,
    num_tokens: u32,
}

/// A connection that is kept for one request after the other.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(base_url: &str) -> Client {
        let address = base_url.trim_start_matches("http://");
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("TCP");
        Client(BufReader::new(stream))
    }

    /// Sends a request; the lines of the chunked response, head and sizes of
    /// chunks included, each with the time at which it was read.
    fn send(&mut self, path: &str, body: &str) -> Vec<(Instant, String)> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let stream = self.0.get_mut();
        stream.write_all(request.as_bytes()).expect("it is taken");
        let mut lines: Vec<(Instant, String)> = Vec::new();
        // The last chunk is an empty one, and an empty line ends it.
        while !matches!(&lines[..], [.., (_, last), (_, end)] if last == "0\r\n" && end == "\r\n") {
            let mut line = String::new();
            let read = self.0.read_line(&mut line).expect("a whole response");
            assert!(read > 0, "cut after {:?}", lines.last());
            lines.push((Instant::now(), line));
        }
        lines
    }
}

/// Streams one completion; all its tokens must have come.
fn read_stream(client: &mut Client, tokens: usize) -> Vec<TokenEvent> {
    let body = json!({
        "model": "tiny-llama", "prompt": [1, 2, 3, 4, 5], "max_tokens": tokens,
        "ignore_eos": true, "temperature": 0.0, "stream": true, "return_token_ids": true,
    });
    let lines = client.send("/v1/completions", &body.to_string());
    // Judged afterwards, so that parsing delays no reading.
    let events: Vec<TokenEvent> = lines
        .into_iter()
        .filter_map(|(at, line)| {
            let chunk: Value = serde_json::from_str(line.strip_prefix("data:")?).ok()?;
            let ids = chunk["choices"][0]["token_ids"].as_array()?.len() as u32;
            (ids > 0).then_some(TokenEvent {
                at,
                num_tokens: ids,
            })
        })
        .collect();
    let received: u32 = events.iter().map(|event| event.num_tokens).sum();
    assert_eq!(received as usize, tokens, "every token arrives");
    events
}

/// CPU time of the core's process divided by its steps, while so many streams
/// of `tokens` tokens run at once.
fn core_cpu_per_step(server: &Server, streams: usize, tokens: usize) -> Duration {
    let core = server.process("nano-core").pid.as_raw();
    let base_url = server.base_url();
    let before = (cpu_time(core), steps(server));
    thread::scope(|scope| {
        for _ in 0..streams {
            scope.spawn(|| read_stream(&mut Client::connect(base_url), tokens));
        }
    });
    let after = (cpu_time(core), steps(server));
    (after.0 - before.0) / (after.1 - before.1).max(1)
}

/// What all threads of a process have run, by the scheduler's own account
/// (proc(5), `/proc/pid/schedstat`, in nanoseconds).
fn cpu_time(pid: i32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a living process");
    tasks
        .map(|task| {
            let path = task.expect("a thread").path().join("schedstat");
            let text = fs::read_to_string(path).expect("a kernel with schedstats");
            let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
            Duration::from_nanos(ns.expect("a number"))
        })
        .sum()
}

/// The engine's steps so far.
fn steps(server: &Server) -> u32 {
    let [steps] = Metrics::read(server).values("nano:engine_steps_total", "")[..] else {
        panic!("one counter of steps");
    };
    steps as u32
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
