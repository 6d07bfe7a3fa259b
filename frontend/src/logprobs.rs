//! Log-probabilities as clients read them.

use crate::text::TextModel;
use nano_ipc::model_runner_output::TokenLogprobs;
use serde_json::{Map, Value, json};

/// JSON knows no infinity; clients read this as "impossible".
const LEAST: f32 = -9999.0;

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

/// A log-probability as a number that JSON has.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_nan() {
        LEAST
    } else {
        logprob.max(LEAST)
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
    pub fn completion_top(&self, token: &TokenLogprobs) -> Value {
        let mut top: Map<String, Value> = Map::new();
        let best = token.top.iter().take(self.top).copied();
        for (id, logprob) in best.chain([(token.token_id, token.logprob)]) {
            // Tokens with the same text: the more probable one stands.
            top.entry(self.token(id).0)
                .or_insert_with(|| json!(finite(logprob)));
        }
        top.into()
    }

    /// `prompt_logprobs` as vLLM has it: for each prompt token, by id, the
    /// token and the best alternatives; `null` for the first token.
    pub fn prompt(&self, tokens: &[TokenLogprobs]) -> Value {
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
            Value::Object(entries)
        };
        let rest = tokens.iter().map(entry);
        std::iter::once(Value::Null).chain(rest).collect()
    }
}
