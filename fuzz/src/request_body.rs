//! The body of a request, as every route that takes one reads it.

use nano_frontend::client_input::{ClientInput, Taken};
use nano_frontend::text::TextModel;
use nano_ipc::engine_info::{EngineInfo, ModelRunnerInfo};
use nano_model::ModelSource;
use serde_json::Value;
use std::path::Path;
use std::sync::LazyLock;

const VOCAB_SIZE: u32 = 768;
const MAX_MODEL_LEN: u32 = 512;

static INPUT: LazyLock<ClientInput> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let path = root
        .expect("in the repository")
        .join("tests/golden/models/tiny-llama3-rope");
    let source = ModelSource::open(&path).expect("golden model");
    let text = TextModel::load(&source, None).expect("golden model");
    let info = EngineInfo {
        max_model_len: MAX_MODEL_LEN,
        vocab_size: VOCAB_SIZE,
        num_kv_blocks: 100,
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
    };
    ClientInput::new(text, info)
});

/// Reads these bytes as a body of every route.
pub fn run(bytes: &[u8]) {
    check_taken(INPUT.completion(bytes));
    check_taken(INPUT.chat(bytes));
    for answer in [INPUT.tokenize(bytes), INPUT.detokenize(bytes)] {
        if let Err(error) = answer {
            check_error(&error);
        }
    }
}

/// What the engine relies on holds, or the client can read what is wrong.
fn check_taken(taken: Result<Taken, Value>) {
    let taken = match taken {
        Ok(taken) => taken,
        Err(error) => return check_error(&error),
    };
    assert!(!taken.prompt_token_ids.is_empty() && (1..=128).contains(&taken.n));
    assert_eq!(taken.prompt_token_ids.len(), taken.max_tokens.len());
    for (ids, max_tokens) in taken.prompt_token_ids.iter().zip(&taken.max_tokens) {
        assert!(!ids.is_empty() && *max_tokens > 0);
        assert!(ids.len() as u64 + u64::from(*max_tokens) <= u64::from(MAX_MODEL_LEN));
        assert!(ids.iter().all(|id| *id < VOCAB_SIZE));
    }
    let sampling = taken.sampling;
    assert!((0.0..=2.0).contains(&sampling.temperature));
    assert!(sampling.top_p > 0.0 && sampling.top_p <= 1.0);
    assert!((0.0..=1.0).contains(&sampling.min_p));
    assert!((-2.0..=2.0).contains(&sampling.presence_penalty));
    assert!((-2.0..=2.0).contains(&sampling.frequency_penalty));
    assert!(sampling.repetition_penalty > 0.0 && sampling.repetition_penalty <= 2.0);
    let biases = &sampling.logit_bias;
    assert!(
        biases
            .iter()
            .all(|(id, bias)| *id < VOCAB_SIZE && bias.abs() <= 100.0)
    );
    assert!(sampling.stop_token_ids.iter().all(|id| *id < VOCAB_SIZE));
    assert!(
        taken
            .max_tokens
            .iter()
            .all(|max| sampling.min_tokens <= *max)
    );
    assert!(sampling.logprobs.is_none_or(|top| top <= 20));
}

/// OpenAI's shape, and short, whatever the client sent.
fn check_error(error: &Value) {
    let message = error["error"]["message"].as_str().expect("a text");
    assert!(
        !message.is_empty() && message.len() <= 2048 + " [...] ".len(),
        "{message}"
    );
    assert_eq!(error["error"]["type"], "invalid_request_error", "{error}");
}
