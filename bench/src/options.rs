//! What a user may say: flags, which stand over a YAML file.

use crate::lengths::Lengths;
use crate::profiling::Engine;
use clap::{Args, Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A load generator for servers with OpenAI's interface.
///
/// Measures a server under a closed loop (--concurrency) or an open loop
/// (--request-rate) of requests, and writes result_summary.json, report.txt,
/// records.jsonl and plots. Latency in an open loop counts from the moment at
/// which a request was due, so a server that stalls cannot hide it.
#[derive(Debug, Parser)]
#[command(name = "nano-bench", version)]
pub struct Flags {
    /// A YAML file with options; flags stand over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Show no progress bar
    #[arg(long)]
    pub no_progress: bool,
    /// Everything that the file may hold as well.
    #[command(flatten)]
    pub options: Options,
}

/// Which of the API's endpoints is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// When requests of an open loop are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Independently of each other: a Poisson process
    Poisson,
    /// Evenly spaced
    Constant,
}

/// A key=value pair of limits.
pub type Limit = (String, f64);

/// Everything that flags or a file may say; what is absent has a default.
#[derive(Clone, Debug, Default, Args)]
pub struct Options {
    /// Server, such as http://127.0.0.1:8000/v1; several share the load in turn
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        help_heading = "Server"
    )]
    pub base_url: Option<Vec<String>>,
    /// Model's name [default: the first that the server lists]
    #[arg(long, help_heading = "Server")]
    pub model: Option<String>,
    /// Key of the API
    #[arg(
        long,
        env = "OPENAI_API_KEY",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub api_key: Option<String>,
    /// Endpoint [default: chat]
    #[arg(long, value_enum, help_heading = "Server")]
    pub api: Option<Api>,
    /// Ask for whole answers instead of streams (no TTFT, ITL and TPOT)
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Server")]
    pub no_stream: Option<bool>,

    /// Requests from a JSONL file: a line holds messages, ShareGPT's conversations or a prompt, and may hold images and max_tokens [default: synthetic prompts]
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub dataset: Option<PathBuf>,
    /// Words of a synthetic prompt, about one token each: 128, 64..256, normal:128,16 or sampled:FILE [default: 128]
    #[arg(long, value_name = "LENGTHS", help_heading = "Requests")]
    pub input_len: Option<Lengths>,
    /// Most tokens of an answer, likewise [default: what the dataset says, or 128]
    #[arg(long, value_name = "LENGTHS", help_heading = "Requests")]
    pub output_len: Option<Lengths>,
    /// Ask for answers of exactly that length (a parameter of most servers, not of OpenAI's)
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Requests")]
    pub ignore_eos: Option<bool>,
    /// Sampling temperature [default: 0]
    #[arg(long, help_heading = "Requests")]
    pub temperature: Option<f64>,
    /// More parameters of every request, a JSON object
    #[arg(long, value_name = "JSON", value_parser = json_object, help_heading = "Requests")]
    pub extra_body: Option<Map<String, Value>>,
    /// Seed of prompts, lengths, order and arrivals [default: 42]
    #[arg(long, help_heading = "Requests")]
    pub seed: Option<u64>,

    /// Closed loop: requests at once; several (1,4,16) are measured one after the other [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = "Load")]
    pub concurrency: Option<Vec<usize>>,
    /// Open loop: requests a second; several are measured one after the other
    #[arg(
        long,
        value_name = "RATE",
        value_delimiter = ',',
        conflicts_with = "concurrency",
        help_heading = "Load"
    )]
    pub request_rate: Option<Vec<f64>>,
    /// When requests of an open loop are due [default: poisson]
    #[arg(long, value_enum, help_heading = "Load")]
    pub arrivals: Option<Arrivals>,
    /// Requests to measure, at each load [default: 100, or as many as --duration allows]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub num_requests: Option<u64>,
    /// Send no further requests after this time (30s, 10m, 500ms)
    #[arg(long, value_parser = duration, help_heading = "Load")]
    pub duration: Option<Duration>,
    /// Requests before, which are not measured [default: 0]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub warmup_requests: Option<u64>,
    /// Most requests at once in an open loop; time spent waiting for one of these places counts [default: 4096]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub max_connections: Option<usize>,
    /// Threads of the event loop [default: 1]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub num_workers: Option<usize>,
    /// Longest time to connect [default: 10s]
    #[arg(long, value_parser = duration, value_name = "DURATION", help_heading = "Load")]
    pub connect_timeout: Option<Duration>,
    /// Longest silence within a request, which then counts as `hang` [default: 60s]
    #[arg(long, value_parser = duration, value_name = "DURATION", help_heading = "Load")]
    pub idle_timeout: Option<Duration>,
    /// Longest request, from when it is sent; it then counts as `timeout` [default: 600s]
    #[arg(long, value_parser = duration, value_name = "DURATION", help_heading = "Load")]
    pub timeout: Option<Duration>,

    /// Limits in ms that a good request keeps: ttft:500 itl:50 tpot:40 e2e:5000
    #[arg(long, value_name = "LIMIT", num_args = 1.., value_parser = limit, help_heading = "Results")]
    pub goodput: Option<Vec<Limit>>,
    /// Where the results go [default: bench-results/UTC-TIME]
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub output_dir: Option<PathBuf>,

    /// Have the server's profiler record each performance phase
    #[arg(long, value_enum, value_name = "ENGINE", help_heading = "Profiling")]
    pub profile: Option<Engine>,
    /// Servers to profile [default: those of --base-url]
    #[arg(long, value_name = "URL", value_delimiter = ',', num_args = 1.., help_heading = "Profiling")]
    pub profile_urls: Option<Vec<String>>,
    /// Write a trace of the client's own into this directory
    #[arg(
        long,
        value_name = "DIR",
        env = "NANO_PROFILER_DIR",
        help_heading = "Profiling"
    )]
    pub trace_dir: Option<PathBuf>,
}

