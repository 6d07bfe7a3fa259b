//! What the worker keeps of each sequence, and how a plan changes it.

use nano_ipc::sampling_params::SamplingParams;
use nano_ipc::scheduler_output::{NewSequence, SchedulerOutput, SequenceId};
use std::collections::{HashMap, HashSet};

/// Bounds that every plan keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Token ids are below it.
    pub vocab_size: usize,
    /// Tokens of a sequence at most.
    pub max_model_len: usize,
    /// Tokens a KV block holds.
    pub block_size: usize,
    /// KV block ids are below it.
    pub num_kv_blocks: usize,
    /// Tokens of a step at most.
    pub max_num_batched_tokens: usize,
    /// Sequences of a step at most.
    pub max_num_seqs: usize,
}

/// How a plan breaks the rules of [`SchedulerOutput`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum PlanError {
    #[error("it follows step {last}, whose successor is another")]
    StepOrder { last: u64 },
    #[error("sequence {id} is new, but known already")]
    KnownTwice { id: u64 },
    #[error("sequence {id} is finished, but unknown")]
    ForgetsUnknown { id: u64 },
    #[error("sequence {id} is scheduled, but unknown")]
    Unknown { id: u64 },
    #[error("sequence {id} is scheduled twice")]
    ScheduledTwice { id: u64 },
    #[error("sequence {id} has {len} tokens, the limit is {max}")]
    Length { id: u64, len: usize, max: usize },
    #[error("sequence {id} has a prompt of {prompt} and {computed} computed of {len} tokens")]
    Counts {
        id: u64,
        prompt: usize,
        computed: usize,
        len: usize,
    },
    #[error("sequence {id} has token id {token_id}, the vocabulary has {vocab_size}")]
    TokenId {
        id: u64,
        token_id: u32,
        vocab_size: usize,
    },
    #[error("sequence {id} has KV block {block}, there are {num_kv_blocks}")]
    Block {
        id: u64,
        block: u32,
        num_kv_blocks: usize,
    },
    #[error("sequence {id} is given {scheduled} tokens behind {computed}, it has {len}")]
    Tokens {
        id: u64,
        scheduled: usize,
        computed: usize,
        len: usize,
    },
    #[error("sequence {id} has {blocks} KV blocks of {block_size} for {tokens} tokens")]
    TooFewBlocks {
        id: u64,
        blocks: usize,
        block_size: usize,
        tokens: usize,
    },
    #[error("it has {tokens} tokens, the limit is {max}")]
    BatchTokens { tokens: usize, max: usize },
    #[error("it has {sequences} sequences, the limit is {max}")]
    BatchSequences { sequences: usize, max: usize },
}

/// What the worker keeps of a sequence.
///
/// Invariants: `1 <= num_prompt_tokens <= token_ids.len() <= max_model_len + 1`
/// (the token sampled at the context's end has no place in it);
/// `num_computed_tokens < token_ids.len()` between steps unless it failed;
/// token ids are below the vocabulary's size, block ids below the cache's.
#[derive(Clone, Debug)]
pub struct SequenceState {
    /// The request's key in the trace.
    pub trace_key: u64,
    /// Prompt and everything generated.
    pub token_ids: Vec<u32>,
    /// Length of the prompt.
    pub num_prompt_tokens: usize,
    /// Leading tokens whose keys and values are in the cache.
    pub num_computed_tokens: usize,
    /// Its KV blocks, in order of position.
    pub block_table: Vec<u32>,
    /// How its tokens are chosen.
    pub sampling: SamplingParams,
    /// Whether a step has computed some of it since it entered.
    pub was_scheduled: bool,
    /// Why it failed alone. It is computed no more; plans may name it until
    /// the core has heard.
    pub failed: Option<String>,
}

impl SequenceState {
    /// Tokens generated so far.
    pub fn output_token_ids(&self) -> &[u32] {
        &self.token_ids[self.num_prompt_tokens..]
    }
}

/// Everything that the worker keeps of sequences: changed by plans alone.
#[derive(Debug)]
pub struct SequenceStates {
    limits: PlanLimits,
    last_step: u64,
    states: HashMap<SequenceId, SequenceState>,
}

impl SequenceStates {
    /// Nothing yet; the first plan is step 1.
    pub fn new(limits: PlanLimits) -> SequenceStates {
        SequenceStates {
            limits,
            last_step: 0,
            states: HashMap::new(),
        }
    }

    /// Bounds that every plan keeps.
    pub fn limits(&self) -> PlanLimits {
        self.limits
    }

    /// The step whose plan comes next.
    pub fn next_step(&self) -> u64 {
        self.last_step + 1
    }

    /// Sequences kept.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether no sequence is kept.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// One sequence.
    pub fn get(&self, id: SequenceId) -> Option<&SequenceState> {
        self.states.get(&id)
    }

    /// One sequence, to be changed.
    pub fn get_mut(&mut self, id: SequenceId) -> Option<&mut SequenceState> {
        self.states.get_mut(&id)
    }

    /// Takes a plan in: forgets what finished, enters what is new, extends block
    /// tables. Token counts advance after the step, by the runner.
    ///
    /// # Errors
    /// When the plan breaks a rule. The states are then unusable: core and
    /// worker no longer agree, and the worker ends.
    pub fn apply(&mut self, plan: &SchedulerOutput) -> Result<(), PlanError> {
        if plan.step_id.0 != self.next_step() {
            return Err(PlanError::StepOrder {
                last: self.last_step,
            });
        }
        self.last_step += 1;
        for id in &plan.finished {
            if self.states.remove(id).is_none() {
                return Err(PlanError::ForgetsUnknown { id: id.0 });
            }
        }
        for new in &plan.new {
            self.enter(new)?;
        }
        self.check_batch(plan)?;
        for scheduled in &plan.scheduled {
            self.extend(
                scheduled.id,
                scheduled.num_tokens as usize,
                scheduled.new_block_ids.iter().map(|block| block.0),
            )?;
        }
        Ok(())
    }

