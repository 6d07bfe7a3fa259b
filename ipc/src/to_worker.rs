//! What a worker receives from the core.

use crate::scheduler_output::SchedulerOutput;
use nano_trace::SessionName;
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
    /// Before a `Step`, if it switches the recording of a session.
    Mark(StepMark),
    /// After that, any number of times; answered by one `StepDone` each, in order.
    Step(SchedulerOutput),
}

/// How a step switches the recording of a session that follows steps. Each
/// worker does so at its own begin and end of the step: no other clock can tell
/// when these are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMark {
    /// Which session.
    pub session: SessionName,
    /// On or off at its begin; `None`: as before.
    pub at_begin: Option<bool>,
    /// Off at its end.
    pub off_at_end: bool,
}
