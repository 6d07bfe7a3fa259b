//! What a worker receives from the core.

use crate::scheduler_output::SchedulerOutput;
use serde::{Deserialize, Serialize};

/// What a worker receives from the core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Once, after every rank's `Loaded`: how many KV blocks to allocate (the
    /// least that any rank has room for).
    AllocateKvCache {
        /// Blocks a layer.
        num_kv_blocks: u32,
    },
    /// After that, any number of times; answered by one `StepDone` each, in order.
    Step(SchedulerOutput),
}
