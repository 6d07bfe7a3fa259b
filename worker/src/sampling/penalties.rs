//! Penalties on tokens that a sequence has already.

use crate::sequence::SequenceState;

/// How often each token occurs; scratch memory, all zero between calls.
#[derive(Debug, Default)]
pub(super) struct Occurrences {
    counts: Vec<u32>,
}

impl Occurrences {
    /// Applies repetition, frequency and presence penalties, in this order.
    pub fn penalize(&mut self, logits: &mut [f32], sequence: &SequenceState) {
        let params = &sequence.sampling;
        self.counts.resize(logits.len(), 0);
        if params.repetition_penalty != 1.0 {
            let penalty = params.repetition_penalty;
            self.for_each_distinct(&sequence.token_ids, |token_id, _| {
                let logit = &mut logits[token_id];
                if *logit > 0.0 {
                    *logit /= penalty;
                } else {
                    *logit *= penalty;
                }
            });
        }
        let (frequency, presence) = (params.frequency_penalty, params.presence_penalty);
        if frequency != 0.0 || presence != 0.0 {
            self.for_each_distinct(sequence.output_token_ids(), |token_id, count| {
                logits[token_id] -= frequency * count as f32 + presence;
            });
        }
    }

    /// Calls `visit` once for each distinct token, with its count. Token ids are
    /// below the vocabulary's size, as every sequence's are.
    fn for_each_distinct(&mut self, token_ids: &[u32], mut visit: impl FnMut(usize, u32)) {
        for &token_id in token_ids {
            self.counts[token_id as usize] += 1;
        }
        for &token_id in token_ids {
            let token_id = token_id as usize;
            let count = std::mem::take(&mut self.counts[token_id]);
            if count > 0 {
                visit(token_id, count);
            }
        }
    }
}
