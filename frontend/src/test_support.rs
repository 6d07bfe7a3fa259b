//! What unit tests of several modules need.

use crate::engine_client::NewSequence;
use crate::request_trace::SequenceTrace;
use crate::served_model::{ServedModel, ServedNames};
use crate::text::TextModel;
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::engine_info::{EngineInfo, ModelRunnerInfo};
use nano_ipc::sampling_params::SamplingParams;
use nano_model::ModelSource;
use std::path::Path;

/// A small engine: 64 tokens of context.
pub fn engine_info(vocab_size: u32) -> EngineInfo {
    EngineInfo {
        max_model_len: 64,
        vocab_size,
        num_kv_blocks: 10,
        block_size: 16,
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        enable_prefix_caching: false,
        model: ModelRunnerInfo {
            architecture: String::new(),
            dtype: String::new(),
            device: String::new(),
            weight_bytes: 0,
            load_ms: 0,
        },
    }
}

/// A golden model, served as `m`.
pub fn served_model() -> ServedModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/tiny-llama");
    let source = ModelSource::open(&path).expect("golden model");
    let text = TextModel::load(&source, None).expect("golden model");
    ServedModel {
        names: ServedNames::new(vec!["m".to_owned()]).into(),
        info: engine_info(text.vocab_size() as u32).into(),
        text: text.into(),
    }
}

/// A greedy sequence of one prompt token.
pub fn new_sequence(max_tokens: u32) -> NewSequence {
    NewSequence {
        request: EngineCoreRequest {
            id: RequestId(0),
            trace_key: 1,
            external_id: "x".to_owned(),
            prompt_token_ids: vec![1],
            max_tokens,
            priority: 0,
            sampling: SamplingParams::greedy(),
        },
        trace: SequenceTrace::begin(1, &[], None),
    }
}
