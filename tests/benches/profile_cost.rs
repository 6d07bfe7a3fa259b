//! What recording costs a loaded server: `cargo bench --workspace --bench
//! profile_cost [-- [--flight | --samples 99] --seconds 1800]`. Exits with 1 when a
//! bar is missed.
//!
//! One long load on the default model, by a server of four processes; recording
//! (default detail) goes on and off every two seconds, with stack samples every
//! four. Whenever it does, the rate of tokens of the half before is compared with
//! that of the half after, so that changes of the machine that are slower than that
//! cancel out: a machine that is shared has far more of them than of quick ones. Both
//! toggles of a recording are one comparison, since what lies between them is in
//! both. The ratio is the geometric mean, which calls x and 1/x equally far from 1.
//! It ends when its 95 % interval is narrow enough, or the time is up.
//!
//! Printed too: the longest time between two tokens of a stream, of those that a
//! start, a recording or a stop lies between, and of the others.
//!
//! `--flight`: what the flight recorder costs, which a server has or has not from
//! its start on. So there are two servers, one with it and one that records
//! nothing, each with that load; every two seconds one is stopped (SIGSTOP) and
//! the other one goes on. Two servers differ, by where their memory came to lie,
//! from start to start: after some comparisons another pair is started, in the
//! other order, and the mean of a pair is one observation.
//!
//! The first recording is printed and not counted: what it reads of the programs,
//! once in a server's life, is known to the others.
//!
//! The recorder's own CPU time is that of its threads, and of the events at the
//! cost that the bench `recorder` finds. With samples, the threads' part is what
//! unwinding takes; it has no bar of its own.

use nano_tests::harness::client::post;
use nano_tests::harness::procfs::Found;
use nano_tests::harness::programs::{default_model, golden};
use nano_tests::harness::server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const STREAMS: u64 = 8;
/// Tokens of a request.
const LENGTH: u64 = 160;
/// Of an event that is recorded: what `--bench recorder` measures, and some more.
const NS_PER_EVENT: f64 = 40.0;
/// Before the first comparison.
const WARM_UP: Duration = Duration::from_secs(5);
/// Of one pair of servers.
const COMPARISONS_OF_PAIR: usize = 12;

/// What is recorded, and what it may cost.
struct Kind {
    /// Of a session.
    wishes: Value,
    /// On and off.
    interval: Duration,
    /// The 95 % interval of the ratio is to be no wider to either side.
    narrow: f64,
    /// Its lower end.
    ratio_bar: f64,
    /// The recorder's share of the processes' CPU time.
    cpu_bar: Option<f64>,
}

impl Kind {
    fn events() -> Kind {
        Kind {
            wishes: json!({}),
            interval: Duration::from_secs(2),
            narrow: 0.01,
            ratio_bar: 0.98,
            cpu_bar: Some(0.01),
        }
    }

    fn samples(hz: u64) -> Kind {
        Kind {
            wishes: json!({"sample_hz": hz}),
            interval: Duration::from_secs(4),
            narrow: 0.01,
            ratio_bar: 0.97,
            cpu_bar: None,
        }
    }
}