impl Options {
    /// These options, and where they say nothing, `below`.
    pub fn over(self, below: Options) -> Options {
        // Whoever names one kind of load means no other.
        let own_load = self.concurrency.is_some() || self.request_rate.is_some();
        let (concurrency, request_rate) = match own_load {
            true => (self.concurrency, self.request_rate),
            false => (below.concurrency, below.request_rate),
        };
        Options {
            base_url: self.base_url.or(below.base_url),
            model: self.model.or(below.model),
            api_key: self.api_key.or(below.api_key),
            api: self.api.or(below.api),
            no_stream: self.no_stream.or(below.no_stream),
            dataset: self.dataset.or(below.dataset),
            input_len: self.input_len.or(below.input_len),
            output_len: self.output_len.or(below.output_len),
            ignore_eos: self.ignore_eos.or(below.ignore_eos),
            temperature: self.temperature.or(below.temperature),
            extra_body: match (self.extra_body, below.extra_body) {
                (Some(mut above), Some(below)) => {
                    for (key, value) in below {
                        above.entry(key).or_insert(value);
                    }
                    Some(above)
                }
                (above, below) => above.or(below),
            },
            seed: self.seed.or(below.seed),
            concurrency,
            request_rate,
            arrivals: self.arrivals.or(below.arrivals),
            num_requests: self.num_requests.or(below.num_requests),
            duration: self.duration.or(below.duration),
            warmup_requests: self.warmup_requests.or(below.warmup_requests),
            max_connections: self.max_connections.or(below.max_connections),
            num_workers: self.num_workers.or(below.num_workers),
            connect_timeout: self.connect_timeout.or(below.connect_timeout),
            idle_timeout: self.idle_timeout.or(below.idle_timeout),
            timeout: self.timeout.or(below.timeout),
            goodput: self.goodput.or(below.goodput),
            output_dir: self.output_dir.or(below.output_dir),
            profile: self.profile.or(below.profile),
            profile_urls: self.profile_urls.or(below.profile_urls),
            trace_dir: self.trace_dir.or(below.trace_dir),
        }
    }
}

/// `30s`, `10m`, `500ms`; a number alone is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let (number, unit) = match text {
        _ if text.ends_with("ms") => (&text[..text.len() - 2], 1e-3),
        _ if text.ends_with('s') => (&text[..text.len() - 1], 1.0),
        _ if text.ends_with('m') => (&text[..text.len() - 1], 60.0),
        _ => (text, 1.0),
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * unit).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| format!("{text:?} is no time such as 30s, 10m or 500ms"))
}

/// `ttft:500`.
fn limit(text: &str) -> Result<Limit, String> {
    let pair = text.split_once(':').and_then(|(key, limit)| {
        let limit = limit.parse().ok()?;
        Some((key.to_owned(), limit))
    });
    pair.ok_or_else(|| format!("{text:?} is not of the form ttft:500"))
}

fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("no JSON object: {error}"))
}

/// A duration in a file: a text with a unit, or a number of milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Milliseconds(pub Duration);

impl<'de> Deserialize<'de> for Milliseconds {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Number(f64),
            Text(String),
        }
        let text = match Given::deserialize(deserializer)? {
            Given::Number(ms) => format!("{ms}ms"),
            Given::Text(text) => text,
        };
        duration(&text)
            .map(Milliseconds)
            .map_err(serde::de::Error::custom)
    }
}

/// Lengths in a file, in the words of the flag.
impl<'de> Deserialize<'de> for Lengths {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Lengths::from_str(&text).map_err(serde::de::Error::custom)
    }
}
