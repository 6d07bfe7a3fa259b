//! Control never waits for a step, and no step for control; and nothing grows.
//!
//! The tests are short; `scripts/soak-profile` runs them long, by
//! `NANO_PROFILE_ROUNDS` and `NANO_PROFILE_KILLS`.

use super::support::{
    Load, ask, auto, dir, files, judge, manual, start, stop, stop_whole, wait_idle,
};
use crate::client::post_for_text;
use crate::programs::default_model;
use crate::server::{Server, ServerOptions};
use nano_trace::check::OpenSlices;
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The bar of an answer's 99th percentile.
const ANSWER_WITHIN: Duration = Duration::from_millis(50);
/// Calls of each kind.
const CALLS: usize = 200;

/// Measures again, twice at most: another process may have had the machine.
fn thrice(mut measure: impl FnMut() -> Result<(), String>) {
    for _ in 0..2 {
        match measure() {
            Ok(()) => return,
            Err(missed) => println!("measured again: {missed}"),
        }
    }
    if let Err(missed) = measure() {
        panic!("the third time, too: {missed}");
    }
}

fn percentile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() as f64 * share).ceil() as usize).max(1) - 1]
}

/// Starts and stops sessions, and times the answers.
fn time_calls(what: &str, server: &Server) -> Result<(), String> {
    let (mut starts, mut stops) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let begun = Instant::now();
        start(server, json!({}));
        starts.push(begun.elapsed());
        let begun = Instant::now();
        stop(server);
        stops.push(begun.elapsed());
        // At most four sessions are alive: the files of this one are finished.
        stop_whole(server);
    }
    let mut wrong = Vec::new();
    for (call, times) in [("start", &mut starts), ("stop", &mut stops)] {
        let [middle, most, worst] = [0.5, 0.99, 1.0].map(|share| percentile(times, share));
        let line = format!(
            "{what}: {call} answered in {middle:.1?} (median), {most:.1?} (p99 of {CALLS}), {worst:.1?} (worst)"
        );
        println!("{line}");
        if most >= ANSWER_WITHIN {
            wrong.push(line);
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ")),
    }
}

#[test]
fn start_and_stop_answer_at_once_while_streams_run() {
    let dir = dir();
    let server = manual(ServerOptions::mock(10), dir.path()).start();
    let load = Load::start(&server, 16, 8000);
    thrice(|| time_calls("16 streams", &server));
    drop(load);
}

/// Has prompts of 4,000 tokens in prefill while `during` runs.
fn in_prefill(server: &Server, during: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let begun = AtomicBool::new(false);
    let url = format!("{}/v1/completions", server.base_url());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                let prompt: Vec<u64> = (0..4000).map(|at| 3 + (at * 7 + number) % 600).collect();
                begun.store(true, Ordering::Relaxed);
                let body = json!({"prompt": prompt, "max_tokens": 1});
                let answer = post_for_text(&url, &body);
                // The server may have been dropped by a test that failed.
                if let Ok((status, text)) = answer {
                    assert_eq!(status, 200, "{text}");
                }
            }
        });
        let _over = Over(&is_over);
        while !begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        during();
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn start_and_stop_answer_at_once_while_a_long_prompt_is_in_prefill() {
    let (mock_dir, real_dir) = (dir(), dir());
    // Eight steps of half a second.
    let server = manual(ServerOptions::mock(500), mock_dir.path()).start();
    in_prefill(&server, || {
        thrice(|| time_calls("prefill in long steps", &server))
    });
    drop(server);
    let server = manual(ServerOptions::real(&default_model()), real_dir.path()).start();
    in_prefill(&server, || {
        thrice(|| time_calls("prefill of the default model", &server))
    });
}

/// The longest time between two tokens of a stream, of those that came while
/// all streams ran.
fn longest_gap(streams: &[Vec<Instant>], since: Instant) -> Duration {
    let pairs = streams.iter().flat_map(|times| times.windows(2));
    let gaps = pairs
        .filter(|pair| pair[0] >= since)
        .map(|pair| pair[1] - pair[0]);
    gaps.max().expect("tokens")
}

