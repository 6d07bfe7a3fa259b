//! Every number is that of the server, as the server itself has noted it.

use crate::double::{Double, Served, Step, ms, stream};
use crate::{Results, bench, options, turns};
use nano_bench::clock::Moment;
use nano_bench::options::{Arrivals, Options};
use nano_bench::summary::stats::Distribution;
use std::collections::{HashMap, HashSet};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How far a number may lie from the truth.
const TOLERANCE_MS: f64 = 1.0;
/// A busy machine delays whoever it likes.
const ATTEMPTS: usize = 12;

/// A number that is further from the truth than it may be.
#[derive(Clone, Debug)]
struct Off {
    number: String,
    #[expect(dead_code, reason = "shown")]
    what: String,
    by_ms: f64,
}

/// Nearest-rank percentiles of values, by counting.
fn truth(mut values: Vec<f64>) -> Vec<(&'static str, f64)> {
    values.sort_by(f64::total_cmp);
    let at = |percent: f64| {
        let enough = |value: &&f64| {
            let below = values.iter().filter(|other| other <= value).count();
            below as f64 >= values.len() as f64 * percent / 100.0
        };
        *values.iter().find(enough).expect("values")
    };
    vec![
        ("mean", values.iter().sum::<f64>() / values.len() as f64),
        ("p50", at(50.0)),
        ("p90", at(90.0)),
        ("p99", at(99.0)),
        ("p99.9", at(99.9)),
        ("max", at(100.0)),
    ]
}

fn errors(name: &str, measured: &Distribution, values: Vec<f64>) -> Vec<Off> {
    assert_eq!(measured.count.round() as usize, values.len(), "{name}");
    let measured = serde_json::to_value(measured).expect("JSON");
    truth(values)
        .into_iter()
        .filter_map(|(which, truth)| {
            let measured = measured[which].as_f64().expect("a number");
            let by_ms = (measured - truth).abs();
            (by_ms > TOLERANCE_MS).then(|| Off {
                number: format!("{name} {which}"),
                what: format!("{name} {which}: {measured:.3}, in truth {truth:.3}"),
                by_ms,
            })
        })
        .collect()
}

/// Repeats a measurement until each number has been right once: what a busy
/// machine adds differs from time to time, and what is measured wrongly stays.
/// Where a number never is right, the machine is to blame if a thread that only
/// sleeps was as late each time.
fn some_attempt(mut attempt: impl FnMut() -> Vec<Off>) {
    let mut is_explained = true;
    let mut never_right: Option<HashSet<String>> = None;
    for number in 1..=ATTEMPTS {
        let sleeper = Sleeper::start();
        let wrong = attempt();
        let late_ms = sleeper.latest_ms();
        println!("attempt {number}, sleepers up to {late_ms:.3} ms late: {wrong:#?}");
        let now_wrong: HashSet<String> = wrong.iter().map(|off| off.number.clone()).collect();
        let still = match never_right.take() {
            Some(before) => before.intersection(&now_wrong).cloned().collect(),
            None => now_wrong,
        };
        if still.is_empty() {
            return;
        }
        never_right = Some(still);
        is_explained &= wrong.iter().all(|off| off.by_ms <= TOLERANCE_MS + late_ms);
    }
    assert!(is_explained, "{ATTEMPTS} times wrong: {never_right:?}");
}

/// Sleeps a millisecond, again and again, and notes how late it wakes.
struct Sleeper {
    ends: mpsc::Sender<()>,
    thread: thread::JoinHandle<f64>,
}

impl Sleeper {
    fn start() -> Sleeper {
        let (ends, has_ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut latest = 0.0;
            while has_ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                let due = Moment::now() + ms(1);
                thread::sleep(ms(1));
                latest = Moment::now().ms_since(due).max(latest);
            }
            latest
        });
        Sleeper { ends, thread }
    }

    fn latest_ms(self) -> f64 {
        drop(self.ends);
        self.thread.join().expect("it sleeps")
    }
}

/// Server's moments of each request, by its trace id.
fn by_trace_id(double: &Double) -> HashMap<String, Served> {
    let served = double.requests().into_iter();
    served
        .map(|served| (served.trace_id.clone(), served))
        .collect()
}

fn distributions(results: &Results) -> [Distribution; 4] {
    let [summary] = results.report.loads.as_slice() else {
        panic!("one load");
    };
    [
        summary.ttft_ms,
        summary.itl_ms,
        summary.tpot_ms,
        summary.e2e_ms,
    ]
}

