//! How the next token of a sequence is chosen.

use serde::{Deserialize, Serialize};

/// How the next token of a sequence is chosen. Validated by the frontend; every
/// range below holds from there on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// `0.0` is greedy; otherwise logits are divided by it. `0.0..=2.0`.
    pub temperature: f32,
    /// Nucleus: keep the smallest set of tokens whose probability reaches it. `(0.0, 1.0]`.
    pub top_p: f32,
    /// Keep this many best tokens; `0` keeps all.
    pub top_k: u32,
    /// Drop tokens less probable than this times the best one's. `0.0..=1.0`.
    pub min_p: f32,
    /// Always set: the frontend draws one where the client gave none, so that
    /// a sequence's tokens depend on nothing else.
    pub seed: u64,
    /// Subtracted once from the logit of each token already generated. `-2.0..=2.0`.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from the logit of each token already generated. `-2.0..=2.0`.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or
    /// output; `1.0` is off. `(0.0, 2.0]`.
    pub repetition_penalty: f32,
    /// Added to the logits of these token ids, each within the vocabulary.
    pub logit_bias: Vec<(u32, f32)>,
    /// Report the sampled token's log-probability and those of this many best
    /// tokens (`0..=20`), computed from the unmodified logits.
    pub logprobs: Option<u32>,
    /// Report log-probabilities of the prompt's tokens, with this many best
    /// alternatives (`0..=20`).
    pub prompt_logprobs: Option<u32>,
    /// No token of `stop_token_ids` is sampled before this many were generated.
    pub min_tokens: u32,
    /// Tokens that end the sequence: the model's EOS ids (unless `ignore_eos`)
    /// and the client's own. They count as generated.
    pub stop_token_ids: Vec<u32>,
}

impl SamplingParams {
    /// The most probable token each time, and nothing else: every other wish
    /// has the value that changes nothing.
    pub fn greedy() -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
        }
    }
}
