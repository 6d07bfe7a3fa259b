//! What a frontend receives from the core.

use crate::{engine_core_output::EngineCoreOutput, engine_info::EngineInfo};
use serde::{Deserialize, Serialize};

/// What a frontend receives from the core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToFrontend {
    /// First message, once all workers are loaded. Requests are legal from here on.
    Ready(EngineInfo),
    /// After a step, or after an admission was refused: at most one output a
    /// request, with the scheduler's gauges of the same moment. Without outputs
    /// when only these are news.
    Outputs {
        /// In no particular order.
        outputs: Vec<EngineCoreOutput>,
        /// State of the scheduler after the step.
        stats: SchedulerStats,
    },
    /// Last message before the core ends on its own: every open request fails
    /// with this reason.
    Fatal(String),
}

/// Gauges and counters of the scheduler, for `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerStats {
    /// Sequences in a step.
    pub num_running: u32,
    /// Sequences admitted but not yet in a step.
    pub num_waiting: u32,
    /// Requests that the core keeps.
    pub num_requests: u32,
    /// Sequences that the first rank keeps.
    pub num_worker_sequences: u32,
    /// KV blocks that sequences hold; blocks only cached count as free.
    pub num_used_blocks: u32,
    /// Steps since start.
    pub num_steps: u64,
    /// Sequences preempted since start.
    pub num_preemptions: u64,
    /// Prompt tokens looked up in the prefix cache since start.
    pub prefix_cache_queries: u64,
    /// Of those, tokens found.
    pub prefix_cache_hits: u64,
}
