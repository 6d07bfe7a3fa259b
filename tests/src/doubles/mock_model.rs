//! A model without tensors: its tokens are a hash of everything before them,
//! read through the block tables that the core hands out.
//!
//! A slot of the KV cache holds a digest of all tokens up to its position, as a
//! real one's values depend on the whole prefix, and a token is sampled from
//! all slots of its sequence, as attention reads them. A block that is shared,
//! reused or missing by mistake therefore changes tokens, and
//! [`expected_token_ids`], which knows no blocks, tells.

use nano_ipc::model_runner_output::{ModelRunnerOutput, SampledToken, TokenLogprobs};
use nano_ipc::sampling_params::SamplingParams;
use nano_ipc::scheduler_output::{
    BlockId, NewSequence, ScheduledSequence, SchedulerOutput, SequenceId,
};
use std::collections::HashMap;

/// The tokens that a prompt yields, stop token included, without any cache.
pub fn expected_token_ids(
    prompt_token_ids: &[u32],
    sampling: &SamplingParams,
    max_tokens: u32,
    vocab_size: u32,
) -> Vec<u32> {
    let mut token_ids = prompt_token_ids.to_vec();
    while token_ids.len() < prompt_token_ids.len() + max_tokens as usize {
        let slots = token_ids.iter().scan(EMPTY_PREFIX, |prefix, token_id| {
            *prefix = extend(*prefix, *token_id);
            Some(*prefix)
        });
        let generated = token_ids.len() - prompt_token_ids.len();
        let token_id = sample(slots, sampling, generated, vocab_size);
        token_ids.push(token_id);
        if sampling.stop_token_ids.contains(&token_id) {
            break;
        }
    }
    token_ids.split_off(prompt_token_ids.len())
}

/// Why a sequence of a mock model fails.
pub const FAILURE: &str = "the mock model was asked to fail";

/// Has a mock model fail the sequence alone in place of its output's token
/// `index`. A bias that is no number cannot come from a client.
pub fn fail_at(sampling: &mut SamplingParams, index: u32) {
    sampling.logit_bias = vec![(index, f32::NAN)];
}

fn fails_at(sampling: &SamplingParams) -> Option<usize> {
    let failure = sampling.logit_bias.iter().find(|(_, bias)| bias.is_nan());
    failure.map(|(index, _)| *index as usize)
}

const EMPTY_PREFIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes 64 bits (the finalizer of splitmix64).
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Digest of a prefix and the token after it.
fn extend(prefix: u64, token_id: u32) -> u64 {
    mix(prefix.rotate_left(23) ^ u64::from(token_id).wrapping_add(EMPTY_PREFIX))
}

fn sample(
    slots: impl Iterator<Item = u64>,
    sampling: &SamplingParams,
    generated: usize,
    vocab_size: u32,
) -> u32 {
    let context = slots.fold(mix(sampling.seed), |sum, slot| mix(sum ^ slot));
    let mut token_id = (context % u64::from(vocab_size)) as u32;
    if generated < sampling.min_tokens as usize {
        while sampling.stop_token_ids.contains(&token_id) {
            token_id = (token_id + 1) % vocab_size;
        }
    }
    token_id
}

fn logprobs(token_id: u32, num_top: u32) -> TokenLogprobs {
    TokenLogprobs {
        token_id,
        logprob: -0.5,
        rank: 1,
        top: (0..num_top)
            .map(|place| (token_id.wrapping_add(place), -0.5 - place as f32))
            .collect(),
    }
}

#[derive(Debug)]
struct MockSequence {
    trace_key: u64,
    was_scheduled: bool,
    token_ids: Vec<u32>,
    num_prompt_tokens: usize,
    num_computed_tokens: usize,
    block_table: Vec<BlockId>,
    sampling: SamplingParams,
    failed: bool,
}

/// What a worker keeps between plans. Strict: a plan that breaks the protocol
/// is an error that says how.
#[derive(Debug)]
pub struct MockModel {
    block_size: usize,
    vocab_size: u32,
    /// One digest a slot; `None` where nothing was computed.
    slots: Vec<Option<u64>>,
    sequences: HashMap<SequenceId, MockSequence>,
}

impl MockModel {
    /// A model with an empty cache.
    pub fn new(num_kv_blocks: u32, block_size: u32, vocab_size: u32) -> MockModel {
        MockModel {
            block_size: block_size as usize,
            vocab_size,
            slots: vec![None; num_kv_blocks as usize * block_size as usize],
            sequences: HashMap::new(),
        }
    }

