//! Log-probabilities as clients read them.

use crate::api_error::ApiError;
use crate::generation_options::GenerationOptions;
use crate::prompt::Prompt;
use crate::text::TextModel;
use nano_ipc::model_runner_output::TokenLogprobs;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// JSON knows no infinity; clients read this as "impossible".
const LEAST: f32 = -9999.0;
/// Log-probabilities that one answer may have of prompts, and again of what is
/// generated: some 30 to 70 bytes each. A hundred thousand tokens with ten each
/// pass.
const MAX_ENTRIES: u64 = 1 << 20;

/// JSON that is written once and may be in several places of an answer: a small
/// part of what the same takes as a [`Value`]. Clones share it.
#[derive(Clone, Debug)]
pub struct Json(Arc<RawValue>);

/// One for each token of a prompt.
pub type PromptLogprobs = Vec<Option<Json>>;

impl Json {
    fn new(value: &Value) -> Json {
        // A `Value` has nothing that JSON refuses.
        let json = to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Json(json.into())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Checks that an answer which says `entries` log-probabilities of each prompt
/// token, `times` over, is of a size that can be answered.
///
/// # Errors
/// When it is larger.
pub fn check_prompt_entries(prompts: &[Prompt], times: u32, entries: u32) -> Result<(), ApiError> {
    let tokens = prompts.iter().map(|prompt| u64::from(prompt.len())).sum();
    check_entries("the prompt", tokens, times, entries)
}

/// Checks the same of the tokens that may be generated: at most so many for
/// each prompt.
///
/// # Errors
/// When it is larger.
pub fn check_answer_entries(
    max_tokens: &[u32],
    options: &GenerationOptions,
) -> Result<(), ApiError> {
    let tokens = max_tokens.iter().map(|tokens| u64::from(*tokens)).sum();
    let entries = options.sampling.logprobs.map_or(0, |top| top + 1);
    check_entries("the answer (max_tokens)", tokens, options.n, entries)
}

fn check_entries(of: &str, tokens: u64, times: u32, entries: u32) -> Result<(), ApiError> {
    let all = tokens
        .saturating_mul(times.into())
        .saturating_mul(entries.into());
    if all <= MAX_ENTRIES {
        return Ok(());
    }
    Err(ApiError::invalid(
        "logprobs",
        format!(
            "logprobs of {of}: {entries} a token of {tokens}, {times} times, are {all}, the limit \
             is {MAX_ENTRIES}; ask for fewer tokens, alternatives, answers or prompts at once"
        ),
    ))
}

/// Writes tokens' names and log-probabilities.
#[derive(Clone, Copy)]
pub struct LogprobWriter<'a> {
    /// Knows the tokens' texts.
    pub model: &'a TextModel,
    /// Name tokens `token_id:123`.
    pub tokens_as_ids: bool,
    /// Alternatives of each token.
    pub top: usize,
}

/// A log-probability as a number that JSON has. NaN and +infinity are none.
pub fn finite(logprob: f32) -> f32 {
    match logprob.is_finite() {
        true => logprob.max(LEAST),
        false => LEAST,
    }
}

impl LogprobWriter<'_> {
    /// The token's name, and its bytes.
    pub fn token(&self, token_id: u32) -> (String, Vec<u8>) {
        let (text, bytes) = self.model.token_text(token_id);
        match self.tokens_as_ids {
            true => (format!("token_id:{token_id}"), bytes),
            false => (text, bytes),
        }
    }

    /// An entry of a chat's `logprobs.content`.
    pub fn chat_entry(&self, token: &TokenLogprobs) -> Value {
        let entry = |id: u32, logprob: f32| {
            let (token, bytes) = self.token(id);
            json!({"token": token, "logprob": finite(logprob), "bytes": bytes})
        };
        let top: Vec<Value> = token
            .top
            .iter()
            .take(self.top)
            .map(|(id, logprob)| entry(*id, *logprob))
            .collect();
        let mut value = entry(token.token_id, token.logprob);
        value["top_logprobs"] = top.into();
        value
    }

    /// An entry of a completion's `top_logprobs`: names and values of the best
    /// tokens, and of the chosen one.
    pub fn completion_top(&self, token: &TokenLogprobs) -> Json {
        let mut top: Map<String, Value> = Map::new();
        let best = token.top.iter().take(self.top).copied();
        for (id, logprob) in best.chain([(token.token_id, token.logprob)]) {
            // Tokens with the same text: the more probable one stands.
            top.entry(self.token(id).0)
                .or_insert_with(|| json!(finite(logprob)));
        }
        Json::new(&top.into())
    }

    /// `prompt_logprobs` as vLLM has it: for each prompt token, by id, the
    /// token and the best alternatives; `null` for the first token.
    pub fn prompt(&self, tokens: &[TokenLogprobs]) -> PromptLogprobs {
        let entry = |token: &TokenLogprobs| {
            let mut entries = Map::new();
            let mut add = |id: u32, logprob: f32, rank: u32| {
                entries.entry(id.to_string()).or_insert_with(|| {
                    json!({
                        "logprob": finite(logprob),
                        "rank": rank,
                        "decoded_token": self.model.token_text(id).0,
                    })
                });
            };
            add(token.token_id, token.logprob, token.rank);
            for (rank, (id, logprob)) in (1..).zip(token.top.iter().take(self.top)) {
                add(*id, *logprob, rank);
            }
            Some(Json::new(&entries.into()))
        };
        let rest = tokens.iter().map(entry);
        std::iter::once(None).chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_log_probability_is_a_number_in_json() {
        for (logprob, written) in [
            (-0.5, "-0.5"),
            (0.0, "0.0"),
            (f32::MIN, "-9999.0"),
            (f32::NEG_INFINITY, "-9999.0"),
            (f32::INFINITY, "-9999.0"),
            (f32::NAN, "-9999.0"),
        ] {
            assert_eq!(json!(finite(logprob)).to_string(), written, "{logprob}");
        }
    }
}
