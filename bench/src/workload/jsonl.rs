//! A dataset: one JSON object a line, each a request.
//!
//! - `messages`: OpenAI's, content as text or as parts;
//! - or `conversations`: ShareGPT's turns of `from` (system, human, gpt) and
//!   `value`; asked is what stands up to the last human turn;
//! - or `prompt`: a text;
//! - `images`: paths relative to the file, data URLs or http(s) URLs, put
//!   before the text of the last user message; so are paths in image parts;
//! - `max_tokens` or `output_len`: the longest answer.

use super::{DatasetError, Prompt, image};
use crate::options::Api;
use crate::workload::random::{Purpose, random};
use rand::seq::SliceRandom;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) prompt: Prompt,
    pub(super) output_len: Option<u32>,
}

/// All of them, at least one, in an order that the seed decides.
#[derive(Debug)]
pub(super) struct Samples(Vec<Sample>);

#[derive(Deserialize)]
struct Line {
    messages: Option<Vec<Value>>,
    conversations: Option<Vec<Turn>>,
    prompt: Option<String>,
    #[serde(default)]
    images: Vec<String>,
    max_tokens: Option<u32>,
    output_len: Option<u32>,
}

#[derive(Deserialize)]
struct Turn {
    from: String,
    value: String,
}

impl Samples {
    pub(super) fn read(path: &Path, api: Api, seed: u64) -> Result<Samples, DatasetError> {
        let wrong = |line: Option<usize>, why: String| DatasetError {
            path: path.to_owned(),
            line,
            why,
        };
        let text = fs::read_to_string(path).map_err(|error| wrong(None, error.to_string()))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let lines = text.lines().enumerate();
        let mut samples = lines
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(place, line)| sample(line, api, dir).map_err(|why| wrong(Some(place + 1), why)))
            .collect::<Result<Vec<Sample>, DatasetError>>()?;
        if samples.is_empty() {
            return Err(wrong(None, "holds no request".to_owned()));
        }
        samples.shuffle(&mut random(seed, Purpose::Order, 0));
        Ok(Samples(samples))
    }

    /// The `index`th; after the last comes the first.
    pub(super) fn get(&self, index: u64) -> &Sample {
        &self.0[(index % self.0.len() as u64) as usize]
    }
}

fn sample(line: &str, api: Api, dir: &Path) -> Result<Sample, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let output_len = line.max_tokens.or(line.output_len);
    if output_len == Some(0) {
        return Err("an answer of no tokens".to_owned());
    }
    let mut messages = match (line.messages, line.conversations, line.prompt) {
        (Some(messages), None, None) => messages,
        (None, Some(turns), None) => conversation(turns)?,
        (None, None, Some(prompt)) => vec![json!({"role": "user", "content": prompt})],
        _ => return Err("needs one of messages, conversations and prompt".to_owned()),
    };
    if messages.is_empty() {
        return Err("no messages".to_owned());
    }
    for message in &mut messages {
        image::embed(message, dir)?;
    }
    image::attach(&mut messages, &line.images, dir)?;
    let prompt = match api {
        Api::Chat => Prompt::Messages(messages),
        Api::Completions => Prompt::Prompt(as_text(&messages)?),
    };
    Ok(Sample { prompt, output_len })
}

/// ShareGPT's turns up to the last human one, as messages.
fn conversation(turns: Vec<Turn>) -> Result<Vec<Value>, String> {
    let messages = turns.into_iter().map(|turn| {
        let role = match turn.from.as_str() {
            "system" => "system",
            "human" | "user" => "user",
            "gpt" | "chatgpt" | "bing" | "bard" | "assistant" => "assistant",
            other => return Err(format!("a turn from {other:?}")),
        };
        Ok(json!({"role": role, "content": turn.value}))
    });
    let mut messages = messages.collect::<Result<Vec<Value>, String>>()?;
    let last = messages
        .iter()
        .rposition(|message| message["role"] == "user");
    messages.truncate(last.ok_or("no human turn")? + 1);
    Ok(messages)
}

/// What a completion is asked for: the messages' texts, a line each.
fn as_text(messages: &[Value]) -> Result<String, String> {
    let texts = messages.iter().map(|message| match &message["content"] {
        Value::String(text) => Ok(text.as_str()),
        _ => Err("completions take no images and parts; use --api chat".to_owned()),
    });
    Ok(texts.collect::<Result<Vec<&str>, String>>()?.join("\n"))
}