    /// Sequences that the core has not yet declared finished.
    pub fn num_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Carries out one plan: [`prepare`](Self::prepare),
    /// [`forward`](Self::forward) and [`sample`](Self::sample).
    ///
    /// # Errors
    /// When the plan breaks the protocol.
    pub fn step(&mut self, plan: &SchedulerOutput) -> Result<ModelRunnerOutput, String> {
        self.prepare(plan)?;
        self.forward(plan)?;
        self.sample(plan)
    }

    /// Applies what the plan changes. Returns the trace keys of the requests
    /// that it computes first.
    ///
    /// # Errors
    /// When the plan breaks the protocol.
    pub fn prepare(&mut self, plan: &SchedulerOutput) -> Result<Vec<u64>, String> {
        for id in &plan.finished {
            if self.sequences.remove(id).is_none() {
                return Err(format!("{id:?} finishes, but was never announced"));
            }
        }
        for new in &plan.new {
            self.announce(new)?;
        }
        let mut first = Vec::new();
        for scheduled in &plan.scheduled {
            let sequence = self.sequence(scheduled.id)?;
            sequence.block_table.extend(&scheduled.new_block_ids);
            if !std::mem::replace(&mut sequence.was_scheduled, true) {
                first.push(sequence.trace_key);
            }
        }
        Ok(first)
    }

    /// Fills the slots of the plan's tokens.
    ///
    /// # Errors
    /// When the plan breaks the protocol.
    pub fn forward(&mut self, plan: &SchedulerOutput) -> Result<(), String> {
        plan.scheduled.iter().try_for_each(|scheduled| {
            self.fill_slots(scheduled)
                .map_err(|error| format!("{:?}: {error}", scheduled.id))
        })
    }

    /// Reads the slots of sequences whose tokens are all computed.
    ///
    /// # Errors
    /// When the plan breaks the protocol.
    pub fn sample(&mut self, plan: &SchedulerOutput) -> Result<ModelRunnerOutput, String> {
        let mut output = ModelRunnerOutput {
            step_id: plan.step_id,
            ..ModelRunnerOutput::default()
        };
        for scheduled in &plan.scheduled {
            self.read_slots(scheduled, &mut output)
                .map_err(|error| format!("{:?}: {error}", scheduled.id))?;
        }
        output.num_sequences = self.sequences.len() as u32;
        Ok(output)
    }

    fn sequence(&mut self, id: SequenceId) -> Result<&mut MockSequence, String> {
        let sequence = self.sequences.get_mut(&id);
        sequence.ok_or_else(|| format!("{id:?}: scheduled, but was never announced"))
    }

    fn announce(&mut self, new: &NewSequence) -> Result<(), String> {
        let sequence = MockSequence {
            trace_key: new.trace_key,
            was_scheduled: false,
            token_ids: new.token_ids.clone(),
            num_prompt_tokens: new.num_prompt_tokens as usize,
            num_computed_tokens: new.num_computed_tokens as usize,
            block_table: new.block_ids.clone(),
            sampling: new.sampling.clone(),
            failed: false,
        };
        match self.sequences.insert(new.id, sequence) {
            None => Ok(()),
            Some(_) => Err(format!("{:?} is announced twice", new.id)),
        }
    }

    fn fill_slots(&mut self, scheduled: &ScheduledSequence) -> Result<(), String> {
        let block_size = self.block_size;
        let sequence = self.sequences.get_mut(&scheduled.id);
        let sequence = sequence.ok_or("never announced")?;
        if sequence.failed {
            return Ok(());
        }
        let start = sequence.num_computed_tokens;
        let end = start + scheduled.num_tokens as usize;
        if end == start || end > sequence.token_ids.len() {
            return Err(format!(
                "tokens {start}..{end} of {}",
                sequence.token_ids.len()
            ));
        }
        for position in start..end {
            let prefix = match position.checked_sub(1) {
                None => EMPTY_PREFIX,
                Some(previous) => self
                    .slots
                    .get(sequence.slot(previous, block_size)?)
                    .ok_or("block beyond the cache")?
                    .ok_or_else(|| format!("position {previous} was never computed"))?,
            };
            let here = self
                .slots
                .get_mut(sequence.slot(position, block_size)?)
                .ok_or("block beyond the cache")?;
            *here = Some(extend(prefix, sequence.token_ids[position]));
        }
        sequence.num_computed_tokens = end;
        Ok(())
    }

