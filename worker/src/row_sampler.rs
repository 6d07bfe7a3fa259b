//! What comes of rows of logits, computed on all threads.

use crate::kernels::Pool;
use crate::sampling::{Sampler, token_logprobs};
use crate::sequence::{SequenceState, SequenceStates};
use crate::worker::panic_message;
use nano_ipc::model_runner_output::{ModelRunnerOutput, SampledToken, TokenLogprobs};
use nano_ipc::scheduler_output::SequenceId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What one row's logits are for.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// The sequence's next token.
    Token,
    /// The log-probability of this token of its prompt.
    PromptLogprob(u32),
}

/// A row whose logits are computed.
#[derive(Clone, Copy, Debug)]
pub struct LogitsRow {
    /// Its index in the batch.
    pub row: usize,
    /// Its sequence.
    pub id: SequenceId,
    /// What its logits are for.
    pub wanted: Wanted,
}

/// What came of a row's logits.
enum RowResult {
    Token(SampledToken),
    PromptLogprob(TokenLogprobs),
    Failed(String),
}

/// Samples rows side by side.
pub struct RowSampler {
    pool: Arc<Pool>,
    /// One for each thread of the pool.
    lanes: Vec<Mutex<Lane>>,
}

/// A share of the rows, taken by one thread at a time: nobody waits for a lock.
#[derive(Default)]
struct Lane {
    sampler: Sampler,
    results: Vec<(SequenceId, RowResult)>,
}

impl RowSampler {
    /// Samples on the threads of `pool`.
    pub fn new(pool: Arc<Pool>) -> RowSampler {
        RowSampler {
            lanes: (0..pool.threads()).map(|_| Mutex::default()).collect(),
            pool,
        }
    }

    /// Adds to `output` what comes of `rows`, in their order. `logits` has as
    /// many rows, of the vocabulary's size.
    pub fn sample(
        &self,
        states: &SequenceStates,
        rows: &[LogitsRow],
        logits: &[f32],
        output: &mut ModelRunnerOutput,
    ) {
        let vocab_size = states.limits().vocab_size;
        let each = rows.len().div_ceil(self.lanes.len()).max(1);
        self.pool.run(rows.len().div_ceil(each), |share| {
            let mut lane = lock(&self.lanes[share]);
            let end = rows.len().min((share + 1) * each);
            for index in share * each..end {
                let logits = &logits[index * vocab_size..(index + 1) * vocab_size];
                let row = &rows[index];
                if let Some(state) = states.get(row.id) {
                    let result = result_of_row(&mut lane.sampler, state, row, logits);
                    lane.results.push((row.id, result));
                }
            }
        });
        for lane in &self.lanes {
            for (id, result) in lock(lane).results.drain(..) {
                add(output, id, result);
            }
        }
    }
}

/// A panic leaves a lane whose scratch is as good as any: it is refilled.
fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is wrong with one row, a panic included, fails its sequence alone: rows
/// share nothing but scratch.
fn result_of_row(
    sampler: &mut Sampler,
    state: &SequenceState,
    row: &LogitsRow,
    logits: &[f32],
) -> RowResult {
    catch_unwind(AssertUnwindSafe(|| result(sampler, state, row, logits))).unwrap_or_else(|panic| {
        RowResult::Failed(format!("sampling panicked: {}", panic_message(&*panic)))
    })
}

fn result(
    sampler: &mut Sampler,
    state: &SequenceState,
    row: &LogitsRow,
    logits: &[f32],
) -> RowResult {
    let params = &state.sampling;
    match row.wanted {
        Wanted::PromptLogprob(token_id) => {
            let num_top = params.prompt_logprobs.unwrap_or(0);
            RowResult::PromptLogprob(token_logprobs(logits, token_id, num_top))
        }
        Wanted::Token => match sampler.sample(logits, state) {
            Ok(token_id) => RowResult::Token(SampledToken {
                id: row.id,
                token_id,
                logprobs: params
                    .logprobs
                    .map(|num_top| token_logprobs(logits, token_id, num_top)),
            }),
            Err(error) => RowResult::Failed(error.to_string()),
        },
    }
}

fn add(output: &mut ModelRunnerOutput, id: SequenceId, result: RowResult) {
    match result {
        RowResult::Token(sampled) => output.sampled.push(sampled),
        RowResult::Failed(reason) => output.failed.push((id, reason)),
        // Rows of a sequence follow each other.
        RowResult::PromptLogprob(logprobs) => match output.prompt_logprobs.last_mut() {
            Some((last, list)) if *last == id => list.push(logprobs),
            _ => output.prompt_logprobs.push((id, vec![logprobs])),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::PlanLimits;
    use nano_ipc::sampling_params::SamplingParams;
    use nano_ipc::scheduler_output::{
        BlockId, NewSequence, ScheduledSequence, SchedulerOutput, StepId,
    };

    const LIMITS: PlanLimits = PlanLimits {
        vocab_size: 8,
        max_model_len: 16,
        block_size: 4,
        num_kv_blocks: 8,
        max_num_batched_tokens: 8,
        max_num_seqs: 8,
    };

    /// Sequences `0..count`, each of one token.
    fn states(count: u64) -> SequenceStates {
        let mut states = SequenceStates::new(LIMITS);
        let plan = SchedulerOutput {
            step_id: StepId(1),
            finished: vec![],
            new: (0..count)
                .map(|id| NewSequence {
                    id: SequenceId(id),
                    trace_key: id,
                    token_ids: vec![1],
                    num_prompt_tokens: 1,
                    num_computed_tokens: 0,
                    block_ids: vec![BlockId(id as u32)],
                    sampling: SamplingParams::greedy(),
                })
                .collect(),
            scheduled: (0..count)
                .map(|id| ScheduledSequence {
                    id: SequenceId(id),
                    num_tokens: 1,
                    new_block_ids: vec![],
                })
                .collect(),
        };
        states.apply(&plan).expect("keeps the rules");
        states
    }

    /// The bug: one row asks for a token beyond its logits.
    #[test]
    fn a_panic_at_one_row_fails_its_sequence_alone_whatever_thread_meets_it() {
        const NUM_ROWS: usize = 6;
        let pool = Arc::new(Pool::new(3).expect("threads"));
        let sampler = RowSampler::new(pool);
        let states = states(NUM_ROWS as u64);
        let mut logits = vec![0.0; NUM_ROWS * LIMITS.vocab_size];
        for row in 0..NUM_ROWS {
            logits[row * LIMITS.vocab_size + row] = 1.0;
        }
        for bad in 0..NUM_ROWS {
            let rows: Vec<LogitsRow> = (0..NUM_ROWS)
                .map(|row| LogitsRow {
                    row,
                    id: SequenceId(row as u64),
                    wanted: if row == bad {
                        Wanted::PromptLogprob(LIMITS.vocab_size as u32)
                    } else {
                        Wanted::Token
                    },
                })
                .collect();
            let mut output = ModelRunnerOutput::default();
            sampler.sample(&states, &rows, &logits, &mut output);
            let sampled: Vec<_> = output
                .sampled
                .iter()
                .map(|s| (s.id.0, s.token_id))
                .collect();
            let others: Vec<_> = (0..NUM_ROWS as u64)
                .filter(|&row| row != bad as u64)
                .map(|row| (row, row as u32))
                .collect();
            assert_eq!(sampled, others);
            let [(id, reason)] = &output.failed[..] else {
                panic!("{:?}", output.failed);
            };
            assert_eq!(id.0, bad as u64);
            assert!(
                reason.starts_with("sampling panicked: index out of"),
                "{reason}"
            );
        }
    }
}
