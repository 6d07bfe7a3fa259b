//! What the core receives on its data sockets.

use crate::{
    engine_core_request::{EngineCoreRequest, RequestId},
    engine_info::ModelRunnerInfo,
    model_runner_output::ModelRunnerOutput,
    role::Role,
};
use serde::{Deserialize, Serialize};

/// Version of everything in this crate that crosses a socket.
pub const PROTOCOL_VERSION: u32 = 3;

/// First message of every connection to the core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Must equal the core's [`PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// Who connects.
    pub role: Role,
    /// Random word of the server's start: a process of another server is refused.
    pub run: u64,
}

/// Whatever can arrive at the core; which connection it came from decides what
/// is legal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCore {
    /// Legal once, first, on every connection.
    Hello(Hello),
    /// From a frontend, after the core's `Ready`.
    Add(EngineCoreRequest),
    /// From a frontend at any time after `Ready`; unknown or finished ids are
    /// no error, because an abort races with the end.
    Abort(RequestId),
    /// From a worker, once, after its `Hello` and after its weights are loaded.
    Loaded(WorkerLoaded),
    /// From a worker, once for each plan, in order.
    StepDone(ModelRunnerOutput),
    /// From a worker, last before it ends: it cannot go on.
    Fatal(String),
}

/// What a worker found when it had loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerLoaded {
    /// KV blocks that fit its memory.
    pub num_kv_blocks: u32,
    /// The model's longest sequence, already bounded by `--max-model-len`.
    pub max_model_len: u32,
    /// Rows of the model's lm_head.
    pub vocab_size: u32,
    /// Where and how it computes.
    pub info: ModelRunnerInfo,
}
