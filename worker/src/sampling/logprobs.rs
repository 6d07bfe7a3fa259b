//! Log-probabilities of tokens, as they are reported.

use crate::kernels;
use nano_ipc::model_runner_output::TokenLogprobs;
use std::cmp::Ordering;

/// What is reported for a token that cannot occur: JSON has no infinity.
pub const LOWEST_LOGPROB: f32 = -9999.0;

/// Natural log-probability of a token, its rank, and the `num_top` best tokens,
/// from logits as the model gave them. Equal logits rank by token id.
///
/// `token_id` is below `logits.len()`. Of a row with a logit that is no number
/// or infinite, every log-probability is [`LOWEST_LOGPROB`].
pub fn token_logprobs(logits: &[f32], token_id: u32, num_top: u32) -> TokenLogprobs {
    let normalizer = kernels::log_sum_exp(logits);
    let logprob = |logit: f32| {
        let logprob = logit - normalizer;
        // Also for what is no number.
        if logprob > LOWEST_LOGPROB {
            logprob
        } else {
            LOWEST_LOGPROB
        }
    };
    let token = (token_id, rankable(logits[token_id as usize]));
    let better = entries(logits).filter(|entry| by_rank(entry, &token) == Ordering::Less);
    TokenLogprobs {
        token_id,
        logprob: logprob(token.1),
        rank: better.count() as u32 + 1,
        top: top(logits, num_top as usize)
            .into_iter()
            .map(|(id, logit)| (id, logprob(logit)))
            .collect(),
    }
}

/// What is no number ranks last.
fn rankable(logit: f32) -> f32 {
    if logit.is_nan() {
        f32::NEG_INFINITY
    } else {
        logit
    }
}

fn entries(logits: &[f32]) -> impl Iterator<Item = (u32, f32)> + '_ {
    (0..).zip(logits.iter().map(|&logit| rankable(logit)))
}

fn by_rank(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The best `n` tokens, best first. `n` is small: one pass with insertion.
fn top(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
    if n == 0 {
        return best;
    }
    for entry in entries(logits) {
        let full = best.len() == n;
        // Ids come in ascending order, so that an equal logit ranks behind.
        if full && best.last().is_some_and(|worst| entry.1 <= worst.1) {
            continue;
        }
        let at = best.partition_point(|other| by_rank(other, &entry) == Ordering::Less);
        best.insert(at, entry);
        best.truncate(n);
    }
    best
}
