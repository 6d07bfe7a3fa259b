//! What the golden models say of themselves.

use crate::golden_path;
use nano_model::gguf::{GgmlType, TokenType, TokenizerModel};
use nano_model::{Architecture, ModelConfig, ModelSource, Rope, RopeScaling, WeightDtype};
use serde_json::Value;
use std::path::Path;

fn open(name: &str) -> ModelSource {
    ModelSource::open(&golden_path(name)).unwrap()
}

fn config(name: &str) -> ModelConfig {
    open(name).config().unwrap()
}

/// The directory's files with `config.json` replaced by another of its files.
fn config_from(dir: &str, file: &str) -> ModelConfig {
    let from = golden_path(dir);
    let to = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "generation_config.json"] {
        std::fs::copy(from.join(name), to.path().join(name)).unwrap();
    }
    std::fs::copy(from.join(file), to.path().join("config.json")).unwrap();
    ModelSource::open(to.path()).unwrap().config().unwrap()
}

fn tiny_llama() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::LlamaForCausalLM,
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        intermediate_size: 128,
        vocab_size: 768,
        rms_norm_eps: 1e-5,
        rope: Rope {
            theta: 10_000.0,
            scaling: RopeScaling::None,
        },
        max_position_embeddings: 2048,
        tie_word_embeddings: false,
        weight_dtype: WeightDtype::F32,
    }
}

fn tiny_llama3_rope() -> ModelConfig {
    ModelConfig {
        hidden_size: 96,
        num_attention_heads: 3,
        num_key_value_heads: 1,
        head_dim: 32,
        rope: Rope {
            theta: 500_000.0,
            scaling: RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 128,
            },
        },
        max_position_embeddings: 1024,
        tie_word_embeddings: true,
        ..tiny_llama()
    }
}

#[test]
fn configurations_of_directories() {
    assert_eq!(config("models/tiny-llama"), tiny_llama());
    assert_eq!(config("models/tiny-llama-sharded"), tiny_llama());
    assert_eq!(config("models/tiny-llama3-rope"), tiny_llama3_rope());
    let bf16 = ModelConfig {
        weight_dtype: WeightDtype::BF16,
        ..tiny_llama()
    };
    assert_eq!(config("models/tiny-llama-bf16"), bf16);
    let mut linear = tiny_llama();
    linear.rope.scaling = RopeScaling::Linear { factor: 2.0 };
    assert_eq!(
        config_from("models/tiny-llama", "config_linear.json"),
        linear
    );
}

#[test]
fn both_spellings_of_transformers_say_the_same() {
    for (dir, want) in [
        ("models/tiny-llama", tiny_llama()),
        ("models/tiny-llama3-rope", tiny_llama3_rope()),
    ] {
        assert_eq!(config_from(dir, "config_v5.json"), want, "{dir}");
    }
}

#[test]
fn configurations_of_gguf_files() {
    let gguf = |want: ModelConfig| ModelConfig {
        weight_dtype: WeightDtype::Gguf,
        rms_norm_eps: f64::from(1e-5f32),
        ..want
    };
    for quantization in ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"] {
        let file = format!("gguf/tiny-llama.{quantization}.gguf");
        assert_eq!(config(&file), gguf(tiny_llama()), "{file}");
    }
    assert_eq!(config("gguf/tiny-llama-spm.Q8_0.gguf"), gguf(tiny_llama()));

    let mut got = config("gguf/tiny-llama3-rope.F16.gguf");
    let scaled = got.rope.inverse_frequencies(got.head_dim);
    let want = tiny_llama3_rope();
    let wanted = want.rope.inverse_frequencies(want.head_dim);
    for (got, want) in scaled.iter().zip(&wanted) {
        assert!((got / want - 1.0).abs() < 1e-6, "{got} {want}");
    }
    assert!(matches!(&got.rope.scaling, RopeScaling::Divisors(d) if d.len() == 16));
    got.rope.scaling = want.rope.scaling.clone();
    assert_eq!(got, gguf(want));
}

#[test]
fn shards_are_found_once_each() {
    let ModelSource::Directory(dir) = open("models/tiny-llama-sharded") else {
        panic!("a directory")
    };
    let names: Vec<_> = dir
        .weight_files()
        .iter()
        .map(|file| file.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors"
        ]
    );
}