#[test]
fn percentiles_are_those_of_the_server() {
    let _turn = turns::alone();
    some_attempt(|| {
        // Delays that differ from request to request and from token to token.
        let double = Double::start(|_, number| {
            let number = number as u64;
            let waits = (0..12).map(move |token| match token {
                0 => ms(5 + 3 * (number % 20)),
                _ => ms(2 + (number + token) % 5),
            });
            stream(waits)
        });
        let results = bench(Options {
            concurrency: Some(vec![4]),
            num_requests: Some(60),
            ..options(&[&double])
        });
        let served = double.requests();
        assert_eq!(served.len(), 60);
        let first = |served: &Served| served.tokens[0];
        let last = |served: &Served| *served.tokens.last().expect("tokens");
        let ended = |served: &Served| served.ended.expect("ended");
        let all = |of: &dyn Fn(&Served) -> f64| served.iter().map(of).collect::<Vec<f64>>();
        let [ttft, itl, tpot, e2e] = distributions(&results);
        let gaps = served.iter().flat_map(|served| served.tokens.windows(2));
        [
            errors("TTFT", &ttft, all(&|s| first(s).ms_since(s.received))),
            errors(
                "ITL",
                &itl,
                gaps.map(|pair| pair[1].ms_since(pair[0])).collect(),
            ),
            errors("TPOT", &tpot, all(&|s| last(s).ms_since(first(s)) / 11.0)),
            errors("E2E", &e2e, all(&|s| ended(s).ms_since(s.received))),
        ]
        .concat()
    });
}

#[test]
fn a_stalled_server_cannot_hide() {
    let _turn = turns::alone();
    // (What a busy machine adds is least where few are answered at once after it.)
    const RATE: f64 = 25.0;
    some_attempt(|| {
        // It does nothing for a second, in the middle of two.
        let double = Double::start(|_, number| match number {
            12 => [vec![Step::Stall(Duration::from_secs(1))], stream([ms(0)])].concat(),
            _ => stream([ms(0)]),
        });
        let results = bench(Options {
            request_rate: Some(vec![RATE]),
            arrivals: Some(Arrivals::Constant),
            num_requests: Some(50),
            ..options(&[&double])
        });
        let served = by_trace_id(&double);
        let records = results.records();
        let begun = records[0]["origin_ns"].as_u64().expect("a moment");
        // When each was due follows from the rate alone.
        let (mut ttft, mut e2e) = (Vec::new(), Vec::new());
        for (number, record) in records.iter().enumerate() {
            let due = Moment::from_ns(begun) + Duration::from_secs_f64(number as f64 / RATE);
            let served = &served[record["trace_id"].as_str().expect("an id")];
            ttft.push(served.tokens[0].ms_since(due));
            e2e.push(served.ended.expect("ended").ms_since(due));
        }
        let delayed = ttft.iter().filter(|&&ms| ms > 100.0).count();
        assert!(delayed >= 20, "{delayed} requests were due in the stall");
        let [measured_ttft, _, _, measured_e2e] = distributions(&results);
        [
            errors("TTFT", &measured_ttft, ttft),
            errors("E2E", &measured_e2e, e2e),
        ]
        .concat()
    });
}

#[test]
fn a_chunk_of_several_tokens_is_as_many_intervals() {
    let _turn = turns::alone();
    some_attempt(|| {
        let double = Double::start(|_, _| {
            vec![
                Step::StreamHead,
                Step::Tokens(1),
                Step::Wait(ms(30)),
                Step::Tokens(3),
                Step::Wait(ms(40)),
                Step::Tokens(2),
                Step::Event("[DONE]"),
                Step::End,
            ]
        });
        let results = bench(Options {
            num_requests: Some(10),
            ..options(&[&double])
        });
        let mut truth = Vec::new();
        for served in double.requests() {
            for (pair, tokens) in served.tokens.windows(2).zip([3, 2]) {
                let each = pair[1].ms_since(pair[0]) / f64::from(tokens);
                truth.extend(vec![each; tokens as usize]);
            }
        }
        assert_eq!(results.report.loads[0].tokens.output, 60);
        assert_eq!(results.report.loads[0].tokens.requests_without_usage, 10);
        errors("ITL", &distributions(&results)[1], truth)
    });
}
