//! What `/metrics` says.
//!
//! Names with the prefix `vllm:` are vLLM's, with its meaning and buckets'
//! range, because routers, autoscalers and dashboards read those. What is ours
//! alone has the prefix `nano:`.

use crate::engine_client::{Ending, Timings};
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::flight::{FlightCounts, RuleKind, TriggerKind};
use nano_ipc::to_frontend::SchedulerStats;
use prometheus::core::Collector;
use prometheus::{
    Error, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bounds of buckets for what takes milliseconds to minutes, in seconds.
const LATENCY_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Bounds for the time between two tokens, in seconds.
const INTER_TOKEN_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Bounds for numbers of tokens.
const TOKEN_BUCKETS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100000.0,
];

/// Everything that is counted in this process, and what the core says of itself.
pub struct EngineMetrics {
    registry: Registry,
    /// For the share of those in use; 0 until the engine is ready.
    num_kv_blocks: AtomicU32,
    running: Gauge,
    waiting: Gauge,
    kv_cache_usage: Gauge,
    cache_config: IntGaugeVec,
    preemptions: IntCounter,
    prefix_queries: IntCounter,
    prefix_hits: IntCounter,
    steps: IntCounter,
    /// By process: what each keeps of requests that have not ended.
    open_sequences: IntGaugeVec,
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    finished: IntCounterVec,
    time_to_first_token: Histogram,
    inter_token: Histogram,
    /// The same under its older name, which dashboards and routers still read.
    inter_token_older: Histogram,
    time_per_output_token: Histogram,
    end_to_end: Histogram,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    inference_time: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    http_requests: IntCounterVec,
    /// Two scrapes at once must not both advance them.
    flight: Mutex<FlightCounters>,
}

/// What the launcher counts of the flight recorder.
struct FlightCounters {
    fired: IntCounterVec,
    suppressed: IntCounterVec,
    dumps: IntCounterVec,
}

/// Makes metrics with the labels that all have, and registers them.
struct Maker<'a> {
    registry: Registry,
    model_name: &'a str,
}