/// One token of a stream came.
type Token = (u64, Instant);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let measured = args.iter().any(|arg| arg == "--bench");
    let number = |flag: &str| -> Option<u64> {
        let at = args.iter().position(|arg| arg == flag)?;
        Some(args.get(at + 1)?.parse().expect("a number"))
    };
    let kind = number("--samples").map_or_else(Kind::events, Kind::samples);
    let seconds = number("--seconds");
    let limit = Duration::from_secs(seconds.unwrap_or(if measured { 1800 } else { 12 }));
    let model = match measured {
        true => default_model(),
        false => golden("models/tiny-llama"),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let in_mode = |mode| {
        ServerOptions::real(&model)
            .env("NANO_PROFILER_DIR", dir.path().to_str().expect("UTF-8"))
            .env("NANO_PROFILER_MODE", mode)
            .start()
    };
    let outcome = if args.iter().any(|arg| arg == "--flight") {
        let plain = || ServerOptions::real(&model).start();
        compare_flight(|| in_mode("flight"), plain, &kind, limit)
    } else {
        compare(&in_mode("manual"), &kind, limit)
    };
    outcome.print(&kind);
    match outcome.holds(&kind) || !measured {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Tokens a second in the first and the second half of an interval.
type Halves = [f64; 2];

/// What was found.
#[derive(Default)]
struct Outcome {
    /// Observations: of a recording, or of a pair of servers, the logarithm of the
    /// rate by that without.
    log_ratios: Vec<f64>,
    comparisons: u64,
    /// Rates while recording, and of the others.
    rates: [Vec<f64>; 2],
    events: u64,
    drops: u64,
    recorder: Cpu,
    /// The longest times between two tokens: while recorded or told to, and not.
    gaps: [Duration; 2],
}

/// CPU time of intervals in which was recorded, in seconds.
#[derive(Default)]
struct Cpu {
    recorder_threads: f64,
    processes: f64,
}

/// With its 95 % interval.
struct Ratio {
    mean: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    /// Half of its width.
    fn half(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

impl Outcome {
    /// The ratio, and the ends of its 95 % interval.
    fn ratio(&self) -> Ratio {
        let (mean, half) = interval(&self.log_ratios);
        let [mean, low, high] = [mean, mean - half, mean + half].map(f64::exp);
        Ratio { mean, low, high }
    }

    /// What was recorded in lies between two intervals in which was not. Gives the
    /// logarithm of their ratio.
    fn compare(&mut self, before: Halves, on: Halves, after: Halves) -> f64 {
        let [begun, ended] = [on[0] / before[1], on[1] / after[0]];
        self.comparisons += 1;
        self.rates[0].extend(on);
        self.rates[1].extend(after);
        println!(
            "{:.1} {:.1} recorded, then {:.1} {:.1} not",
            on[0], on[1], after[0], after[1],
        );
        f64::midpoint(begun.ln(), ended.ln())
    }

    fn observe(&mut self, log_ratio: f64) {
        self.log_ratios.push(log_ratio);
        let ratio = self.ratio();
        println!("so far {:.4} +- {:.4}", ratio.mean, ratio.half());
    }

    fn is_narrow(&self, kind: &Kind) -> bool {
        self.log_ratios.len() >= 20 && self.ratio().half() < kind.narrow * 0.9
    }

    fn cpu_share(&self) -> f64 {
        let events = self.events as f64 * NS_PER_EVENT / 1e9;
        (self.recorder.recorder_threads + events) / self.recorder.processes
    }

    fn holds(&self, kind: &Kind) -> bool {
        let ratio = self.ratio();
        let is_cheap = kind.cpu_bar.is_none_or(|bar| self.cpu_share() <= bar);
        ratio.half() < kind.narrow && ratio.low >= kind.ratio_bar && is_cheap
    }

    fn print(&self, kind: &Kind) {
        let ratio = self.ratio();
        let [on, off] = [&self.rates[0], &self.rates[1]]
            .map(|rates| rates.iter().sum::<f64>() / rates.len() as f64);
        let met = |holds| if holds { "met:   " } else { "MISSED:" };
        println!(
            "{STREAMS} streams, {} comparisons, {} observations: {on:.1} tokens/s recorded, {off:.1} not; {} events, {} dropped",
            self.comparisons,
            self.log_ratios.len(),
            self.events,
            self.drops
        );
        println!(
            "ratio {:.4}, 95 % between {:.4} and {:.4}",
            ratio.mean, ratio.low, ratio.high
        );
        println!(
            "{} the interval is narrower than +-{}",
            met(ratio.half() < kind.narrow),
            kind.narrow
        );
        println!(
            "{} its lower end is at least {}",
            met(ratio.low >= kind.ratio_bar),
            kind.ratio_bar
        );
        let [on, off] = self.gaps;
        println!("longest time between two tokens: {on:.1?} recorded, {off:.1?} not");
        let share = self.cpu_share();
        match kind.cpu_bar {
            Some(bar) => print!(
                "{} the recorder takes at most {} % of the CPU time: ",
                met(share <= bar),
                bar * 100.0
            ),
            None => print!("the recorder takes of the CPU time: "),
        }
        println!(
            "{:.2} % ({:.3} s of its threads, {:.3} s of events at {NS_PER_EVENT} ns, of {:.1} s)",
            share * 100.0,
            self.recorder.recorder_threads,
            self.events as f64 * NS_PER_EVENT / 1e9,
            self.recorder.processes
        );
    }
}

/// Mean and half the width of its 95 % interval, by Student's distribution.
fn interval(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if n < 3.0 {
        return (mean, f64::INFINITY);
    }
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (n - 1.0);
    // The quantile of the normal distribution, and the first two terms of
    // Cornish and Fisher's expansion.
    let (z, freedom) = (1.959_964_f64, n - 1.0);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let t = z + first / freedom + second / freedom.powi(2);
    (mean, t * (variance / n).sqrt())
}

fn compare(server: &Server, kind: &Kind, limit: Duration) -> Outcome {
    let is_over = AtomicBool::new(false);
    let (token, tokens) = channel();
    let address = server.base_url().strip_prefix("http://").expect("a URL");
    thread::scope(|scope| {
        for stream in 0..STREAMS {
            let (token, is_over) = (token.clone(), &is_over);
            scope.spawn(move || load(address, stream, &token, is_over));
        }
        let outcome = toggle(server, kind, limit, &tokens);
        is_over.store(true, Ordering::Relaxed);
        outcome
    })
}

fn toggle(server: &Server, kind: &Kind, limit: Duration, tokens: &Receiver<Token>) -> Outcome {
    thread::sleep(WARM_UP.min(limit / 4));
    let processes = ["nano-frontend", "nano-core", "nano-worker"].map(|name| server.process(name));
    let call = |path: &str, body: &Value| -> Value {
        let url = format!("{}{path}", server.base_url());
        let (status, answer) = post(&url, body).expect("answered");
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let begun = Instant::now();
    let mut streams = Streams::new(tokens, kind.interval);
    // What a start and a stop do belongs to the recording.
    let nothing_done =
        |streams: &mut Streams<'_>| [(); 2].map(|()| streams.rate(false, || (), || ()));
    let mut before = nothing_done(&mut streams);
    let mut record = |streams: &mut Streams<'_>, outcome: &mut Outcome| -> f64 {
        let cpu_before = Cpu::of(&processes);
        let start = || drop(call("/start_profile", &kind.wishes));
        let first = streams.rate(true, start, || ());
        let (mut cpu_after, mut ended) = (Cpu::default(), Value::Null);
        let stop = || {
            // The sampler's threads end with it.
            cpu_after = Cpu::of(&processes);
            ended = call("/stop_profile?wait=true", &json!({}));
        };
        let on = [first, streams.rate(true, || (), stop)];
        outcome.recorder.add(&cpu_before, &cpu_after);
        for process in ended["processes"].as_array().expect("processes") {
            outcome.events += process["events"].as_u64().expect("a number");
            outcome.drops += process["drops"].as_u64().expect("a number");
        }
        let off = nothing_done(streams);
        outcome.compare(std::mem::replace(&mut before, off), on, off)
    };
    let first = record(&mut streams, &mut Outcome::default());
    println!("the first one {:.4}, not counted", first.exp());
    let mut outcome = Outcome::default();
    while begun.elapsed() < limit && !outcome.is_narrow(kind) {
        let log_ratio = record(&mut streams, &mut outcome);
        outcome.observe(log_ratio);
    }
    outcome.gaps = streams.gaps;
    outcome
}

/// Pairs of servers, of which one keeps its last seconds, and the other one
/// records nothing.
fn compare_flight(
    start_with: impl Fn() -> Server,
    start_without: impl Fn() -> Server,
    kind: &Kind,
    limit: Duration,
) -> Outcome {
    let mut outcome = Outcome::default();
    let end = Instant::now() + limit;
    let mut is_first = true;
    while Instant::now() < end && !outcome.is_narrow(kind) {
        let (with, without) = if is_first {
            let with = start_with();
            (with, start_without())
        } else {
            let without = start_without();
            (start_with(), without)
        };
        is_first = !is_first;
        compare_pair(&with, &without, kind, end, &mut outcome);
    }
    outcome
}

fn compare_pair(with: &Server, without: &Server, kind: &Kind, end: Instant, outcome: &mut Outcome) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let [with, without] = [with, without].map(|server| {
            let (token, tokens) = channel();
            let address = server.base_url().strip_prefix("http://").expect("a URL");
            for stream in 0..STREAMS {
                let (token, is_over) = (token.clone(), &is_over);
                scope.spawn(move || load(address, stream, &token, is_over));
            }
            let interval = kind.interval;
            Loaded {
                server,
                tokens,
                interval,
            }
        });
        alternate(&with, &without, end, outcome);
        is_over.store(true, Ordering::Relaxed);
        with.signal(Signal::SIGCONT);
        without.signal(Signal::SIGCONT);
    });
}

/// A server with streams.
struct Loaded<'a> {
    server: &'a Server,
    tokens: Receiver<Token>,
    /// It goes on for so long.
    interval: Duration,
}

