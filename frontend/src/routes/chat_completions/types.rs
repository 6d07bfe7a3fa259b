//! `/v1/chat/completions` as types.

use crate::generation_options::GenerationOptions;
use crate::logprobs::PromptLogprobs;
use crate::prompt::Prompt;
use crate::text_delta::{StopReason, TextEnd};
use crate::usage::{TimingsMs, Usage};
use serde::Serialize;
use serde_json::Value;

/// A request that can be handed to the engine.
///
/// Holds: prompt and `max_tokens` (at least 1) fit the context.
#[derive(Clone, Debug)]
pub struct ChatCompletionRequest {
    /// The conversation after the chat template and the tokenizer.
    pub prompt: Prompt,
    /// Of each answer.
    pub max_tokens: u32,
    /// How answers are generated and sent.
    pub options: GenerationOptions,
    /// Role of the answers' messages.
    pub response_role: String,
    /// The answer begins with the last message's text (`echo`).
    pub echo: Option<String>,
}

/// An answer, or a chunk of one. `C` is its choice.
#[derive(Clone, Debug, Serialize)]
pub struct ChatCompletion<'a, C> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<C>,
    /// `Some(None)` is `null`: a chunk of a stream that ends with usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<TimingsMs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// One whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct ChatChoice {
    pub index: usize,
    pub message: Message,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<TextEnd>,
    pub stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What the model said.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    pub role: String,
    pub content: String,
    /// Always `null`: the model refuses in plain text.
    pub refusal: Option<String>,
}

/// A part of an answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChatChunkChoice {
    pub index: usize,
    pub delta: Delta,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<TextEnd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What is new of a message.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// Log-probabilities of a message's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    pub content: Vec<Value>,
    /// Always `null`, as [`Message::refusal`].
    pub refusal: Option<Vec<Value>>,
}