impl Maker<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help)
            .const_label("model_name", self.model_name)
            .const_label("engine", "0")
    }

    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, Error> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<Gauge, Error> {
        self.register(Gauge::with_opts(self.opts(name, help))?)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.register(IntCounter::with_opts(self.opts(name, help))?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, Error> {
        self.register(IntCounterVec::new(self.opts(name, help), labels)?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, Error> {
        let opts = HistogramOpts {
            common_opts: self.opts(name, help),
            buckets: buckets.to_vec(),
        };
        self.register(Histogram::with_opts(opts)?)
    }
}

impl EngineMetrics {
    /// `model_name`: the label of everything.
    ///
    /// # Errors
    /// When the library refuses a name; the test sees to it that it does not.
    pub fn new(model_name: &str) -> Result<EngineMetrics, Error> {
        let make = Maker {
            registry: Registry::new(),
            model_name,
        };
        let latency = |name, help| make.histogram(name, help, LATENCY_BUCKETS);
        let tokens = |name, help| make.histogram(name, help, TOKEN_BUCKETS);
        let inter_token = |name, help| make.histogram(name, help, INTER_TOKEN_BUCKETS);
        let finished = make.counters(
            "vllm:request_success_total",
            "Sequences that ended, by how.",
            &["finished_reason"],
        )?;
        for ending in [Ending::Stop, Ending::Length, Ending::Abort, Ending::Error] {
            finished.with_label_values(&[ending.name()]);
        }
        let cache_config = IntGaugeVec::new(
            make.opts("vllm:cache_config_info", "How the KV cache is set up."),
            &["block_size", "num_gpu_blocks", "enable_prefix_caching"],
        )?;
        Ok(EngineMetrics {
            running: make.gauge("vllm:num_requests_running", "Sequences in steps.")?,
            waiting: make.gauge("vllm:num_requests_waiting", "Sequences waiting for a step.")?,
            kv_cache_usage: make.gauge(
                "vllm:kv_cache_usage_perc",
                "Share of the KV blocks that sequences hold; 1 is all.",
            )?,
            cache_config: make.register(cache_config)?,
            preemptions: make.counter("vllm:num_preemptions_total", "Sequences preempted.")?,
            prefix_queries: make.counter(
                "vllm:prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache.",
            )?,
            prefix_hits: make.counter(
                "vllm:prefix_cache_hits_total",
                "Prompt tokens found in the prefix cache.",
            )?,
            open_sequences: make.register(IntGaugeVec::new(
                make.opts(
                    "nano:open_sequences",
                    "Sequences that a process keeps, from their admission to their last trace.",
                ),
                &["process"],
            )?)?,
            steps: make.counter("nano:engine_steps_total", "Steps of the engine.")?,
            prompt_tokens: make.counter("vllm:prompt_tokens_total", "Prompt tokens computed.")?,
            generation_tokens: make.counter("vllm:generation_tokens_total", "Tokens generated.")?,
            finished,
            time_to_first_token: latency(
                "vllm:time_to_first_token_seconds",
                "From the request's arrival to its first token.",
            )?,
            inter_token: inter_token(
                "vllm:inter_token_latency_seconds",
                "Between two outputs of a sequence.",
            )?,
            inter_token_older: inter_token(
                "vllm:time_per_output_token_seconds",
                "Older name of vllm:inter_token_latency_seconds.",
            )?,
            time_per_output_token: inter_token(
                "vllm:request_time_per_output_token_seconds",
                "Mean time between a sequence's tokens.",
            )?,
            end_to_end: latency(
                "vllm:e2e_request_latency_seconds",
                "From the request's arrival to its end.",
            )?,
            queue_time: latency(
                "vllm:request_queue_time_seconds",
                "From the request's arrival to its first step.",
            )?,
            prefill_time: latency(
                "vllm:request_prefill_time_seconds",
                "From the first step to the first token.",
            )?,
            decode_time: latency(
                "vllm:request_decode_time_seconds",
                "From the first token to the last.",
            )?,
            inference_time: latency(
                "vllm:request_inference_time_seconds",
                "From the first step to the last token.",
            )?,
            request_prompt_tokens: tokens("vllm:request_prompt_tokens", "Tokens of a prompt.")?,
            request_generation_tokens: tokens(
                "vllm:request_generation_tokens",
                "Tokens generated for a sequence.",
            )?,
            http_requests: make.counters(
                "nano:http_requests_total",
                "HTTP requests answered, by route and status.",
                &["route", "status"],
            )?,
            flight: Mutex::new(FlightCounters {
                fired: make.counters(
                    "nano:flight_rules_fired_total",
                    "How often something was slower than a rule of the flight recorder allows.",
                    &["rule"],
                )?,
                suppressed: make.counters(
                    "nano:flight_rules_suppressed_total",
                    "How often that made no dump: the minute had had one, or too many waited.",
                    &["rule"],
                )?,
                dumps: make.counters(
                    "nano:flight_dumps_total",
                    "Dumps of the flight recorder, by what was behind them.",
                    &["trigger"],
                )?,
            }),
            num_kv_blocks: AtomicU32::new(0),
            registry: make.registry,
        })
    }

    /// A sequence's first token came.
    pub(crate) fn first_token(&self, prompt_tokens: u32, timings: &Timings) {
        self.prompt_tokens.inc_by(u64::from(prompt_tokens));
        observe(
            &self.time_to_first_token,
            timings.time_to_first_token_seconds(),
        );
        observe(&self.queue_time, timings.queue_seconds());
        observe(&self.prefill_time, timings.prefill_seconds());
    }

    /// Another output of a sequence came.
    pub(crate) fn next_token(&self, last_ns: u64, now_ns: u64) {
        let seconds = now_ns.saturating_sub(last_ns) as f64 / 1e9;
        self.inter_token.observe(seconds);
        self.inter_token_older.observe(seconds);
    }

    /// Tokens came.
    pub(crate) fn generated(&self, tokens: u32) {
        self.generation_tokens.inc_by(u64::from(tokens));
    }

    /// A sequence ended.
    pub(crate) fn finished(
        &self,
        ending: Ending,
        prompt_tokens: u32,
        timings: &Timings,
        now_ns: u64,
    ) {
        self.finished.with_label_values(&[ending.name()]).inc();
        if matches!(ending, Ending::Abort | Ending::Error) {
            return;
        }
        self.request_prompt_tokens.observe(f64::from(prompt_tokens));
        self.request_generation_tokens
            .observe(f64::from(timings.num_tokens));
        self.end_to_end
            .observe(now_ns.saturating_sub(timings.arrived_ns) as f64 / 1e9);
        observe(&self.decode_time, timings.decode_seconds());
        observe(
            &self.time_per_output_token,
            timings.mean_inter_token_seconds(),
        );
        if let (Some(prefill), Some(decode)) = (timings.prefill_seconds(), timings.decode_seconds())
        {
            self.inference_time.observe(prefill + decode);
        }
    }

    /// An HTTP request was answered.
    pub(crate) fn http_request(&self, route: &str, status: u16) {
        self.http_requests
            .with_label_values(&[route, &status.to_string()])
            .inc();
    }

    /// The engine is ready. Called by the connection's task.
    pub(crate) fn engine_ready(&self, info: &EngineInfo) {
        self.num_kv_blocks
            .store(info.num_kv_blocks, Ordering::Relaxed);
        self.cache_config
            .with_label_values(&[
                &info.block_size.to_string(),
                &info.num_kv_blocks.to_string(),
                &info.enable_prefix_caching.to_string(),
            ])
            .set(1);
    }

    /// What the scheduler says of itself. Called by the connection's task alone,
    /// so that totals advance once.
    pub(crate) fn scheduler(&self, stats: &SchedulerStats) {
        self.running.set(f64::from(stats.num_running));
        self.waiting.set(f64::from(stats.num_waiting));
        self.set_open("core", stats.num_requests);
        self.set_open("worker", stats.num_worker_sequences);
        let blocks = self.num_kv_blocks.load(Ordering::Relaxed).max(1);
        self.kv_cache_usage
            .set(f64::from(stats.num_used_blocks) / f64::from(blocks));
        for (counter, total) in [
            (&self.preemptions, stats.num_preemptions),
            (&self.prefix_queries, stats.prefix_cache_queries),
            (&self.prefix_hits, stats.prefix_cache_hits),
            (&self.steps, stats.num_steps),
        ] {
            advance(counter, total);
        }
    }

    /// What the launcher counts of the flight recorder.
    fn flight(&self, counts: &FlightCounts) {
        let counters = self.flight.lock();
        let counters = counters.unwrap_or_else(PoisonError::into_inner);
        let rules = RuleKind::ALL.map(RuleKind::name);
        let triggers = TriggerKind::ALL.map(TriggerKind::name);
        for (counters, names, totals) in [
            (&counters.fired, &rules[..], &counts.fired[..]),
            (&counters.suppressed, &rules[..], &counts.suppressed[..]),
            (&counters.dumps, &triggers[..], &counts.dumps[..]),
        ] {
            for (name, total) in names.iter().zip(totals) {
                advance(&counters.with_label_values(&[*name]), *total);
            }
        }
    }

    fn set_open(&self, process: &str, sequences: u32) {
        self.open_sequences
            .with_label_values(&[process])
            .set(sequences.into());
    }

    /// Everything in Prometheus's text format. `open`: sequences that this
    /// process has admitted and not yet ended; `flight`: as the launcher counts.
    ///
    /// # Errors
    /// When the library cannot write it.
    pub fn text(&self, open: u32, flight: &FlightCounts) -> Result<String, Error> {
        self.set_open("frontend", open);
        self.flight(flight);
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// Totals that others count advance the counter that shows them.
fn advance(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn observe(histogram: &Histogram, seconds: Option<f64>) {
    if let Some(seconds) = seconds {
        histogram.observe(seconds);
    }
}
