//! What is to be done, validated once: nothing here can be wrong any more.

use crate::lengths::Lengths;
use crate::options::{Api, Arrivals, Options};
use crate::profiling::Engine;
use crate::summary::goodput::{Goodput, UnknownLimit};
use crate::url::{NotAUrl, Url};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// One run of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// Bases of the API, one at least, which share the load in turn.
    pub endpoints: Vec<Url>,
    /// The model's name; `None`: the first that the server lists.
    pub model: Option<String>,
    /// Never shown.
    #[serde(serialize_with = "redacted")]
    pub api_key: Option<String>,
    /// Which endpoint.
    pub api: Api,
    /// Whether answers are streamed.
    pub stream: bool,
    /// Where requests come from.
    pub dataset: Dataset,
    /// Most tokens of an answer; `None`: what the dataset says of each.
    pub output_len: Option<Lengths>,
    /// Parameters of every request.
    pub parameters: Map<String, Value>,
    /// Of prompts, lengths, order and arrivals.
    pub seed: u64,
    /// Requests before the first load, which are not measured.
    pub warmup_requests: u64,
    /// What is measured, one after the other; one at least.
    pub loads: Vec<Load>,
    /// How much of each.
    pub extent: Extent,
    /// How long to wait.
    pub timeouts: Timeouts,
    /// Limits that good requests keep.
    pub goodput: Goodput,
    /// Whom to have profiled.
    pub profiling: Option<Profiling>,
    /// Where the client's own trace goes.
    pub trace_dir: Option<PathBuf>,
    /// Where results go.
    pub output_dir: PathBuf,
    /// Threads of the event loop.
    pub num_workers: usize,
}

/// Where requests come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dataset {
    /// Random words.
    Synthetic {
        /// How many.
        input_len: Lengths,
    },
    /// Lines of a file.
    Jsonl {
        /// Which.
        path: PathBuf,
    },
}

/// One load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub enum Load {
    /// As soon as one request ends, the next is sent.
    Closed {
        /// Requests at once.
        concurrency: usize,
    },
    /// Requests are due whatever the server does.
    Open {
        /// Requests a second.
        rate: f64,
        /// How they are spaced.
        arrivals: Arrivals,
        /// Most requests at once.
        max_connections: usize,
    },
}

impl Load {
    /// Most requests at once.
    pub fn slots(&self) -> usize {
        match *self {
            Load::Closed { concurrency } => concurrency,
            Load::Open {
                max_connections, ..
            } => max_connections,
        }
    }

    /// What a sweep is drawn over.
    pub fn label(&self) -> String {
        match self {
            Load::Closed { concurrency } => format!("concurrency {concurrency}"),
            Load::Open { rate, .. } => format!("{rate} requests/s"),
        }
    }
}

/// How long a load is kept up: whichever ends first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Extent {
    /// So many requests.
    pub requests: Option<u64>,
    /// No request is due later.
    #[serde(rename = "duration_s", serialize_with = "optional_seconds")]
    pub duration: Option<Duration>,
}

/// How long to wait for a server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timeouts {
    /// To connect.
    #[serde(rename = "connect_s", serialize_with = "seconds")]
    pub connect: Duration,
    /// From one byte to the next.
    #[serde(rename = "idle_s", serialize_with = "seconds")]
    pub idle: Duration,
    /// From the request's start to its end.
    #[serde(rename = "total_s", serialize_with = "seconds")]
    pub total: Duration,
}

/// Whose profiler is started and stopped.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profiling {
    /// What kind of server it is.
    pub engine: Engine,
    /// What the triggers' addresses are derived from.
    pub urls: Vec<Url>,
}