    fn read_slots(
        &mut self,
        scheduled: &ScheduledSequence,
        output: &mut ModelRunnerOutput,
    ) -> Result<(), String> {
        let sequence = self.sequences.get_mut(&scheduled.id);
        let sequence = sequence.ok_or("never announced")?;
        if sequence.failed {
            output.failed.push((scheduled.id, FAILURE.into()));
            return Ok(());
        }
        let end = sequence.num_computed_tokens;
        if let Some(num_top) = sequence.sampling.prompt_logprobs {
            let start = end - scheduled.num_tokens as usize;
            let targets = (start + 1)..(end + 1).min(sequence.num_prompt_tokens);
            if !targets.is_empty() {
                let entries = sequence.token_ids[targets].iter();
                let entries = entries.map(|token_id| logprobs(*token_id, num_top));
                output
                    .prompt_logprobs
                    .push((scheduled.id, entries.collect()));
            }
        }
        if end == sequence.token_ids.len() {
            let mut context = Vec::with_capacity(end);
            for position in 0..end {
                let digest = self.slots[sequence.slot(position, self.block_size)?];
                context
                    .push(digest.ok_or_else(|| format!("position {position} was never computed"))?);
            }
            let generated = end - sequence.num_prompt_tokens;
            if fails_at(&sequence.sampling) == Some(generated) {
                sequence.failed = true;
                output.failed.push((scheduled.id, FAILURE.into()));
                return Ok(());
            }
            let token_id = sample(
                context.into_iter(),
                &sequence.sampling,
                generated,
                self.vocab_size,
            );
            sequence.token_ids.push(token_id);
            output.sampled.push(SampledToken {
                id: scheduled.id,
                token_id,
                logprobs: sequence
                    .sampling
                    .logprobs
                    .map(|num_top| logprobs(token_id, num_top)),
            });
        }
        Ok(())
    }
}

impl MockSequence {
    /// Where the digest of a position lies.
    fn slot(&self, position: usize, block_size: usize) -> Result<usize, String> {
        let block = self.block_table.get(position / block_size);
        let block = block.ok_or_else(|| format!("no block for position {position}"))?;
        Ok(block.0 as usize * block_size + position % block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nano_ipc::scheduler_output::StepId;

    fn plan(step_id: u64, num_tokens: u32, new: Option<NewSequence>) -> SchedulerOutput {
        SchedulerOutput {
            step_id: StepId(step_id),
            finished: vec![],
            new: new.into_iter().collect(),
            scheduled: vec![ScheduledSequence {
                id: SequenceId(1),
                num_tokens,
                new_block_ids: vec![],
            }],
        }
    }

    fn new_sequence(block_ids: &[u32]) -> NewSequence {
        NewSequence {
            id: SequenceId(1),
            trace_key: 1,
            token_ids: vec![5, 6, 7, 8, 9],
            num_prompt_tokens: 5,
            num_computed_tokens: 0,
            block_ids: block_ids.iter().map(|id| BlockId(*id)).collect(),
            sampling: SamplingParams::greedy(),
        }
    }

    #[test]
    fn paged_and_chunked_tokens_equal_the_oracle() {
        let mut model = MockModel::new(4, 4, 100);
        let mut token_ids = Vec::new();
        for (step, num_tokens) in [2, 3, 1, 1].into_iter().enumerate() {
            let new = (step == 0).then(|| new_sequence(&[3, 1]));
            let output = model.step(&plan(step as u64, num_tokens, new));
            let output = output.expect("a legal plan");
            token_ids.extend(output.sampled.iter().map(|sampled| sampled.token_id));
        }
        let expected = expected_token_ids(&[5, 6, 7, 8, 9], &SamplingParams::greedy(), 3, 100);
        assert_eq!(token_ids, expected);
    }

    #[test]
    fn a_foreign_block_changes_tokens_and_a_missing_one_is_an_error() {
        let mut model = MockModel::new(4, 4, 1_000_000);
        let first = model.step(&plan(1, 5, Some(new_sequence(&[0, 1]))));
        model.slots[2] = Some(1234);
        let second = model.step(&plan(2, 1, None)).expect("a legal plan");
        let first = first.expect("a legal plan");
        let expected =
            expected_token_ids(&[5, 6, 7, 8, 9], &SamplingParams::greedy(), 2, 1_000_000);
        assert_eq!(first.sampled[0].token_id, expected[0]);
        assert_ne!(second.sampled[0].token_id, expected[1]);

        let mut model = MockModel::new(4, 4, 100);
        let error = model.step(&plan(1, 5, Some(new_sequence(&[0]))));
        assert!(error.is_err_and(|error| error.contains("no block for position 4")));
    }
}