    fn enter(&mut self, new: &NewSequence) -> Result<(), PlanError> {
        let id = new.id.0;
        let len = new.token_ids.len();
        let prompt = new.num_prompt_tokens as usize;
        let computed = new.num_computed_tokens as usize;
        if prompt == 0 || prompt > len || computed >= len {
            return Err(PlanError::Counts {
                id,
                prompt,
                computed,
                len,
            });
        }
        if len > self.limits.max_model_len {
            let max = self.limits.max_model_len;
            return Err(PlanError::Length { id, len, max });
        }
        let vocab_size = self.limits.vocab_size;
        if let Some(&token_id) = new.token_ids.iter().find(|&&t| t as usize >= vocab_size) {
            return Err(PlanError::TokenId {
                id,
                token_id,
                vocab_size,
            });
        }
        let block_table: Vec<u32> = new.block_ids.iter().map(|block| block.0).collect();
        self.check_blocks(id, &block_table)?;
        let state = SequenceState {
            trace_key: new.trace_key,
            token_ids: new.token_ids.clone(),
            num_prompt_tokens: prompt,
            num_computed_tokens: computed,
            block_table,
            sampling: new.sampling.clone(),
            was_scheduled: false,
            failed: None,
        };
        match self.states.insert(new.id, state) {
            None => Ok(()),
            Some(_) => Err(PlanError::KnownTwice { id }),
        }
    }

    fn check_batch(&self, plan: &SchedulerOutput) -> Result<(), PlanError> {
        let sequences = plan.scheduled.len();
        if sequences > self.limits.max_num_seqs {
            let max = self.limits.max_num_seqs;
            return Err(PlanError::BatchSequences { sequences, max });
        }
        let tokens = plan.scheduled.iter().map(|s| s.num_tokens as usize).sum();
        if tokens > self.limits.max_num_batched_tokens {
            let max = self.limits.max_num_batched_tokens;
            return Err(PlanError::BatchTokens { tokens, max });
        }
        let mut ids = HashSet::with_capacity(sequences);
        match plan.scheduled.iter().find(|s| !ids.insert(s.id)) {
            None => Ok(()),
            Some(twice) => Err(PlanError::ScheduledTwice { id: twice.id.0 }),
        }
    }

    fn extend(
        &mut self,
        id: SequenceId,
        num_tokens: usize,
        new_blocks: impl Iterator<Item = u32>,
    ) -> Result<(), PlanError> {
        let new_blocks: Vec<u32> = new_blocks.collect();
        self.check_blocks(id.0, &new_blocks)?;
        let block_size = self.limits.block_size;
        let Some(state) = self.states.get_mut(&id) else {
            return Err(PlanError::Unknown { id: id.0 });
        };
        if state.failed.is_some() {
            return Ok(()); // It has not got the token that the plan counts on.
        }
        state.block_table.extend(new_blocks);
        let computed = state.num_computed_tokens;
        let len = state.token_ids.len().min(self.limits.max_model_len);
        let tokens = computed + num_tokens;
        if num_tokens == 0 || tokens > len {
            return Err(PlanError::Tokens {
                id: id.0,
                scheduled: num_tokens,
                computed,
                len,
            });
        }
        let blocks = state.block_table.len();
        if blocks * block_size < tokens {
            return Err(PlanError::TooFewBlocks {
                id: id.0,
                blocks,
                block_size,
                tokens,
            });
        }
        Ok(())
    }

    fn check_blocks(&self, id: u64, blocks: &[u32]) -> Result<(), PlanError> {
        let num_kv_blocks = self.limits.num_kv_blocks;
        match blocks
            .iter()
            .find(|&&block| block as usize >= num_kv_blocks)
        {
            None => Ok(()),
            Some(&block) => Err(PlanError::Block {
                id,
                block,
                num_kv_blocks,
            }),
        }
    }

    /// Checks every invariant of [`SequenceState`], and that no two sequences
    /// will write into the same KV block. For tests, after every step.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_integrity(&self) {
        let limits = self.limits;
        let mut written: HashMap<u32, SequenceId> = HashMap::new();
        for (&id, state) in &self.states {
            let len = state.token_ids.len();
            assert!((1..=len).contains(&state.num_prompt_tokens), "{id:?}");
            assert!(len <= limits.max_model_len + 1, "{id:?}");
            let has_next = state.num_computed_tokens < len;
            assert!(has_next || state.failed.is_some(), "{id:?}");
            assert!(
                state.num_computed_tokens <= state.block_table.len() * limits.block_size,
                "{id:?}: computed tokens beyond the block table"
            );
            let vocab_size = limits.vocab_size as u32;
            assert!(state.token_ids.iter().all(|&t| t < vocab_size), "{id:?}");
            let first_written = state.num_computed_tokens / limits.block_size;
            for &block in state.block_table.iter().skip(first_written) {
                assert!((block as usize) < limits.num_kv_blocks, "{id:?}");
                if let Some(other) = written.insert(block, id) {
                    panic!("block {block} is written by {id:?} and {other:?}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
