//! Logits to tokens.
//!
//! A sampled token depends on its row of logits, its sequence, and the
//! sequence's seed, and on nothing else of the batch.

mod candidates;
mod logprobs;
mod penalties;
mod random;

pub use logprobs::{LOWEST_LOGPROB, token_logprobs};
pub use random::uniform;

use crate::kernels;
use crate::sequence::SequenceState;
use candidates::Candidates;
use nano_ipc::sampling_params::SamplingParams;
use penalties::Occurrences;

/// Why no token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// Every logit is minus infinity or no number.
    #[error("no token has a finite logit: the model's output is broken, or every token is banned")]
    NoFiniteLogit,
}

/// Chooses tokens. Holds scratch memory alone: which of several samplers is
/// used makes no difference.
#[derive(Debug, Default)]
pub struct Sampler {
    logits: Vec<f32>,
    occurrences: Occurrences,
    candidates: Candidates,
}

impl Sampler {
    /// The next token of a sequence, given the logits behind its last one.
    ///
    /// In order: logit bias, stop tokens banned before `min_tokens`, penalties,
    /// temperature, then `top_k`, `min_p` and `top_p`, each over what the one
    /// before left.
    ///
    /// # Errors
    /// When no token is left to choose.
    pub fn sample(&mut self, logits: &[f32], sequence: &SequenceState) -> Result<u32, SampleError> {
        let params = &sequence.sampling;
        let logits = if changes_logits(sequence) {
            self.logits.clear();
            self.logits.extend_from_slice(logits);
            self.change_logits(sequence);
            &self.logits
        } else {
            logits
        };
        if params.temperature == 0.0 {
            return greedy(logits).ok_or(SampleError::NoFiniteLogit);
        }
        let number = uniform(params.seed, sequence.token_ids.len() as u64);
        self.candidates
            .choose(logits, params, number)
            .ok_or(SampleError::NoFiniteLogit)
    }

    fn change_logits(&mut self, sequence: &SequenceState) {
        let params = &sequence.sampling;
        for &(token_id, bias) in &params.logit_bias {
            if let Some(logit) = self.logits.get_mut(token_id as usize) {
                *logit += bias;
            }
        }
        if bans_stop_tokens(sequence) {
            for &token_id in &params.stop_token_ids {
                if let Some(logit) = self.logits.get_mut(token_id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if has_penalties(params) {
            self.occurrences.penalize(&mut self.logits, sequence);
        }
    }
}

fn bans_stop_tokens(sequence: &SequenceState) -> bool {
    sequence.output_token_ids().len() < sequence.sampling.min_tokens as usize
}

fn has_penalties(params: &SamplingParams) -> bool {
    params.presence_penalty != 0.0
        || params.frequency_penalty != 0.0
        || params.repetition_penalty != 1.0
}

fn changes_logits(sequence: &SequenceState) -> bool {
    let params = &sequence.sampling;
    !params.logit_bias.is_empty() || bans_stop_tokens(sequence) || has_penalties(params)
}

/// The token of the largest logit, the lowest of equal ones.
fn greedy(logits: &[f32]) -> Option<u32> {
    let largest = kernels::max(logits);
    if largest == f32::NEG_INFINITY {
        return None;
    }
    let token_id = logits.iter().position(|&logit| logit == largest)?;
    Some(token_id as u32)
}

#[cfg(test)]
mod tests;
