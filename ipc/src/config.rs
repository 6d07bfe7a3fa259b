//! What each process is started with: validated once by the launcher, from
//! its command line, and carried whole.

use crate::flight::FlightRules;
use crate::role::Role;
use nano_trace::SessionSpec;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// A file descriptor that the child inherited, by number.
pub type InheritedFd = i32;

/// First message on a child's control socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Random word of the server's start.
    pub run: u64,
    /// Most verbose level that is logged.
    pub log_level: String,
    /// Present when `NANO_PROFILER_DIR` or `--profiler-dir` is.
    pub trace: Option<TraceConfig>,
    /// What this process is, and how it is set up.
    pub role: RoleConfig,
}

/// Where and how a process records.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceConfig {
    /// Absolute; made by the launcher.
    pub dir: PathBuf,
    /// Sessions that begin with the process: `auto`, or what the others record
    /// already.
    pub sessions: Vec<SessionSpec>,
    /// The memfd of this process's rings, mapped by the launcher too.
    pub rings_fd: InheritedFd,
    /// Facts of the run for `trace_attributes`: key and value.
    pub facts: Vec<(String, String)>,
    /// So long does it keep what it recorded, for dumps of others.
    pub keep: Option<Duration>,
}

/// Set-up of one role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RoleConfig {
    /// For `nano-frontend`.
    Frontend(FrontendConfig),
    /// For `nano-core`.
    Core(CoreConfig),
    /// For `nano-worker`.
    Worker(WorkerConfig),
}

/// A process was started with the set-up of another role.
#[derive(Debug, thiserror::Error)]
#[error("the launcher sent the set-up of another role than {0}")]
pub struct WrongRole(&'static str);

/// Lets a process take its own set-up out of [`RoleConfig`].
macro_rules! from_role {
    ($($config:ident = $variant:ident, $name:literal;)*) => {$(
        impl TryFrom<RoleConfig> for $config {
            type Error = WrongRole;

            fn try_from(role: RoleConfig) -> Result<$config, WrongRole> {
                match role {
                    RoleConfig::$variant(config) => Ok(config),
                    _ => Err(WrongRole($name)),
                }
            }
        }
    )*};
}

from_role! {
    FrontendConfig = Frontend, "frontend";
    CoreConfig = Core, "core";
    WorkerConfig = Worker, "worker";
}

impl RoleConfig {
    /// What the process is.
    pub fn role(&self) -> Role {
        match self {
            RoleConfig::Frontend(_) => Role::Frontend,
            RoleConfig::Core(_) => Role::Core,
            RoleConfig::Worker(worker) => Role::Worker { rank: worker.rank },
        }
    }
}

/// Set-up of a frontend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FrontendConfig {
    /// A .gguf file or a directory in Hugging Face layout; for tokenizer,
    /// chat template and generation defaults.
    pub model: PathBuf,
    /// Names under which clients may ask for the model; the first is answered. Not empty.
    pub served_model_names: Vec<String>,
    /// A chat template file that replaces the model's own.
    pub chat_template: Option<PathBuf>,
    /// A bound, listening TCP socket.
    pub http_listener_fd: InheritedFd,
    /// Path of the core's listening socket.
    pub engine_socket: PathBuf,
    /// Key that guards `/v1`.
    pub api_key: Option<String>,
    /// Key that guards the profiler's paths.
    pub profile_api_key: Option<String>,
    /// Larger bodies are answered by 413.
    pub max_body_bytes: u64,
    /// Connections at once; more wait in the kernel's queue.
    pub max_connections: u32,
    /// Requests in the engine at once, waiting ones included; more are answered by 429.
    pub max_queued_requests: u32,
    /// Seeds the seeds of requests that bring none; random when absent.
    pub seed: Option<u64>,
    /// What is too slow.
    pub rules: FlightRules,
}

/// Set-up of the core.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoreConfig {
    /// A bound, listening Unix socket, to which frontends and workers connect.
    pub engine_listener_fd: InheritedFd,
    /// Workers to wait for.
    pub world_size: u32,
    /// Sequences in one step at most.
    pub max_num_seqs: u32,
    /// Tokens in one step at most.
    pub max_num_batched_tokens: u32,
    /// Tokens a KV block holds.
    pub block_size: u32,
    /// Share KV blocks of equal prefixes.
    pub enable_prefix_caching: bool,
    /// Sequences waiting at most; more are refused.
    pub max_waiting: u32,
    /// Workers have recorders of their own.
    pub workers_record: bool,
    /// What is too slow.
    pub rules: FlightRules,
}

/// Set-up of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// A .gguf file or a directory in Hugging Face layout.
    pub model: PathBuf,
    /// `0..world_size`.
    pub rank: u32,
    /// Ranks in all.
    pub world_size: u32,
    /// Path of the core's listening socket.
    pub engine_socket: PathBuf,
    /// How weights are kept and computed with.
    pub dtype: Dtype,
    /// Which device backend.
    pub device: DeviceKind,
    /// Tokens a KV block holds.
    pub block_size: u32,
    /// Blocks to report instead of what fits the memory.
    pub num_kv_blocks: Option<u32>,
    /// Bytes that the KV cache may take.
    pub kv_cache_memory_bytes: u64,
    /// Bound of the model's own context.
    pub max_model_len: Option<u32>,
    /// Sequences in one step at most.
    pub max_num_seqs: u32,
    /// Tokens in one step at most.
    pub max_num_batched_tokens: u32,
    /// Threads that compute; all available ones when absent.
    pub threads: Option<u32>,
}

/// How weights are kept and computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dtype {
    /// As the model's files have them, with the fastest arithmetic of ours
    /// (quantized weights: activations quantized to int8).
    Auto,
    /// Everything in f32, quantized weights dequantized at load: exact and slow.
    Float32,
}

/// Which device backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// The host's processors.
    Cpu,
    /// A CUDA device; an error in a build without the feature `cuda`.
    Cuda,
}
