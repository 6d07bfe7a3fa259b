//! Drawing a token from what temperature, top-k, min-p and top-p leave.

use crate::kernels;
use nano_ipc::sampling_params::SamplingParams;
use std::cmp::Ordering;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token_id: u32,
    /// Logit over temperature, minus the largest: at most 0, never NaN.
    logit: f32,
    /// `exp(logit)`.
    weight: f32,
}

/// Most probable first, the lowest id of equal ones first: a total order, so
/// that the draw does not depend on how a selection leaves equals.
fn by_probability(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit
        .total_cmp(&a.logit)
        .then(a.token_id.cmp(&b.token_id))
}

/// Tokens that may be drawn; scratch memory.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    candidates: Vec<Candidate>,
}

impl Candidates {
    /// Draws a token by a number in `[0, 1)`; `None` when no logit is finite.
    pub fn choose(&mut self, logits: &[f32], params: &SamplingParams, number: f64) -> Option<u32> {
        self.collect(logits, params.temperature)?;
        if params.top_k > 0 {
            self.keep_top_k(params.top_k as usize);
        }
        if params.min_p > 0.0 {
            let lowest = params.min_p.ln();
            self.candidates
                .retain(|candidate| candidate.logit >= lowest);
        }
        for candidate in &mut self.candidates {
            candidate.weight = candidate.logit.exp();
        }
        if params.top_p < 1.0 {
            self.keep_top_p(f64::from(params.top_p));
        }
        self.draw(number)
    }

    fn collect(&mut self, logits: &[f32], temperature: f32) -> Option<()> {
        // NaN aside. An infinite logit counts as the largest finite one.
        let largest = kernels::max(logits).min(f32::MAX);
        if largest == f32::NEG_INFINITY {
            return None;
        }
        self.candidates.clear();
        let usable = logits
            .iter()
            .enumerate()
            .filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        self.candidates
            .extend(usable.map(|(token_id, &logit)| Candidate {
                token_id: token_id as u32,
                logit: (logit.min(f32::MAX) - largest) / temperature,
                weight: 0.0,
            }));
        Some(())
    }

    fn keep_top_k(&mut self, k: usize) {
        if k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k, by_probability);
            self.candidates.truncate(k);
        }
        self.candidates.sort_unstable_by(by_probability);
    }

    /// Keeps the smallest set of most probable candidates whose share reaches
    /// `p`. Sorts only as many as it keeps, to within a factor of four.
    fn keep_top_p(&mut self, p: f64) {
        let total: f64 = self.candidates.iter().map(|c| f64::from(c.weight)).sum();
        let (mut share, mut sorted, mut step) = (0.0, 0, 64);
        while sorted < self.candidates.len() {
            let rest = &mut self.candidates[sorted..];
            if step < rest.len() {
                rest.select_nth_unstable_by(step, by_probability);
            }
            let count = step.min(rest.len());
            let next = &mut rest[..count];
            next.sort_unstable_by(by_probability);
            for candidate in next {
                sorted += 1;
                share += f64::from(candidate.weight);
                if share >= p * total {
                    self.candidates.truncate(sorted);
                    return;
                }
            }
            step *= 4;
        }
    }

    fn draw(&self, number: f64) -> Option<u32> {
        let total: f64 = self.candidates.iter().map(|c| f64::from(c.weight)).sum();
        let mut share = 0.0;
        let drawn = self.candidates.iter().find(|candidate| {
            share += f64::from(candidate.weight);
            share > number * total
        });
        // Sums are rounded: the last one with any weight is the end of the line.
        drawn
            .or_else(|| self.candidates.iter().rfind(|c| c.weight > 0.0))
            .map(|candidate| candidate.token_id)
    }
}
