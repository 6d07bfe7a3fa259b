//! What happens to sequences, told to whoever draws it.

use crate::sequence::Sequence;
use nano_ipc::scheduler_output::StepId;

/// Why the first of the waiting sequences was not admitted to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Others use all tokens of the step.
    TokenBudget,
    /// As many run as may.
    SequenceSlots,
    /// Its tokens need more KV blocks than are free.
    KvBlocks,
}

/// What happened to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// Taken in.
    Queued,
    /// Still waits though it is the first to be admitted; told once a reason,
    /// and again when the reason changes.
    NotAdmitted(NotAdmitted),
    /// Runs from here on.
    Admitted {
        /// Tokens whose KV came from the prefix cache.
        num_cached_tokens: usize,
    },
    /// Tokens that it had at its admission are in a step.
    PrefillPlanned {
        /// The step.
        step_id: StepId,
        /// How many of them.
        num_tokens: usize,
    },
    /// The result of such a step is in.
    PrefillDone(StepId),
    /// The first token since its admission was sampled.
    DecodeBegan,
    /// Lost its blocks to one of better rank.
    Preempted {
        /// Blocks that it lost.
        num_blocks: usize,
        /// Tokens to compute anew.
        num_computed_tokens: usize,
    },
    /// Ended.
    Finished,
    /// Given up by its client.
    Aborted,
}

/// An event, and the request that it happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedEvent {
    /// The request's name in traces.
    pub trace_key: u64,
    /// Length of its prompt.
    pub num_prompt_tokens: usize,
    /// Length of its output so far.
    pub num_output_tokens: usize,
    /// What happened.
    pub event: SchedulerEvent,
}

impl TracedEvent {
    /// What happened to a sequence just now.
    pub fn new(sequence: &Sequence, event: SchedulerEvent) -> TracedEvent {
        TracedEvent {
            trace_key: sequence.trace_key,
            num_prompt_tokens: sequence.num_prompt_tokens,
            num_output_tokens: sequence.num_output_tokens(),
            event,
        }
    }
}
