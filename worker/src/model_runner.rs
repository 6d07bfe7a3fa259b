//! One step: a plan in, sampled tokens out.

use crate::error::WorkerError;
use crate::forward_batch::ForwardBatch;
use crate::kernels::Pool;
use crate::models::Model;
use crate::ops::{OpError, Ops};
use crate::row_sampler::{LogitsRow, RowSampler, Wanted};
use crate::sequence::{PlanError, PlanLimits, SequenceState, SequenceStates};
use nano_ipc::model_runner_output::ModelRunnerOutput;
use nano_ipc::scheduler_output::{ScheduledSequence, SchedulerOutput};
use nano_trace::{Event, Flow, slice, slice_with};
use std::sync::Arc;

/// Rows whose logits are held at once: a prompt of which every token's
/// log-probability is asked for has as many rows of the vocabulary's size as it
/// has tokens.
const MAX_LOGITS_ROWS: usize = 64;

/// Runs steps: owns the model, the KV cache and what is kept of sequences.
pub struct ModelRunner<B: Ops> {
    ops: B,
    model: Box<dyn Model<B>>,
    kv_cache: B::KvCache,
    states: SequenceStates,
    sampler: RowSampler,
    // What follows is scratch that every step refills.
    batch: ForwardBatch,
    logits_rows: Vec<LogitsRow>,
    /// `[max_logits_rows, vocabulary]`.
    logits: B::Buffer,
    max_logits_rows: usize,
}

impl<B: Ops> ModelRunner<B> {
    /// A runner without sequences. `model` was loaded for batches and positions
    /// of these limits; sampling takes the threads of `pool`.
    ///
    /// # Errors
    /// When the device has no room for the KV cache.
    pub fn new(
        mut ops: B,
        model: Box<dyn Model<B>>,
        limits: PlanLimits,
        pool: Arc<Pool>,
    ) -> Result<ModelRunner<B>, OpError> {
        let shape = model.kv_cache_shape(limits.num_kv_blocks, limits.block_size);
        let max_logits_rows = MAX_LOGITS_ROWS.min(limits.max_num_batched_tokens);
        Ok(ModelRunner {
            kv_cache: ops.new_kv_cache(shape)?,
            logits: ops.new_buffer(max_logits_rows, limits.vocab_size)?,
            max_logits_rows,
            ops,
            model,
            states: SequenceStates::new(limits),
            sampler: RowSampler::new(pool),
            batch: ForwardBatch::new(limits.block_size),
            logits_rows: Vec::new(),
        })
    }

    /// What is kept of sequences.
    pub fn states(&self) -> &SequenceStates {
        &self.states
    }

    /// Runs one plan.
    ///
    /// # Errors
    /// When the plan breaks a rule or the backend fails; the runner is then
    /// unusable.
    pub fn execute(&mut self, plan: &SchedulerOutput) -> Result<ModelRunnerOutput, WorkerError> {
        let step_id = plan.step_id.0;
        let first_steps = self
            .prepare(plan)
            .map_err(|error| WorkerError::Plan { step_id, error })?;
        let mut output = self
            .forward(&first_steps)
            .and_then(|()| self.sample(plan))
            .map_err(|error| WorkerError::Step { step_id, error })?;
        self.update(plan, &mut output);
        Ok(output)
    }

    /// Applies the plan and lays the step out as rows. Returns the flows of the
    /// requests that this step computes first.
    fn prepare(&mut self, plan: &SchedulerOutput) -> Result<Vec<Flow>, PlanError> {
        let _slice = slice(Event::PrepareInputs, []);
        self.states.apply(plan)?;
        self.batch.clear();
        self.logits_rows.clear();
        let mut first_steps = Vec::new();
        for scheduled in &plan.scheduled {
            let Some(state) = self.states.get_mut(scheduled.id) else {
                // `apply` has found every scheduled sequence.
                continue;
            };
            if state.failed.is_some() {
                continue;
            }
            if !std::mem::replace(&mut state.was_scheduled, true) {
                first_steps.push(Flow::request(state.trace_key));
            }
            let computed = state.num_computed_tokens;
            let end = computed + scheduled.num_tokens as usize;
            push_logits_rows(&mut self.logits_rows, scheduled, state, self.batch.rows());
            self.batch.push(
                &state.token_ids[computed..end],
                computed,
                state.block_table.iter().copied(),
            );
        }
        Ok(first_steps)
    }

    fn forward(&mut self, first_steps: &[Flow]) -> Result<(), OpError> {
        if self.batch.rows() == 0 {
            return Ok(());
        }
        let _slice = slice_with(Event::Forward, [self.batch.rows() as u64], first_steps);
        self.model
            .forward(&mut self.ops, &self.batch, &mut self.kv_cache)
    }

    fn sample(&mut self, plan: &SchedulerOutput) -> Result<ModelRunnerOutput, OpError> {
        let _slice = slice(Event::Sample, [self.logits_rows.len() as u64]);
        let mut output = ModelRunnerOutput {
            step_id: plan.step_id,
            ..Default::default()
        };
        for logits_rows in self.logits_rows.chunks(self.max_logits_rows) {
            let rows: Vec<usize> = logits_rows.iter().map(|row| row.row).collect();
            self.model.logits(&mut self.ops, &rows, &mut self.logits)?;
            let logits = self.ops.read(&mut self.logits, rows.len())?;
            self.sampler
                .sample(&self.states, logits_rows, logits, &mut output);
        }
        Ok(output)
    }

    /// Advances what the step has computed, and adds to its output the sequences
    /// that had failed before.
    fn update(&mut self, plan: &SchedulerOutput, output: &mut ModelRunnerOutput) {
        let failed_now = std::mem::take(&mut output.failed);
        for scheduled in &plan.scheduled {
            let Some(state) = self.states.get_mut(scheduled.id) else {
                continue;
            };
            match &state.failed {
                None => state.num_computed_tokens += scheduled.num_tokens as usize,
                Some(reason) => output.failed.push((scheduled.id, reason.clone())),
            }
        }
        for sampled in &output.sampled {
            if let Some(state) = self.states.get_mut(sampled.id) {
                state.token_ids.push(sampled.token_id);
            }
        }
        for (id, reason) in failed_now {
            if let Some(state) = self.states.get_mut(id) {
                state.failed = Some(reason.clone());
                output.failed.push((id, reason));
            }
        }
        output.num_sequences = self.states.len() as u32;
    }
}

/// The rows of a scheduled sequence whose logits are wanted; its rows of the
/// batch begin at `first_row`.
fn push_logits_rows(
    logits_rows: &mut Vec<LogitsRow>,
    scheduled: &ScheduledSequence,
    state: &SequenceState,
    first_row: usize,
) {
    let computed = state.num_computed_tokens;
    let end = computed + scheduled.num_tokens as usize;
    let logits_row = |position: usize, wanted| LogitsRow {
        row: first_row + position - computed,
        id: scheduled.id,
        wanted,
    };
    if state.sampling.prompt_logprobs.is_some() {
        let within_prompt = computed..end.min(state.num_prompt_tokens - 1);
        logits_rows.extend(within_prompt.map(|position| {
            let next = state.token_ids[position + 1];
            logits_row(position, Wanted::PromptLogprob(next))
        }));
    }
    if end == state.token_ids.len() {
        logits_rows.push(logits_row(end - 1, Wanted::Token));
    }
}