#[test]
fn end_tokens_and_sampling() {
    let llama = open("models/tiny-llama").generation_config().unwrap();
    assert_eq!(llama.eos_token_ids, [2]);
    assert_eq!(llama.bos_token_id, Some(1));
    assert_eq!(llama.sampling, Default::default());

    let llama3 = open("models/tiny-llama3-rope").generation_config().unwrap();
    assert_eq!(llama3.eos_token_ids, [760, 765, 766]);
    assert_eq!(llama3.sampling.temperature, Some(0.6));
    assert_eq!(llama3.sampling.top_p, Some(0.9));
    assert_eq!(llama3.sampling.top_k, None);

    let gguf = open("gguf/tiny-llama3-rope.F16.gguf");
    assert_eq!(gguf.generation_config().unwrap().eos_token_ids, [766]);
}

#[test]
fn tensors_of_gguf_files_are_those_of_the_golden_data() {
    let text = std::fs::read_to_string(golden_path("gguf/golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    for entry in golden["files"].as_array().unwrap() {
        let name = entry["file"].as_str().unwrap();
        let gguf = nano_model::gguf::GgufFile::open(&golden_path(&format!("gguf/{name}"))).unwrap();
        let tensors = entry["tensors"].as_object().unwrap();
        assert_eq!(gguf.tensors().len(), tensors.len(), "{name}");
        for (tensor, want) in tensors {
            let info = gguf.tensor(tensor).unwrap();
            let shape: Vec<usize> = serde_json::from_value(want["shape"].clone()).unwrap();
            assert_eq!(info.shape(), shape, "{name} {tensor}");
            assert_eq!(info.ggml_type.name(), want["type"].as_str().unwrap());
            let data = gguf.tensor_data(tensor).unwrap();
            assert_eq!(data.len() as u64, info.bytes);
            if info.ggml_type == GgmlType::F32 {
                let first = f32::from_le_bytes(data[..4].try_into().unwrap());
                let want = want["first4"][0].as_f64().unwrap();
                assert!((f64::from(first) - want).abs() < 1e-6, "{name} {tensor}");
            }
        }
    }
}

#[test]
fn tokenizers_of_gguf_files() {
    let ModelSource::Gguf(gguf) = open("gguf/tiny-llama.F32.gguf") else {
        panic!("a file")
    };
    let bpe = gguf.tokenizer().unwrap();
    assert_eq!(bpe.model, TokenizerModel::ByteLevelBpe);
    assert_eq!(bpe.pre, "smollm");
    assert_eq!((bpe.tokens.len(), bpe.merges.len()), (768, 508));
    assert_eq!(bpe.token_types[2], TokenType::Control);
    assert_eq!((bpe.bos, bpe.eos, bpe.unknown), (Some(1), Some(2), None));

    let ModelSource::Gguf(gguf) = open("gguf/tiny-llama-spm.Q8_0.gguf") else {
        panic!("a file")
    };
    let spm = gguf.tokenizer().unwrap();
    assert_eq!(spm.model, TokenizerModel::SentencePiece);
    assert_eq!((spm.tokens.len(), spm.scores.len()), (768, 768));
    assert_eq!(spm.token_types[0], TokenType::Unknown);
    assert_eq!(spm.add_space_prefix, Some(true));
}

#[test]
fn templates_and_special_tokens() {
    for name in ["models/tiny-llama", "gguf/tiny-llama.F32.gguf"] {
        let config = open(name).tokenizer_config().unwrap();
        assert!(config.chat_template.unwrap().contains("<|im_start|>"));
        assert_eq!(config.special_tokens["bos_token"], "<|im_start|>");
        assert_eq!(config.special_tokens["eos_token"], "<|im_end|>");
    }
}

#[test]
fn other_architectures_are_refused_by_name() {
    for (path, want) in [
        (
            "gguf/tiny-qwen2.Q8_0.gguf",
            "general.architecture: qwen2 is not supported (supported: llama)",
        ),
        (
            "gguf/tiny-qwen3.Q8_0.gguf",
            "general.architecture: qwen3 is not supported (supported: llama)",
        ),
    ] {
        let error = open(path).config().unwrap_err().to_string();
        assert!(error.ends_with(want), "{error}");
        assert!(error.contains(Path::new(path).file_name().unwrap().to_str().unwrap()));
    }
}
