//! `/v1/completions` as types.

use crate::generation_options::GenerationOptions;
use crate::logprobs::{Json, PromptLogprobs};
use crate::prompt::Prompt;
use crate::text_delta::{StopReason, TextEnd};
use crate::usage::{TimingsMs, Usage};
use serde::Serialize;

/// A request that can be handed to the engine.
///
/// Holds: `prompts` is not empty, and as long as `max_tokens`; each prompt and
/// its `max_tokens` (at least 1) fit the context.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// Each is answered `options.n` times.
    pub prompts: Vec<Prompt>,
    /// For each prompt.
    pub max_tokens: Vec<u32>,
    /// How answers are generated and sent.
    pub options: GenerationOptions,
    /// The answer begins with the prompt.
    pub echo: bool,
    /// `max_tokens` was 0: the answer is the prompt alone. The engine generates
    /// one token, because it must, and nobody sees it.
    pub only_echo: bool,
    /// `prompt_logprobs` was asked for, not only what `echo` needs.
    pub prompt_logprobs: Option<u32>,
}

/// An answer, or a chunk of one.
#[derive(Clone, Debug, Serialize)]
pub struct Completion<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<CompletionChoice>,
    /// `Some(None)` is `null`: a chunk of a stream that ends with usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<TimingsMs>,
}

/// One sequence's part.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CompletionChoice {
    pub index: usize,
    pub text: String,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<TextEnd>,
    pub stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Parallel lists, one entry a token.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CompletionLogprobs {
    pub text_offset: Vec<usize>,
    pub token_logprobs: Vec<Option<f32>>,
    pub tokens: Vec<String>,
    pub top_logprobs: Vec<Option<Json>>,
}