impl Loaded<'_> {
    fn signal(&self, signal: Signal) {
        for name in ["nano-frontend", "nano-core", "nano-worker", "nano-serve"] {
            self.server.signal(name, signal);
        }
    }

    /// Lets it go on for an interval; it is stopped before and afterwards.
    fn rates(&self, gap: &mut Duration) -> Halves {
        // Of the time before.
        while self.tokens.try_recv().is_ok() {}
        self.signal(Signal::SIGCONT);
        let mut streams = Streams::new(&self.tokens, self.interval);
        let rates = [(); 2].map(|()| streams.rate(true, || (), || ()));
        self.signal(Signal::SIGSTOP);
        *gap = streams.gaps[0].max(*gap);
        rates
    }
}

fn alternate(with: &Loaded<'_>, without: &Loaded<'_>, end: Instant, outcome: &mut Outcome) {
    thread::sleep(WARM_UP.min(end.saturating_duration_since(Instant::now()) / 4));
    let programs = ["nano-frontend", "nano-core", "nano-worker"];
    let processes = programs.map(|name| with.server.process(name));
    with.signal(Signal::SIGSTOP);
    without.signal(Signal::SIGSTOP);
    let mut log_ratios = Vec::new();
    let mut before = without.rates(&mut outcome.gaps[1]);
    while log_ratios.len() < COMPARISONS_OF_PAIR && Instant::now() < end {
        let cpu_before = Cpu::of(&processes);
        let on = with.rates(&mut outcome.gaps[0]);
        outcome.recorder.add(&cpu_before, &Cpu::of(&processes));
        let off = without.rates(&mut outcome.gaps[1]);
        log_ratios.push(outcome.compare(before, on, off));
        before = off;
    }
    // So much is recorded in each interval.
    with.rates(&mut outcome.gaps[0]);
    with.signal(Signal::SIGCONT);
    let url = format!("{}/profile/dump", with.server.base_url());
    let (status, dumped) =
        post(&url, &json!({"seconds": with.interval.as_secs()})).expect("answered");
    assert_eq!(status, 200, "{dumped}");
    for process in dumped["processes"].as_array().expect("processes") {
        let intervals = log_ratios.len() as u64;
        outcome.events += intervals * process["events"].as_u64().expect("a number");
        outcome.drops += process["drops"].as_u64().expect("a number");
    }
    if !log_ratios.is_empty() {
        outcome.observe(log_ratios.iter().sum::<f64>() / log_ratios.len() as f64);
    }
}