/// Why options make no run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Nobody to ask.
    #[error("--base-url (endpoint_config.endpoints): which server?")]
    NoServer,
    /// An address that is none.
    #[error("--base-url, --profile-urls: {0}")]
    Url(#[from] NotAUrl),
    /// A limit that is not measured.
    #[error("--goodput: {0}")]
    Goodput(#[from] UnknownLimit),
    /// A number out of its range.
    #[error("{0}: {1}")]
    Range(&'static str, &'static str),
    /// A parameter that has a flag of its own.
    #[error("--extra-body: {0:?} is set by nano-bench itself; use its flags")]
    Reserved(String),
    /// Both kinds of load.
    #[error("concurrency (a closed loop) and request rate (an open loop) exclude each other")]
    TwoLoads,
}

/// Keys of a request that flags decide.
const RESERVED: [&str; 6] = [
    "model",
    "messages",
    "prompt",
    "stream",
    "max_tokens",
    "max_completion_tokens",
];

/// Loads that one run measures at most.
const MAX_LOADS: usize = 64;
/// Requests at once at most: a connection each.
const MAX_SLOTS: usize = 16384;

impl TryFrom<Options> for Config {
    type Error = ConfigError;

    fn try_from(options: Options) -> Result<Config, ConfigError> {
        let urls = |texts: Vec<String>| {
            let urls = texts.iter().map(|text| text.parse::<Url>());
            urls.collect::<Result<Vec<Url>, NotAUrl>>()
        };
        let loads = loads(&options)?;
        let given = urls(options.base_url.unwrap_or_default())?;
        if given.is_empty() {
            return Err(ConfigError::NoServer);
        }
        let mut parameters = Map::new();
        parameters.insert(
            "temperature".into(),
            json!(options.temperature.unwrap_or(0.0)),
        );
        if options.ignore_eos.unwrap_or(false) {
            parameters.insert("ignore_eos".into(), json!(true));
        }
        for (key, value) in options.extra_body.unwrap_or_default() {
            if RESERVED.contains(&key.as_str()) {
                return Err(ConfigError::Reserved(key));
            }
            parameters.insert(key, value);
        }
        let extent = Extent {
            requests: match (options.num_requests, options.duration) {
                (Some(0), _) => return Err(ConfigError::Range("--num-requests", "at least 1")),
                (None, None) => Some(100),
                (requests, _) => requests,
            },
            duration: options.duration,
        };
        let profiling = match (options.profile, options.profile_urls) {
            (Some(engine), urls_given) => Some(Profiling {
                engine,
                urls: urls_given.map_or(Ok(given.clone()), urls)?,
            }),
            (None, Some(_)) => {
                return Err(ConfigError::Range("--profile-urls", "needs --profile"));
            }
            (None, None) => None,
        };
        let num_workers = options.num_workers.unwrap_or(1);
        if !(1..=256).contains(&num_workers) {
            return Err(ConfigError::Range("--num-workers", "from 1 to 256"));
        }
        let output_len = match &options.dataset {
            // A synthetic prompt says nothing of its answer.
            None => Some(options.output_len.unwrap_or(Lengths::Fixed(128))),
            Some(_) => options.output_len,
        };
        Ok(Config {
            endpoints: given.iter().map(Url::api_base).collect(),
            model: options.model,
            api_key: options.api_key.filter(|key| !key.is_empty()),
            api: options.api.unwrap_or(Api::Chat),
            stream: !options.no_stream.unwrap_or(false),
            dataset: match options.dataset {
                Some(path) => Dataset::Jsonl { path },
                None => Dataset::Synthetic {
                    input_len: options.input_len.unwrap_or(Lengths::Fixed(128)),
                },
            },
            output_len,
            parameters,
            seed: options.seed.unwrap_or(42),
            warmup_requests: options.warmup_requests.unwrap_or(0),
            loads,
            extent,
            timeouts: Timeouts {
                connect: options.connect_timeout.unwrap_or(Duration::from_secs(10)),
                idle: options.idle_timeout.unwrap_or(Duration::from_secs(60)),
                total: options.timeout.unwrap_or(Duration::from_secs(600)),
            },
            goodput: Goodput::new(options.goodput.unwrap_or_default())?,
            profiling,
            trace_dir: options.trace_dir.filter(|dir| !dir.as_os_str().is_empty()),
            output_dir: options.output_dir.unwrap_or_else(|| {
                let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
                PathBuf::from(format!("bench-results/{now}"))
            }),
            num_workers,
        })
    }
}

fn loads(options: &Options) -> Result<Vec<Load>, ConfigError> {
    let max_connections = options.max_connections.unwrap_or(4096);
    if !(1..=MAX_SLOTS).contains(&max_connections) {
        return Err(ConfigError::Range("--max-connections", "from 1 to 16384"));
    }
    let loads: Vec<Load> = match (&options.concurrency, &options.request_rate) {
        (Some(_), Some(_)) => return Err(ConfigError::TwoLoads),
        (None, Some(rates)) => rates
            .iter()
            .map(|&rate| Load::Open {
                rate,
                arrivals: options.arrivals.unwrap_or(Arrivals::Poisson),
                max_connections,
            })
            .collect(),
        (levels, None) => levels
            .as_deref()
            .unwrap_or(&[1])
            .iter()
            .map(|&concurrency| Load::Closed { concurrency })
            .collect(),
    };
    if !(1..=MAX_LOADS).contains(&loads.len()) {
        return Err(ConfigError::Range("load", "from 1 to 64 loads in one run"));
    }
    for load in &loads {
        match load {
            Load::Closed { concurrency } if !(1..=MAX_SLOTS).contains(concurrency) => {
                return Err(ConfigError::Range("--concurrency", "from 1 to 16384"));
            }
            Load::Open { rate, .. } if !(*rate >= 1e-3 && *rate <= 1e5) => {
                return Err(ConfigError::Range("--request-rate", "from 0.001 to 100000"));
            }
            _ => {}
        }
    }
    Ok(loads)
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

fn optional_seconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(|d| d.as_secs_f64()).serialize(serializer)
}

fn redacted<S: Serializer>(key: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    key.as_ref().map(|_| "(not shown)").serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_with_the_flag_s_name() {
        let options = || Options {
            base_url: Some(vec!["http://h".to_owned()]),
            ..Options::default()
        };
        let extra = serde_json::from_str(r#"{"model": "x"}"#).expect("JSON");
        for (options, why) in [
            (Options::default(), "--base-url"),
            (
                Options {
                    base_url: Some(vec!["h".to_owned()]),
                    ..options()
                },
                "http[s]://",
            ),
            (
                Options {
                    concurrency: Some(vec![0]),
                    ..options()
                },
                "--concurrency",
            ),
            (
                Options {
                    request_rate: Some(vec![f64::NAN]),
                    ..options()
                },
                "--request-rate",
            ),
            (
                Options {
                    num_requests: Some(0),
                    ..options()
                },
                "--num-requests",
            ),
            (
                Options {
                    max_connections: Some(0),
                    ..options()
                },
                "--max-connections",
            ),
            (
                Options {
                    num_workers: Some(0),
                    ..options()
                },
                "--num-workers",
            ),
            (
                Options {
                    profile_urls: Some(vec![]),
                    ..options()
                },
                "--profile",
            ),
            (
                Options {
                    extra_body: Some(extra),
                    ..options()
                },
                "\"model\"",
            ),
            (
                Options {
                    goodput: Some(vec![("x".to_owned(), 1.0)]),
                    ..options()
                },
                "--goodput",
            ),
            (
                Options {
                    goodput: Some(vec![("itl".to_owned(), 0.0)]),
                    ..options()
                },
                "--goodput",
            ),
        ] {
            let error = Config::try_from(options).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
