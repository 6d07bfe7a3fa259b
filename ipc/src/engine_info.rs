//! What the engine turned out to be once its workers had loaded.

use serde::{Deserialize, Serialize};

/// What the engine turned out to be once its workers had loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_len: u32,
    /// Token ids are below it.
    pub vocab_size: u32,
    /// KV blocks that the scheduler hands out.
    pub num_kv_blocks: u32,
    /// Tokens a KV block holds.
    pub block_size: u32,
    /// Sequences in one step at most.
    pub max_num_seqs: u32,
    /// Tokens in one step at most.
    pub max_num_batched_tokens: u32,
    /// Whether prompts share KV blocks of equal prefixes.
    pub enable_prefix_caching: bool,
    /// Where and how the model computes.
    pub model: ModelRunnerInfo,
}

/// Where and how a worker computes, for logs, metrics and the trace's facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRunnerInfo {
    /// Architecture as the registry names it, for example `LlamaForCausalLM`.
    pub architecture: String,
    /// Type of weights and arithmetic, for example `Q4_1 weights, int8 activations`.
    pub dtype: String,
    /// For example `cpu (2 threads, avx2)`.
    pub device: String,
    /// Bytes of weights in memory.
    pub weight_bytes: u64,
    /// Milliseconds from process start to weights ready.
    pub load_ms: u64,
}
