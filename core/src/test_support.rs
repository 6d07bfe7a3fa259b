//! What the tests of this crate share.

use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::engine_info::{EngineInfo, ModelRunnerInfo};
use nano_ipc::sampling_params::SamplingParams;

/// Size of the vocabulary of [`engine_info`].
pub const VOCAB_SIZE: u32 = 1000;

/// A request that ends only by its length.
pub fn request(id: u64, prompt_token_ids: &[u32], max_tokens: u32) -> EngineCoreRequest {
    EngineCoreRequest {
        id: RequestId(id),
        trace_key: id,
        external_id: format!("request-{id}"),
        prompt_token_ids: prompt_token_ids.to_vec(),
        max_tokens,
        priority: 0,
        sampling: SamplingParams::greedy(),
    }
}

/// An engine of blocks of 4 tokens, 4 sequences and 16 tokens a step.
pub fn engine_info(num_kv_blocks: u32) -> EngineInfo {
    EngineInfo {
        max_model_len: num_kv_blocks * 4,
        vocab_size: VOCAB_SIZE,
        num_kv_blocks,
        block_size: 4,
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        enable_prefix_caching: true,
        model: ModelRunnerInfo {
            architecture: "Mock".into(),
            dtype: "none".into(),
            device: "none".into(),
            weight_bytes: 0,
            load_ms: 0,
        },
    }
}
