//! The requests: what each says is a function of seed, purpose and number
//! alone, so neither the order in which they are sent nor the server changes it.

mod image;
mod jsonl;
pub mod random;
mod synthetic;

use crate::config::{Config, Dataset};
use crate::lengths::Lengths;
use crate::options::Api;
use bytes::Bytes;
use jsonl::Samples;
use random::{Purpose, Random, random};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Tokens of an answer where neither flags nor dataset say.
const DEFAULT_OUTPUT_LEN: u32 = 128;

/// Makes requests.
#[derive(Debug)]
pub struct Workload {
    api: Api,
    /// What every body holds.
    common: Map<String, Value>,
    source: Source,
    output_len: Option<Lengths>,
    seed: u64,
}

#[derive(Debug)]
enum Source {
    Synthetic(Lengths),
    Jsonl(Samples),
}

/// Why a dataset gives no requests.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {why}", path.display(), line.map_or(String::new(), |line| format!(":{line}")))]
pub struct DatasetError {
    path: PathBuf,
    /// `None`: the file as a whole.
    line: Option<usize>,
    why: String,
}

/// What a request says, before it is JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Prompt {
    Messages(Vec<Value>),
    Prompt(String),
}

/// A body in the order in which people read them.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    common: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(flatten)]
    prompt: &'a Prompt,
}

impl Workload {
    /// The workload of a run against this model.
    ///
    /// # Errors
    /// When the dataset cannot be read or holds something else.
    pub fn new(config: &Config, model: &str) -> Result<Workload, DatasetError> {
        let mut common = Map::new();
        common.insert("model".into(), json!(model));
        common.insert("stream".into(), json!(config.stream));
        if config.stream {
            common.insert("stream_options".into(), json!({"include_usage": true}));
        }
        for (key, value) in &config.parameters {
            common.insert(key.clone(), value.clone());
        }
        Ok(Workload {
            api: config.api,
            common,
            source: match &config.dataset {
                Dataset::Synthetic { input_len } => Source::Synthetic(input_len.clone()),
                Dataset::Jsonl { path } => {
                    Source::Jsonl(Samples::read(path, config.api, config.seed)?)
                }
            },
            output_len: config.output_len.clone(),
            seed: config.seed,
        })
    }

    /// The body of the `index`th request of a purpose.
    pub fn body(&self, purpose: Purpose, index: u64) -> Bytes {
        let mut random = random(self.seed, purpose, index);
        match &self.source {
            Source::Synthetic(lengths) => {
                let text = synthetic::text(lengths.draw(&mut random), &mut random);
                let prompt = match self.api {
                    Api::Chat => Prompt::Messages(vec![json!({"role": "user", "content": text})]),
                    Api::Completions => Prompt::Prompt(text),
                };
                self.encode(&prompt, None, &mut random)
            }
            Source::Jsonl(samples) => {
                let sample = samples.get(index);
                self.encode(&sample.prompt, sample.output_len, &mut random)
            }
        }
    }

    fn encode(&self, prompt: &Prompt, of_sample: Option<u32>, random: &mut Random) -> Bytes {
        let drawn = self.output_len.as_ref().map(|lengths| lengths.draw(random));
        let most = Some(drawn.or(of_sample).unwrap_or(DEFAULT_OUTPUT_LEN));
        let (max_completion_tokens, max_tokens) = match self.api {
            Api::Chat => (most, None),
            Api::Completions => (None, most),
        };
        let body = Body {
            common: &self.common,
            max_completion_tokens,
            max_tokens,
            prompt,
        };
        // Maps with texts as keys always are JSON.
        serde_json::to_vec(&body).unwrap_or_default().into()
    }
}

#[cfg(test)]
mod tests;
