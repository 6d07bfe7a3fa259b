//! One step's plan, as it crosses from the core to every worker.
//!
//! It carries changes only. Workers keep each sequence's token ids and block
//! table from [`NewSequence`] until its number appears in
//! [`SchedulerOutput::finished`].

use crate::sampling_params::SamplingParams;
use serde::{Deserialize, Serialize};

/// Number of a step, counted from 1 since the core's start.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct StepId(pub u64);

/// Number of a sequence within the core's life; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SequenceId(pub u64);

/// Index of a KV block, `0..num_kv_blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId(pub u32);

/// One step's plan. The worker applies `finished`, then `new`, then runs every
/// entry of `scheduled`.
///
/// A sequence whose scheduled tokens reach its last known token yields one
/// sampled token, which the worker appends to the sequence itself: the next
/// plan may schedule that token before the core has seen it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedulerOutput {
    /// Increases by one a step.
    pub step_id: StepId,
    /// Sequences that workers forget: finished, failed, aborted or preempted.
    /// None is named in this plan's `scheduled`.
    pub finished: Vec<SequenceId>,
    /// Sequences that enter (or re-enter after preemption) with this step.
    pub new: Vec<NewSequence>,
    /// What runs in this step; rows of the batch in this order. Empty when the
    /// engine becomes idle and workers have something to forget.
    pub scheduled: Vec<ScheduledSequence>,
}

/// Everything a worker keeps of a sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewSequence {
    /// Unknown to the worker before.
    pub id: SequenceId,
    /// The request's key in the trace.
    pub trace_key: u64,
    /// Prompt, and after a preemption also what was generated before it.
    pub token_ids: Vec<u32>,
    /// Length of the prompt within `token_ids`.
    pub num_prompt_tokens: u32,
    /// Leading tokens whose KV is already in the blocks of `block_ids`.
    pub num_computed_tokens: u32,
    /// Blocks given so far, in order of position.
    pub block_ids: Vec<BlockId>,
    /// How its tokens are chosen.
    pub sampling: SamplingParams,
}

/// One row group of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduledSequence {
    /// Known to the worker.
    pub id: SequenceId,
    /// Tokens computed in this step, at least 1, starting at the sequence's
    /// number of computed tokens.
    pub num_tokens: u32,
    /// Blocks appended to its block table before the step. Empty for a
    /// sequence of this plan's `new`.
    pub new_block_ids: Vec<BlockId>,
}
