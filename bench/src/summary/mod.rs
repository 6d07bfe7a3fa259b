//! Records become numbers: exact percentiles over all records, no sketches.

pub mod goodput;
pub mod series;
pub mod stats;

use crate::clock::Moment;
use crate::config::Load;
use crate::record::{Outcome, RequestRecord};
use goodput::{Goodput, GoodputSummary};
use serde::Serialize;
use series::TokenSeries;
use stats::{Distribution, Sample};
use std::collections::BTreeMap;

/// What was measured of one load, a few bytes a request and eight a chunk.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Requests that were sent.
    sent: u64,
    aborted: u64,
    failures: BTreeMap<String, FailureCount>,
    prompt_tokens: u64,
    output_tokens: u64,
    without_usage: u64,
    good: u64,
    /// Milliseconds of complete requests.
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    e2e: Vec<f64>,
    lag: Vec<f64>,
    itl: Vec<Sample>,
    tokens: TokenSeries,
    last_end: Option<Moment>,
}

/// How often a failure happened.
#[derive(Clone, Debug, Serialize)]
pub struct FailureCount {
    /// How often.
    pub count: u64,
    /// What the first one said.
    pub example: String,
}

impl Measured {
    /// Takes a record in.
    pub fn add(&mut self, record: &RequestRecord, limits: &Goodput) {
        self.sent += 1;
        self.last_end = self.last_end.max(Some(record.times.ended));
        self.lag.extend(record.lag_ms());
        match &record.outcome {
            Outcome::Aborted => self.aborted += 1,
            Outcome::Failed(failure) => {
                let name = failure.kind.to_string();
                let failures = self.failures.entry(name).or_insert_with(|| FailureCount {
                    count: 0,
                    example: failure.message.clone(),
                });
                failures.count += 1;
            }
            Outcome::Complete => self.add_complete(record, limits),
        }
    }

    fn add_complete(&mut self, record: &RequestRecord, limits: &Goodput) {
        self.prompt_tokens += record.prompt_tokens.unwrap_or(0);
        self.output_tokens += record.output_tokens;
        self.without_usage += u64::from(record.prompt_tokens.is_none());
        self.good += u64::from(limits.keeps(record));
        self.ttft.extend(record.ttft_ms());
        self.tpot.extend(record.tpot_ms());
        self.e2e.push(record.e2e_ms());
        self.itl.extend(record.intervals().map(|interval| Sample {
            value: interval.ms,
            weight: interval.tokens,
        }));
        self.tokens.add(record);
    }
}

/// The numbers of one load.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Which load.
    pub load: Load,
    /// Whether the run was interrupted in it.
    pub aborted: bool,
    /// From its begin to the end of its last request.
    pub duration_s: f64,
    /// How requests ended.
    pub requests: Requests,
    /// What was computed a second.
    pub throughput: Throughput,
    /// Tokens of complete requests.
    pub tokens: Tokens,
    /// Time to first token.
    pub ttft_ms: Distribution,
    /// Inter-token latency.
    pub itl_ms: Distribution,
    /// Time per output token after the first, a request's mean each.
    pub tpot_ms: Distribution,
    /// Whole requests.
    pub e2e_ms: Distribution,
    /// How late requests of an open loop were sent.
    pub send_lag_ms: Distribution,
    /// Failures by their names.
    pub failures: BTreeMap<String, FailureCount>,
    /// Requests that kept the limits, if there are any.
    pub goodput: Option<GoodputSummary>,
    /// What plots are drawn of.
    #[serde(skip)]
    pub samples: Samples,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Requests {
    /// All.
    pub sent: u64,
    /// With a whole answer.
    pub complete: u64,
    /// Without.
    pub failed: u64,
    /// Cut by the end of the run.
    pub aborted: u64,
}

/// Rates over the load's duration.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Throughput {
    /// Complete requests a second.
    pub requests_per_s: f64,
    /// Their output tokens a second.
    pub output_tokens_per_s: f64,
    /// Prompt and output tokens a second.
    pub total_tokens_per_s: f64,
}

/// Sums of tokens.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tokens {
    /// Of prompts, as the server counts them.
    pub prompt: u64,
    /// Of answers.
    pub output: u64,
    /// Requests for which the server sent no `usage`: their chunks were
    /// counted, and their prompts were not.
    pub requests_without_usage: u64,
}

/// Samples that the numbers are of.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Begin of the load.
    pub begun: Moment,
    /// Latencies by name, sorted.
    pub latencies: Vec<(&'static str, Vec<Sample>)>,
    /// Output tokens over time.
    pub tokens: TokenSeries,
}

impl Summary {
    /// Of a load that began at `begun`.
    pub fn new(
        load: Load,
        begun: Moment,
        aborted: bool,
        measured: Measured,
        limits: &Goodput,
    ) -> Summary {
        let duration_s = measured
            .last_end
            .map_or(0.0, |end| end.since(begun).as_secs_f64());
        let per_second = |count: u64| match duration_s {
            0.0 => 0.0,
            _ => count as f64 / duration_s,
        };
        let complete = measured.e2e.len() as u64;
        let sorted = |values: Vec<f64>| {
            let samples = values.into_iter().map(|value| Sample {
                value: value as f32,
                weight: 1.0,
            });
            stats::sorted(samples.collect())
        };
        let (ttft, tpot) = (sorted(measured.ttft), sorted(measured.tpot));
        let (e2e, itl) = (sorted(measured.e2e), stats::sorted(measured.itl));
        Summary {
            load,
            aborted,
            duration_s,
            requests: Requests {
                sent: measured.sent,
                complete,
                failed: measured.sent - complete - measured.aborted,
                aborted: measured.aborted,
            },
            throughput: Throughput {
                requests_per_s: per_second(complete),
                output_tokens_per_s: per_second(measured.output_tokens),
                total_tokens_per_s: per_second(measured.prompt_tokens + measured.output_tokens),
            },
            tokens: Tokens {
                prompt: measured.prompt_tokens,
                output: measured.output_tokens,
                requests_without_usage: measured.without_usage,
            },
            ttft_ms: Distribution::of(&ttft),
            itl_ms: Distribution::of(&itl),
            tpot_ms: Distribution::of(&tpot),
            e2e_ms: Distribution::of(&e2e),
            send_lag_ms: Distribution::of(&sorted(measured.lag)),
            failures: measured.failures,
            goodput: limits.summary(measured.good, measured.sent, duration_s),
            samples: Samples {
                begun,
                latencies: vec![("TTFT", ttft), ("ITL", itl), ("TPOT", tpot), ("E2E", e2e)],
                tokens: measured.tokens,
            },
        }
    }
}