/// All streams' tokens, as they come.
struct Streams<'a> {
    tokens: &'a Receiver<Token>,
    interval: Duration,
    /// When each stream's last one came.
    last: [Option<Instant>; STREAMS as usize],
    /// See [`Outcome`].
    gaps: [Duration; 2],
}

impl Streams<'_> {
    fn new(tokens: &Receiver<Token>, interval: Duration) -> Streams<'_> {
        Streams {
            tokens,
            interval,
            last: [None; STREAMS as usize],
            gaps: [Duration::ZERO; 2],
        }
    }

    fn count(&mut self, (stream, time): Token, is_recorded: bool) {
        if let Some(last) = self.last[stream as usize].replace(time) {
            let gap = &mut self.gaps[usize::from(!is_recorded)];
            *gap = time.duration_since(last).max(*gap);
        }
    }

    /// Counts what has come.
    fn catch_up(&mut self, is_recorded: bool) {
        while let Ok(token) = self.tokens.try_recv() {
            self.count(token, is_recorded);
        }
    }

    /// Tokens a second of all streams in half an interval from now on, and while
    /// something is done at its begin and its end: of each stream from its last
    /// token before (the first one, if none is known) to its last one in it, so that
    /// a step more or less does not count.
    fn rate(&mut self, is_recorded: bool, first: impl FnOnce(), last: impl FnOnce()) -> f64 {
        self.catch_up(is_recorded);
        let mut spans = self.last.map(|last| (0_u64, last));
        let mut take = |streams: &mut Self, token: Token| {
            let (count, from) = &mut spans[token.0 as usize];
            match from {
                None => *from = Some(token.1),
                Some(_) => *count += 1,
            }
            streams.count(token, is_recorded);
        };
        let end = Instant::now() + self.interval / 2;
        first();
        while let Ok(token) = self
            .tokens
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            take(self, token);
        }
        last();
        while let Ok(token) = self.tokens.try_recv() {
            take(self, token);
        }
        let of_stream = |((count, from), to): ((u64, Option<Instant>), Option<Instant>)| {
            (count > 0).then_some(count as f64 / (to? - from?).as_secs_f64())
        };
        let spans = spans.into_iter().zip(self.last);
        spans.filter_map(of_stream).sum()
    }
}

