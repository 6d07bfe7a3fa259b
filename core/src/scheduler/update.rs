//! What a step's result does to sequences.

use crate::scheduler::{Row, Scheduler, SchedulerEvent, TracedEvent};
use crate::sequence::{ClientId, SequenceStatus};
use nano_ipc::engine_core_output::{EngineCoreOutput, FinishReason};
use nano_ipc::model_runner_output::{ModelRunnerOutput, SampledToken};
use nano_ipc::scheduler_output::{SequenceId, StepId};
use std::collections::HashMap;

/// A result that does not answer the plan: a worker that cannot be trusted
/// with the rest either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerMistake {
    /// Results come in the order of plans.
    #[error("result of step {} while step {} was due", .got.0, .due.0)]
    WrongStep {
        /// The result's.
        got: StepId,
        /// The oldest plan's without a result.
        due: StepId,
    },
    /// A row that reached its last token has no valid sampled token in its place.
    #[error("step {}: no valid token for sequence {}", .step_id.0, .id.0)]
    NoToken {
        /// The plan's.
        step_id: StepId,
        /// The row's.
        id: SequenceId,
    },
    /// More tokens than rows that reached their last token.
    #[error("step {}: unexpected token for sequence {}", .step_id.0, .id.0)]
    StrayToken {
        /// The plan's.
        step_id: StepId,
        /// What the worker calls its sequence.
        id: SequenceId,
    },
}

impl Scheduler {
    /// Takes in the result of the oldest step in flight; returns what its
    /// clients are told, at most one output a request.
    ///
    /// # Errors
    /// When the result does not answer the plan.
    pub fn update(
        &mut self,
        result: ModelRunnerOutput,
    ) -> Result<Vec<(ClientId, EngineCoreOutput)>, WorkerMistake> {
        let step_id = result.step_id;
        let due = self
            .in_flight
            .front()
            .map_or(StepId(0), |step| step.step_id);
        let Some(step) = self.in_flight.pop_front().filter(|_| step_id == due) else {
            return Err(WorkerMistake::WrongStep { got: step_id, due });
        };
        self.last_step_done = step_id;
        self.stats.num_worker_sequences = result.num_sequences;
        self.kv_cache.step_done(step_id);

        let mut outputs = Vec::new();
        let mut failed: HashMap<_, _> = result.failed.into_iter().collect();
        let mut prompt_logprobs: HashMap<_, _> = result.prompt_logprobs.into_iter().collect();
        let mut sampled = result.sampled.into_iter().peekable();
        for row in step.rows {
            let failure = failed.remove(&row.id);
            let token = if row.samples && failure.is_none() {
                let token = sampled.next_if(|token| self.is_valid(row, token));
                Some(token.ok_or(WorkerMistake::NoToken {
                    step_id,
                    id: row.id,
                })?)
            } else {
                None
            };
            if let Some(sequence) = self.sequences.get_mut(&row.id) {
                if let Some(entries) = prompt_logprobs.remove(&row.id) {
                    sequence.add_prompt_logprobs(row.start, entries);
                }
                outputs.extend(match failure {
                    Some(reason) => self.fail(row.id, reason),
                    None => self.advance(step_id, row, token),
                });
            }
        }
        match sampled.next() {
            Some(token) => Err(WorkerMistake::StrayToken {
                step_id,
                id: token.id,
            }),
            None => Ok(outputs),
        }
    }

    fn is_valid(&self, row: Row, token: &SampledToken) -> bool {
        let asked = self
            .sequences
            .get(&row.id)
            .map(|s| s.sampling.logprobs.is_some());
        token.id == row.id
            && token.token_id < self.vocab_size
            && asked.is_none_or(|asked| asked == token.logprobs.is_some())
    }

    /// The row is computed, and perhaps a token sampled.
    fn advance(
        &mut self,
        step_id: StepId,
        row: Row,
        token: Option<SampledToken>,
    ) -> Option<(ClientId, EngineCoreOutput)> {
        let sequence = self.sequences.get_mut(&row.id)?;
        let resident = sequence.status == SequenceStatus::Running
            && sequence.num_preemptions == row.num_preemptions;
        if resident && self.enable_prefix_caching {
            let end = row.start + row.num_tokens;
            let filled = row.start / self.block_size..end / self.block_size;
            let hashes = sequence.block_hashes(end, self.block_size)[filled.clone()].to_vec();
            for (id, hash) in sequence.block_table[filled].iter().zip(hashes) {
                self.kv_cache.remember(*id, hash);
            }
        }

        let client = sequence.key.0;
        let mut output = sequence.empty_output();
        if let Some(token) = &token {
            if sequence.num_output_tokens() == 0 && sequence.sampling.prompt_logprobs.is_some() {
                output.prompt_logprobs = Some(std::mem::take(&mut sequence.prompt_logprobs));
            }
            sequence.token_ids.push(token.token_id);
            sequence.num_pending -= 1;
            output.token_ids.push(token.token_id);
            output.finish_reason = sequence.finish_reason();
        }
        let mut trace = |event| self.events.push(TracedEvent::new(sequence, event));
        if row.is_prefill && resident {
            trace(SchedulerEvent::PrefillDone(step_id));
            if token.is_some() {
                trace(SchedulerEvent::DecodeBegan);
            }
        }
        if output.finish_reason.is_some() {
            trace(SchedulerEvent::Finished);
            self.remove(row.id);
        }
        output.logprobs.extend(token?.logprobs);
        Some((client, output))
    }

    /// The sequence failed alone.
    fn fail(&mut self, id: SequenceId, reason: String) -> Option<(ClientId, EngineCoreOutput)> {
        let sequence = self.remove(id)?;
        self.trace(&sequence, SchedulerEvent::Finished);
        let output = EngineCoreOutput {
            finish_reason: Some(FinishReason::Error(reason)),
            ..sequence.empty_output()
        };
        Some((sequence.key.0, output))
    }
}
