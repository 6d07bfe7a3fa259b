//! What a step produced, as it crosses from a worker to the core.

use crate::scheduler_output::{SequenceId, StepId};
use serde::{Deserialize, Serialize};

/// Log-probability (natural log) of a chosen token, its rank, and the best
/// alternatives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The chosen (or prompt's) token.
    pub token_id: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// Its place among all tokens by probability, from 1.
    pub rank: u32,
    /// Best tokens, most probable first; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// A token sampled for one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledToken {
    /// Which sequence.
    pub id: SequenceId,
    /// Which token.
    pub token_id: u32,
    /// Where the sequence asked for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// What a step produced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRunnerOutput {
    /// The plan's step.
    pub step_id: StepId,
    /// One for each scheduled sequence that reached its last known token, in
    /// the plan's order.
    pub sampled: Vec<SampledToken>,
    /// Log-probabilities of the prompt tokens that this step computed, for
    /// sequences that asked: one for the token after each computed position
    /// that lies within the prompt.
    pub prompt_logprobs: Vec<(SequenceId, Vec<TokenLogprobs>)>,
    /// Sequences that failed alone, with the reason. The worker computes them
    /// no more: a later plan that names one, because it was made before the
    /// core knew, finds it here again, until a plan's `finished` names it.
    pub failed: Vec<(SequenceId, String)>,
    /// Sequences that the worker keeps after the step.
    pub num_sequences: u32,
}
