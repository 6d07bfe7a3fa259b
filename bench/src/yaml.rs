//! Options in a YAML file. Keys that MLCommons' `endpoints` has too mean the
//! same here; a key that means nothing here is refused by its name.

use crate::lengths::Lengths;
use crate::options::{Api, Arrivals, Milliseconds, Options};
use crate::profiling::Engine;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Why a file gives no options.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct YamlError {
    path: String,
    why: String,
}

/// Reads a file; the path of a dataset is relative to it.
///
/// # Errors
/// When it cannot be read, or says what is not known.
pub fn read(path: &Path) -> Result<Options, YamlError> {
    let wrong = |why: String| YamlError {
        path: path.display().to_string(),
        why,
    };
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let dir = path.parent().unwrap_or(Path::new(""));
    parse(&text, dir).map_err(wrong)
}

fn parse(text: &str, dir: &Path) -> Result<Options, String> {
    let file: File = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    file.into_options(dir)
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    endpoint_config: EndpointConfig,
    model_params: ModelParams,
    datasets: Vec<DatasetEntry>,
    settings: Settings,
    report_dir: Option<PathBuf>,
    trace_dir: Option<PathBuf>,
    goodput: BTreeMap<String, f64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EndpointConfig {
    endpoints: Option<Vec<String>>,
    api_key: Option<String>,
    api_type: Option<ApiType>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ApiType {
    Openai,
    OpenaiCompletions,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ModelParams {
    name: Option<String>,
    temperature: Option<f64>,
    max_new_tokens: Option<u32>,
    streaming: Option<Streaming>,
    ignore_eos: Option<bool>,
    input_len: Option<Lengths>,
    output_len: Option<Lengths>,
    extra_body: Option<Map<String, Value>>,
    // Sent as they are.
    seed: Option<Value>,
    top_k: Option<Value>,
    top_p: Option<Value>,
    repetition_penalty: Option<Value>,
    presence_penalty: Option<Value>,
    frequency_penalty: Option<Value>,
    chat_template_kwargs: Option<Value>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Streaming {
    Auto,
    On,
    Off,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DatasetEntry {
    path: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    runtime: Runtime,
    load_pattern: LoadPattern,
    client: ClientSettings,
    warmup: WarmUp,
    profiling: ProfilingSettings,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Runtime {
    max_duration_ms: Option<Milliseconds>,
    n_samples_to_issue: Option<u64>,
    scheduler_random_seed: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LoadPattern {
    r#type: Option<Pattern>,
    target_qps: Option<OneOrMore<f64>>,
    target_concurrency: Option<OneOrMore<usize>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Pattern {
    Concurrency,
    Poisson,
    Constant,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> From<OneOrMore<T>> for Vec<T> {
    fn from(given: OneOrMore<T>) -> Vec<T> {
        match given {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(more) => more,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ClientSettings {
    num_workers: Option<usize>,
    max_connections: Option<usize>,
    connect_timeout_ms: Option<Milliseconds>,
    idle_timeout_ms: Option<Milliseconds>,
    timeout_ms: Option<Milliseconds>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WarmUp {
    enabled: Option<bool>,
    n_requests: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProfilingSettings {
    engine: Option<Engine>,
    urls: Option<Vec<String>>,
}

impl File {
    fn into_options(self, dir: &Path) -> Result<Options, String> {
        let Settings {
            runtime,
            load_pattern,
            client,
            warmup,
            profiling,
        } = self.settings;
        let model = self.model_params;
        if self.datasets.len() > 1 {
            return Err("datasets: one at most".to_owned());
        }
        if model.max_new_tokens.is_some() && model.output_len.is_some() {
            return Err("model_params: max_new_tokens or output_len, not both".to_owned());
        }
        let output_len = model
            .max_new_tokens
            .map(|tokens| tokens.to_string().parse());
        let output_len = output_len
            .transpose()
            .map_err(|error: crate::lengths::NoLengths| {
                format!("model_params.max_new_tokens: {error}")
            })?;
        let (wants_rate, arrivals) = match load_pattern.r#type {
            None => (None, None),
            Some(Pattern::Concurrency) => (Some(false), None),
            Some(Pattern::Poisson) => (Some(true), Some(Arrivals::Poisson)),
            Some(Pattern::Constant) => (Some(true), Some(Arrivals::Constant)),
        };
        let given = match (&load_pattern.target_qps, &load_pattern.target_concurrency) {
            (Some(_), None) => Some(true),
            (None, Some(_)) => Some(false),
            (None, None) => None,
            (Some(_), Some(_)) => {
                return Err(
                    "settings.load_pattern: target_qps or target_concurrency, not both".into(),
                );
            }
        };
        if wants_rate.is_some() && wants_rate != given {
            return Err(
                "settings.load_pattern: type poisson or constant goes with target_qps, concurrency with target_concurrency"
                    .into(),
            );
        }
        Ok(Options {
            base_url: self.endpoint_config.endpoints,
            model: model.name.clone(),
            api_key: self.endpoint_config.api_key,
            api: self.endpoint_config.api_type.map(|api| match api {
                ApiType::Openai => Api::Chat,
                ApiType::OpenaiCompletions => Api::Completions,
            }),
            no_stream: model.streaming.map(|streaming| streaming == Streaming::Off),
            dataset: self.datasets.first().map(|dataset| dir.join(&dataset.path)),
            input_len: model.input_len.clone(),
            output_len: output_len.or(model.output_len.clone()),
            ignore_eos: model.ignore_eos,
            temperature: model.temperature,
            extra_body: model.extra_body(),
            seed: runtime.scheduler_random_seed,
            concurrency: load_pattern.target_concurrency.map(Vec::from),
            request_rate: load_pattern.target_qps.map(Vec::from),
            arrivals,
            num_requests: runtime.n_samples_to_issue,
            duration: runtime.max_duration_ms.map(|given| given.0),
            warmup_requests: match warmup.enabled {
                Some(false) => Some(0),
                _ => warmup.n_requests,
            },
            max_connections: client.max_connections,
            num_workers: client.num_workers,
            connect_timeout: client.connect_timeout_ms.map(|given| given.0),
            idle_timeout: client.idle_timeout_ms.map(|given| given.0),
            timeout: client.timeout_ms.map(|given| given.0),
            goodput: (!self.goodput.is_empty()).then(|| self.goodput.into_iter().collect()),
            output_dir: self.report_dir,
            profile: profiling.engine,
            profile_urls: profiling.urls,
            trace_dir: self.trace_dir,
        })
    }
}

impl ModelParams {
    /// The parameters that are sent as they are.
    fn extra_body(self) -> Option<Map<String, Value>> {
        let mut body = self.extra_body.unwrap_or_default();
        let named = [
            ("seed", self.seed),
            ("top_k", self.top_k),
            ("top_p", self.top_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("chat_template_kwargs", self.chat_template_kwargs),
        ];
        for (key, value) in named {
            if let Some(value) = value {
                body.insert(key.to_owned(), value);
            }
        }
        (!body.is_empty()).then_some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Load};
    use serde_json::json;
    use std::time::Duration;

    fn read(text: &str) -> Result<Options, String> {
        parse(text, Path::new("/dir"))
    }

    const WHOLE: &str = "
endpoint_config:
  endpoints: [http://a:1, http://b:2/v1]
  api_key: k
  api_type: openai_completions
model_params:
  name: m
  temperature: 0.5
  top_p: 0.9
  max_new_tokens: 64
  streaming: 'off'
  ignore_eos: true
datasets:
  - path: prompts.jsonl
settings:
  runtime: {max_duration_ms: 10m, n_samples_to_issue: 7, scheduler_random_seed: 5}
  load_pattern: {type: poisson, target_qps: [1, 2.5]}
  client: {num_workers: 2, max_connections: 9, timeout_ms: 1500}
  warmup: {n_requests: 3}
  profiling: {engine: vllm, urls: [http://c:3]}
report_dir: out
goodput: {ttft: 500}
";

    #[test]
    fn a_file_says_all_that_flags_say() {
        let config = read(WHOLE).map(Config::try_from);
        let config = config
            .unwrap_or_else(|error| panic!("{error}"))
            .expect("good");
        let shown = serde_json::to_value(&config).expect("JSON");
        assert_eq!(
            shown,
            json!({
                "endpoints": ["http://a:1/v1", "http://b:2/v1"],
                "model": "m", "api_key": "(not shown)", "api": "completions", "stream": false,
                "dataset": {"jsonl": {"path": "/dir/prompts.jsonl"}},
                "output_len": "64",
                "parameters": {"temperature": 0.5, "ignore_eos": true, "top_p": 0.9},
                "seed": 5, "warmup_requests": 3,
                "loads": [
                    {"loop": "open", "rate": 1.0, "arrivals": "poisson", "max_connections": 9},
                    {"loop": "open", "rate": 2.5, "arrivals": "poisson", "max_connections": 9},
                ],
                "extent": {"requests": 7, "duration_s": 600.0},
                "timeouts": {"connect_s": 10.0, "idle_s": 60.0, "total_s": 1.5},
                "goodput": {"ttft": 500.0, "itl": null, "tpot": null, "e2e": null},
                "profiling": {"engine": "vllm", "urls": ["http://c:3"]},
                "trace_dir": null, "output_dir": "out", "num_workers": 2,
            })
        );
    }

    #[test]
    fn flags_stand_over_the_file() {
        let flags = Options {
            concurrency: Some(vec![4]),
            duration: Some(Duration::from_secs(1)),
            ..Options::default()
        };
        let file = read(WHOLE).unwrap_or_else(|error| panic!("{error}"));
        let config = Config::try_from(flags.over(file)).expect("good");
        assert_eq!(config.loads, [Load::Closed { concurrency: 4 }]);
        assert_eq!(config.extent.duration, Some(Duration::from_secs(1)));
        assert_eq!(config.model.as_deref(), Some("m"));
    }

    #[test]
    fn what_means_nothing_is_refused_by_its_name() {
        for (text, why) in [
            ("settings: {profiling: {engine: other}}", "other"),
            ("settings: {load_pattern: {type: burst}}", "burst"),
            ("settings: {load_pattern: {target_rate: 1}}", "target_rate"),
            ("settings: {load_pattern: {type: poisson}}", "target_qps"),
            (
                "settings: {load_pattern: {target_qps: 1, target_concurrency: 1}}",
                "not both",
            ),
            ("model_params: {max_new_tokens: 0}", "max_new_tokens"),
            ("model_params: {input_len: 5..2}", "5..2"),
            ("settings: {runtime: {max_duration_ms: soon}}", "soon"),
            ("datasets: [{path: a}, {path: b}]", "one at most"),
            ("endpoint_config: [", "line 1"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