/// Requests, one after the other, until it is over.
fn load(address: &str, stream: u64, token: &Sender<Token>, is_over: &AtomicBool) {
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        // Streams are at different lengths, so that the whole changes little.
        let max_tokens = if round == 1 {
            LENGTH / STREAMS * (stream + 1)
        } else {
            LENGTH
        };
        let body = json!({
            "prompt": [100 + stream, 200 + round], "max_tokens": max_tokens, "ignore_eos": true,
            "temperature": 0, "stream": true,
        })
        .to_string();
        let mut socket = TcpStream::connect(address).expect("it listens");
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(head.as_bytes()).expect("it reads");
        for line in BufReader::new(socket).lines().map_while(Result::ok) {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            // The receiver lives until it is over.
            if line.starts_with("data: {") && token.send((stream, Instant::now())).is_err() {
                return;
            }
        }
    }
}

impl Cpu {
    /// So far. Threads' names are those that the kernel shows.
    fn of(processes: &[Found]) -> Cpu {
        let mut cpu = Cpu::default();
        for process in processes {
            let tasks = fs::read_dir(format!("/proc/{}/task", process.pid)).expect("it lives");
            for task in tasks {
                let task = task.expect("a thread").path();
                let read = |file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
                // Nanoseconds on a processor come first.
                let spent = read("schedstat");
                let spent = spent
                    .split(' ')
                    .next()
                    .and_then(|text| text.parse::<f64>().ok());
                let seconds = spent.unwrap_or(0.0) / 1e9;
                cpu.processes += seconds;
                if read("comm").starts_with("trace") {
                    cpu.recorder_threads += seconds;
                }
            }
        }
        cpu
    }

    /// What was spent from one moment to another one.
    fn add(&mut self, from: &Cpu, to: &Cpu) {
        self.recorder_threads += to.recorder_threads - from.recorder_threads;
        self.processes += to.processes - from.processes;
    }
}
