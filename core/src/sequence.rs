//! A request as the core computes it.

use crate::kv_cache::BlockHash;
use crate::scheduler::NotAdmitted;
use nano_ipc::engine_core_output::{EngineCoreOutput, FinishReason};
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::model_runner_output::TokenLogprobs;
use nano_ipc::sampling_params::SamplingParams;
use nano_ipc::scheduler_output::{BlockId, SequenceId, StepId};

/// A frontend's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A request's name in the core: ids are unique only within a connection.
pub type RequestKey = (ClientId, RequestId);

/// Place in a queue: lower priorities first, then in order of arrival.
pub type Rank = (i32, SequenceId);

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceStatus {
    /// Never in a step; holds no block.
    Waiting,
    /// In steps; holds blocks for all its computed tokens.
    Running,
    /// Was in steps, lost its blocks, and waits to be computed anew.
    Preempted,
}

/// A request as the core computes it. It ends by leaving the scheduler.
///
/// Its tokens: `token_ids` are known; `num_pending` more are being sampled by
/// steps in flight and can be scheduled before they are known. Of all these,
/// the KV of the first `num_computed_tokens` is present, or being computed by
/// steps in flight.
#[derive(Debug)]
pub struct Sequence {
    /// Its number at the workers.
    pub id: SequenceId,
    /// Its name at the frontend.
    pub key: RequestKey,
    /// Its name in traces.
    pub trace_key: u64,
    /// Lower is served first.
    pub priority: i32,
    /// How its tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens of its output at most.
    pub max_tokens: usize,
    /// Where it stands.
    pub status: SequenceStatus,
    /// Prompt, then output.
    pub token_ids: Vec<u32>,
    /// Length of the prompt.
    pub num_prompt_tokens: usize,
    /// Tokens that steps in flight are sampling.
    pub num_pending: usize,
    /// Tokens whose KV is present once all steps in flight are done.
    pub num_computed_tokens: usize,
    /// Prompt tokens that the prefix cache spared when it ran first.
    pub num_cached_tokens: usize,
    /// Its blocks, in order of position; covers the computed tokens.
    pub block_table: Vec<BlockId>,
    /// Hashes of full blocks of known tokens, as far as they were needed.
    pub block_hashes: Vec<BlockHash>,
    /// Tokens that were known at its last admission: these are prefill.
    pub num_prefill_tokens: usize,
    /// The last step that names its blocks.
    pub last_step: StepId,
    /// When the first step that computes it began: CLOCK_BOOTTIME in ns.
    pub first_step_ns: Option<u64>,
    /// Why it was not admitted when it last could have been.
    pub not_admitted: Option<NotAdmitted>,
    /// Times it was preempted.
    pub num_preemptions: u32,
    /// Prompt's log-probabilities until they go out with the first output.
    pub prompt_logprobs: Vec<TokenLogprobs>,
}

impl Sequence {
    /// A sequence that waits.
    pub fn new(id: SequenceId, client: ClientId, request: EngineCoreRequest) -> Sequence {
        Sequence {
            id,
            key: (client, request.id),
            trace_key: request.trace_key,
            priority: request.priority,
            max_tokens: request.max_tokens as usize,
            status: SequenceStatus::Waiting,
            num_prompt_tokens: request.prompt_token_ids.len(),
            token_ids: request.prompt_token_ids,
            sampling: request.sampling,
            num_pending: 0,
            num_computed_tokens: 0,
            num_cached_tokens: 0,
            block_table: Vec::new(),
            block_hashes: Vec::new(),
            num_prefill_tokens: 0,
            last_step: StepId(0),
            first_step_ns: None,
            not_admitted: None,
            num_preemptions: 0,
            prompt_logprobs: Vec::new(),
        }
    }

    /// Its place in queues.
    pub fn rank(&self) -> Rank {
        (self.priority, self.id)
    }

    /// Tokens, those being sampled included.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len() + self.num_pending
    }

    /// Known tokens of the output.
    pub fn num_output_tokens(&self) -> usize {
        self.token_ids.len() - self.num_prompt_tokens
    }

    /// Tokens that a step may compute now. None of a sequence whose last
    /// token is being sampled: nothing follows that needs its KV.
    pub fn num_computable_tokens(&self) -> usize {
        if self.num_tokens() == self.num_prompt_tokens + self.max_tokens {
            return 0;
        }
        self.num_tokens() - self.num_computed_tokens
    }

    /// An output that adds nothing yet.
    pub fn empty_output(&self) -> EngineCoreOutput {
        EngineCoreOutput {
            id: self.key.1,
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: None,
            num_cached_tokens: self.num_cached_tokens as u32,
            first_step_ns: self.first_step_ns.unwrap_or(0),
            finish_reason: None,
        }
    }

    /// Whether it ended with its newest token.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        if self.num_output_tokens() == 0 {
            return None;
        }
        let newest = self.token_ids.last()?;
        if self.sampling.stop_token_ids.contains(newest) {
            Some(FinishReason::Stop)
        } else if self.num_output_tokens() == self.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Hashes of the full blocks within its first `num_tokens` tokens, which are known.
    pub fn block_hashes(&mut self, num_tokens: usize, block_size: usize) -> &[BlockHash] {
        let num_blocks = num_tokens / block_size;
        while self.block_hashes.len() < num_blocks {
            let start = self.block_hashes.len() * block_size;
            let parent = self.block_hashes.last().copied().unwrap_or(BlockHash::ROOT);
            let hash = parent.child(&self.token_ids[start..start + block_size]);
            self.block_hashes.push(hash);
        }
        &self.block_hashes[..num_blocks]
    }

    /// Whether log-probabilities of its prompt must still be computed, so that
    /// no part of the prompt can be taken from the cache.
    pub fn needs_prompt_logprobs(&self) -> bool {
        self.sampling.prompt_logprobs.is_some()
            && self.num_output_tokens() == 0
            && self.prompt_logprobs.len() + 1 < self.num_prompt_tokens
    }

    /// Takes in what a step found for the prompt tokens after `start`. A chunk
    /// computed anew after a preemption tells again what is known.
    pub fn add_prompt_logprobs(&mut self, start: usize, entries: Vec<TokenLogprobs>) {
        if self.needs_prompt_logprobs() {
            let known = self.prompt_logprobs.len() - start.min(self.prompt_logprobs.len());
            self.prompt_logprobs.extend(entries.into_iter().skip(known));
        }
    }
}
