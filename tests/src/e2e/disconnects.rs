//! Clients that go at any moment: nothing is left of them, and nobody else
//! notices.

use crate::client::{Stream, StreamEvent};
use crate::metrics::{Metrics, wait_for_nobody};
use crate::programs::golden;
use crate::random::Random;
use crate::server::{ServerOptions, wait_for};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Clients that go, at once.
const GOING: usize = 8;
/// Clients that stay, at once.
const STAYING: usize = 3;
/// So few sequences run that others wait, and so few blocks there are that
/// some may be preempted.
const ARGS: [&str; 6] = [
    "--max-num-seqs",
    "6",
    "--max-num-batched-tokens",
    "48",
    "--num-kv-blocks",
    "24",
];

/// When a client goes.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// In the middle of its own request.
    WhileSending,
    /// So long after its request: it is on its way to the engine, waits
    /// there, or is computed.
    After(Duration),
    /// When so many events of its stream were read.
    Events(usize),
}

impl Moment {
    fn random(random: &mut Random, streams: bool) -> Moment {
        match random.within(0..10) {
            0 => Moment::WhileSending,
            // Most of the way to the engine takes less than a millisecond.
            1..4 => Moment::After(Duration::from_micros(random.within(0..1500))),
            4..8 if streams => Moment::Events(random.within(1..20) as usize),
            _ => Moment::After(Duration::from_micros(random.within(0..40_000))),
        }
    }
}

/// A client that asks for something and goes.
fn come_and_go(address: &str, random: &mut Random) {
    let streams = random.within(0..2) == 0;
    let length = random.within(1..120);
    let body = json!({
        "model": "tiny-llama",
        "prompt": random.prompt(length),
        "max_tokens": random.within(1..200),
        "n": 1 + random.within(0..8) / 7,
        "seed": 1,
        "ignore_eos": true,
        "stream": streams,
    })
    .to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.as_bytes(), body.as_bytes()].concat();
    let mut client = TcpStream::connect(address).expect("the server listens");
    match Moment::random(random, streams) {
        Moment::WhileSending => {
            let part = random.within(0..request.len() as u64) as usize;
            client.write_all(&request[..part]).expect("it is read");
        }
        Moment::After(delay) => {
            client.write_all(&request).expect("it is read");
            thread::sleep(delay);
        }
        Moment::Events(events) => {
            client.write_all(&request).expect("it is read");
            read_events(&mut client, events);
        }
    }
}

/// Reads until so many events have come, or the response has ended.
fn read_events(client: &mut TcpStream, events: usize) {
    let limit = Some(Duration::from_secs(60));
    client.set_read_timeout(limit).expect("a socket");
    let mut response = Vec::new();
    let mut bytes = [0; 1024];
    loop {
        let text = String::from_utf8_lossy(&response);
        if text.matches("data: ").count() >= events || text.contains("data: [DONE]") {
            return;
        }
        match client.read(&mut bytes).expect("events") {
            0 => panic!("no stream: {text}"),
            read => response.extend_from_slice(&bytes[..read]),
        }
    }
}

/// What a client asks for that stays.
fn requests() -> Vec<Value> {
    (0..12_u64)
        .map(|n| {
            json!({
                "model": "tiny-llama",
                "prompt": Random::new(n / 2).prompt(1 + n * 3),
                "max_tokens": 100 + n * 5,
                "temperature": if n % 2 == 0 { 0.0 } else { 0.9 },
                "seed": n,
                "ignore_eos": true,
                "return_token_ids": true,
            })
        })
        .collect()
}

/// Its answer: text, token ids and finish reason. How tokens are gathered into
/// events depends on time, and is left out.
fn answer(base_url: &str, request: &Value) -> (String, Vec<Value>, Value) {
    let stream = Stream::open(base_url, "/v1/completions", request.clone());
    let events = stream.rest(Instant::now() + Duration::from_secs(60));
    assert!(events.contains(&StreamEvent::Done), "{events:?}");
    let mut answer = (String::new(), Vec::new(), Value::Null);
    for event in &events {
        let StreamEvent::Data(chunk) = event else {
            continue;
        };
        let choice = &chunk["choices"][0];
        answer.0.push_str(choice["text"].as_str().expect("text"));
        let ids = choice["token_ids"].as_array().expect("ids");
        answer.1.extend(ids.iter().cloned());
        answer.2 = choice["finish_reason"].clone();
    }
    answer
}

#[track_caller]
fn check(options: ServerOptions, disconnects: usize) {
    let server = options.args(&ARGS).start();
    let base_url = server.base_url();
    let address = base_url.trim_start_matches("http://");
    let requests = requests();
    let undisturbed: Vec<_> = requests.iter().map(|r| answer(base_url, r)).collect();
    let (left, stayed) = (AtomicUsize::new(disconnects), AtomicUsize::new(0));
    let take_one = || {
        let one_less = |left: usize| left.checked_sub(1);
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
    };
    thread::scope(|scope| {
        for _ in 0..GOING {
            scope.spawn(|| {
                while let Ok(number) = take_one() {
                    come_and_go(address, &mut Random::new(number as u64));
                }
            });
        }
        for first in 0..STAYING {
            let (left, stayed) = (&left, &stayed);
            let turns = requests.iter().zip(&undisturbed).cycle().skip(first);
            scope.spawn(move || {
                for (request, undisturbed) in turns {
                    assert_eq!(&answer(base_url, request), undisturbed);
                    stayed.fetch_add(1, Ordering::Relaxed);
                    if left.load(Ordering::Relaxed) == 0 {
                        break;
                    }
                }
            });
        }
    });
    wait_for_nobody(&server);

    let metrics = Metrics::read(&server);
    let ended = |how: &str| metrics.sum("vllm:request_success_total", how);
    let stayed = stayed.into_inner() + requests.len();
    assert!(ended("length") >= stayed as f64);
    assert_eq!(ended("error") + ended("stop"), 0.0);
    // Runs in which these are rare would prove nothing.
    let aborted = ended("abort");
    let of = |part: usize| (disconnects / part) as f64;
    assert!(aborted >= of(2), "{aborted} of {disconnects} were aborted");
    // The log tells each request's tokens. It may be a little behind.
    wait_for(
        "aborts before and after a first token",
        Duration::from_secs(5),
        || {
            let log = server.log();
            let aborts = log.lines().filter(|line| line.contains(" abort after "));
            let (before, after): (Vec<_>, Vec<_>) =
                aborts.partition(|line| line.contains(" 0 generated"));
            (before.len() as f64 > of(10) && after.len() as f64 > of(10)).then_some(())
        },
    );
}

#[test]
fn five_hundred_clients_that_go_leave_nothing_and_disturb_nobody() {
    check(ServerOptions::mock(1), 500);
}

#[test]
fn clients_of_a_real_model_that_go_leave_nothing_and_disturb_nobody() {
    check(ServerOptions::real(&golden("models/tiny-llama")), 100);
}