/// What a session may add to the time between two tokens; the step takes half of it.
const LONGEST_GAP: Duration = Duration::from_millis(20);

#[test]
fn no_stream_stands_still_for_a_session() {
    const ROUNDS: u32 = 200;
    let dir = dir();
    // These tokens are whole characters: no text waits for the next token's bytes.
    let mock = ServerOptions::mock(10).env("NANO_MOCK_VOCAB_SIZE", "98");
    let server = manual(mock, dir.path()).start();
    thrice(|| {
        let load = Load::start(&server, 16, 8000);
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            start(&server, json!({}));
            stop(&server);
            stop_whole(&server);
            // Rounds come at all phases of a step.
            thread::sleep(Duration::from_millis(7));
        }
        let took = begun.elapsed();
        let with = longest_gap(&load.end(), begun);
        let load = Load::start(&server, 16, 8000);
        let begun = Instant::now();
        thread::sleep(took);
        let without = longest_gap(&load.end(), begun);
        let line = format!(
            "longest gap between two tokens: {with:.1?} over {ROUNDS} rounds of start, stop and flush, {without:.1?} in {took:.1?} without"
        );
        println!("{line}");
        // A machine that halts streams by itself cannot show less.
        match with <= LONGEST_GAP || with <= without + LONGEST_GAP / 2 {
            true => Ok(()),
            false => Err(line),
        }
    });
}

fn rounds() -> u32 {
    let number = std::env::var("NANO_PROFILE_ROUNDS").ok();
    number.map_or(60, |text| text.parse().expect("a number"))
}

#[test]
fn no_process_grows_with_sessions() {
    const MOST: usize = 5 << 20;
    let rounds = rounds();
    let dir = dir();
    let server = auto(ServerOptions::mock(1), dir.path()).start();
    let load = Load::start(&server, 8, 8000);
    let round = |number: u32| {
        let session = format!("r{number}");
        start(&server, json!({"name": session}));
        stop_whole(&server);
        let files = files(dir.path(), &session);
        assert_eq!(files.len(), 3, "{session}");
        let paths: Vec<_> = files.into_iter().map(|(_, path)| path).collect();
        judge(&paths, &OpenSlices::None);
        for path in paths {
            std::fs::remove_file(path).expect("ours");
        }
    };
    let programs = ["nano-serve", "nano-frontend", "nano-core", "nano-worker"];
    let processes = programs.map(|program| server.process(program));
    // Until everything has its size.
    (0..20).for_each(round);
    let before: Vec<usize> = processes
        .iter()
        .map(|process| process.usage().resident)
        .collect();
    (20..20 + rounds).for_each(round);
    let mut load = Some(load);
    for (process, before) in processes.iter().zip(before) {
        let after = process.usage().resident;
        println!(
            "{}: {} KiB before, {} KiB after {rounds} sessions",
            process.name,
            before >> 10,
            after >> 10
        );
        assert!(
            after < before + MOST,
            "{}: {before} to {after} bytes",
            process.name
        );
    }
    drop(load.take());
    wait_idle(&server);
}

#[test]
fn a_fifth_session_beside_four_that_are_written_is_refused_or_begins() {
    let dir = dir();
    let server = manual(ServerOptions::mock(1), dir.path()).start();
    let load = Load::start(&server, 4, 8000);
    let mut begun = 0;
    for number in 0..40 {
        let (code, answer) = ask(
            &server,
            "/start_profile",
            &json!({"name": format!("q{number}")}),
        );
        match code {
            200 => begun += 1,
            503 => assert!(answer.to_string().contains("sessions"), "{answer}"),
            _ => panic!("{code}: {answer}"),
        }
        stop(&server);
    }
    assert!(begun >= 4, "{begun} of 40");
    wait_idle(&server);
    drop(load);
}
