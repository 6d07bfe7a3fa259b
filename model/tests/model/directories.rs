//! Each way in which a model directory can be wrong ends in one line that says which.

use crate::golden_path;
use nano_model::{GenerationConfig, ModelError, ModelSource};
use serde_json::{Map, Value, json};
use std::os::unix::fs::symlink;
use std::process::Command;
use tempfile::TempDir;

/// tiny-llama's directory with changed files.
struct Dir(TempDir);

impl Dir {
    fn tiny_llama() -> Self {
        let dir = Dir(tempfile::tempdir().unwrap());
        for file in ["config.json", "generation_config.json", "tokenizer.json"] {
            let from = golden_path("models/tiny-llama").join(file);
            std::fs::copy(from, dir.0.path().join(file)).unwrap();
        }
        dir.write("model.safetensors", "")
    }

    fn write(self, file: &str, text: &str) -> Self {
        std::fs::write(self.0.path().join(file), text).unwrap();
        self
    }

    fn remove(self, file: &str) -> Self {
        std::fs::remove_file(self.0.path().join(file)).unwrap();
        self
    }

    /// A field of `config.json` set, or removed by null.
    fn set(self, field: &str, value: Value) -> Self {
        let path = self.0.path().join("config.json");
        let text = std::fs::read_to_string(path).unwrap();
        let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
        config.insert(field.into(), value);
        self.write("config.json", &serde_json::to_string(&config).unwrap())
    }

    fn read(&self) -> Result<GenerationConfig, ModelError> {
        let source = ModelSource::open(self.0.path())?;
        source.validate()?;
        source.generation_config()
    }

    #[track_caller]
    fn check(self, want: &str) {
        let error = self.read().unwrap_err().to_string();
        let got = error.replace(&self.0.path().display().to_string(), "DIR");
        assert_eq!(got, want);
    }
}

#[test]
fn missing_files() {
    let dir = Dir::tiny_llama;
    dir().read().unwrap();
    dir()
        .remove("config.json")
        .check("DIR: no config.json in this directory");
    dir()
        .remove("config.json")
        .write("a.gguf", "")
        .check("DIR: no config.json in this directory; to serve a.gguf, name that file");
    dir()
        .remove("model.safetensors")
        .check("DIR: neither model.safetensors nor model.safetensors.index.json in this directory");
    dir()
        .remove("tokenizer.json")
        .check("DIR: no tokenizer.json in this directory (tokenizer.model alone is not supported)");
    dir().remove("generation_config.json").read().unwrap();
    let error = ModelSource::open("/no/such/model".as_ref()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("/no/such/model: No such file")
    );
}

/// A name that stands for what is no file: said as it is, and never read, for
/// to read from a pipe would take for ever.
#[test]
fn what_is_no_file() {
    for file in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "tokenizer.json",
        "model.safetensors",
    ] {
        let empty = || {
            let dir = Dir::tiny_llama();
            let path = dir.0.path().join(file);
            let _ = std::fs::remove_file(&path);
            (dir, path)
        };
        let (dir, path) = empty();
        std::fs::create_dir(&path).unwrap();
        dir.check(&format!("DIR/{file}: is not a file"));

        let (dir, path) = empty();
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        dir.check(&format!("DIR/{file}: is not a file"));

        let (dir, path) = empty();
        symlink("nowhere", &path).unwrap();
        dir.check(&format!("DIR/{file}: is a link to nothing"));

        let (dir, path) = empty();
        symlink(file, &path).unwrap();
        let error = dir.read().unwrap_err().to_string();
        let of_file = error.strip_prefix(&format!("{}: ", path.display()));
        assert!(
            of_file.is_some_and(|e| e.contains("symbolic links")),
            "{error}"
        );
    }
}

#[test]
fn shards() {
    let index = |text: &str| {
        Dir::tiny_llama()
            .remove("model.safetensors")
            .write("model.safetensors.index.json", text)
    };
    index(r#"{"weight_map": {"a": "x.safetensors"}}"#)
        .check("DIR/model.safetensors.index.json: weight_map: x.safetensors is missing on disk");
    index(r#"{"weight_map": {"a": "../../etc/passwd"}}"#)
        .check("DIR/model.safetensors.index.json: weight_map.a: is no plain file name");
    index(r#"{"weight_map": {}}"#).check("DIR/model.safetensors.index.json: weight_map: is empty");
    index("{}").check("DIR/model.safetensors.index.json: weight_map: missing");
}

#[test]
fn broken_json() {
    Dir::tiny_llama()
        .write("config.json", "{\"a\": ")
        .check("DIR/config.json: invalid JSON: EOF while parsing a value at line 1 column 6");
    Dir::tiny_llama()
        .write("config.json", "[]")
        .check("DIR/config.json: the top level is no JSON object");
}

#[test]
fn config_fields() {
    for (field, value, want) in [
        (
            "architectures",
            json!(["GPT2LMHeadModel"]),
            "architectures: [\"GPT2LMHeadModel\"] is not supported (supported: LlamaForCausalLM)",
        ),
        ("architectures", Value::Null, "architectures: missing"),
        ("hidden_size", Value::Null, "hidden_size: missing"),
        (
            "hidden_size",
            json!("64"),
            "hidden_size: \"64\" is not an integer from 0 to 4294967295",
        ),
        (
            "hidden_size",
            json!(-1),
            "hidden_size: -1 is not an integer from 0 to 4294967295",
        ),
        (
            "num_hidden_layers",
            json!(0),
            "num_hidden_layers: 0 is not in 1..=268435456",
        ),
        (
            "num_attention_heads",
            json!(0),
            "num_attention_heads: 0 is not in 1..=268435456",
        ),
        (
            "num_key_value_heads",
            json!(3),
            "num_key_value_heads: 4 heads cannot share 3 key/value heads evenly",
        ),
        ("head_dim", json!(15), "head_dim: 15 is not a multiple of 8"),
        (
            "max_position_embeddings",
            json!(1 << 25),
            "max_position_embeddings: 33554432 is not in 1..=16777216",
        ),
        (
            "rms_norm_eps",
            json!(0),
            "rms_norm_eps: 0 is not a positive number",
        ),
        (
            "rope_theta",
            json!(-5.0),
            "rope_theta: -5 is not a positive number",
        ),
        (
            "hidden_act",
            json!("gelu"),
            "hidden_act: gelu is not supported (supported: silu)",
        ),
        (
            "attention_bias",
            json!(true),
            "attention_bias: true is not supported",
        ),
        (
            "torch_dtype",
            json!("int8"),
            "torch_dtype: int8 is not supported (supported: float32, float16, bfloat16)",
        ),
        (
            "quantization_config",
            json!({}),
            "quantization_config: quantized safetensors are not supported; use a GGUF file of the model",
        ),
        (
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 4}),
            "rope_scaling.rope_type: yarn is not supported (supported: default, linear, llama3)",
        ),
        (
            "rope_scaling",
            json!({"type": "linear"}),
            "rope_scaling.factor: missing",
        ),
        (
            "rope_scaling",
            json!({"type": "linear", "factor": 0}),
            "rope_scaling.factor: 0 is not positive",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                                   "high_freq_factor": 4}),
            "rope_parameters.high_freq_factor: must be above low_freq_factor",
        ),
        (
            "eos_token_id",
            json!("</s>"),
            "eos_token_id: \"</s>\" is not a token id or a list of token ids",
        ),
    ] {
        Dir::tiny_llama()
            .set(field, value)
            .check(&format!("DIR/config.json: {want}"));
    }
}

#[test]
fn missing_and_odd_end_tokens_are_no_error() {
    let eos = |dir: Dir| dir.read().unwrap().eos_token_ids;
    let without = || Dir::tiny_llama().remove("generation_config.json");
    assert!(eos(without().set("eos_token_id", Value::Null)).is_empty());
    assert!(eos(without().set("eos_token_id", json!(-1))).is_empty());
    assert_eq!(eos(without().set("eos_token_id", json!([5, 2, 5]))), [2, 5]);
    // Outside of the vocabulary of 768.
    assert_eq!(eos(without().set("eos_token_id", json!([2, 768]))), [2]);
    // Both files count.
    assert_eq!(eos(Dir::tiny_llama().set("eos_token_id", json!(7))), [2, 7]);
    let bos = without().set("bos_token_id", Value::Null);
    assert_eq!(bos.read().unwrap().bos_token_id, None);
}

#[test]
fn sampling_fields() {
    for (text, want) in [
        (r#"{"temperature": 3}"#, "temperature: 3 is not in 0..=2"),
        (r#"{"top_p": 0}"#, "top_p: 0 is not in (0, 1]"),
        (
            r#"{"top_k": -3}"#,
            "top_k: -3 is not an integer from 0 to 4294967295",
        ),
        (
            r#"{"repetition_penalty": "1"}"#,
            "repetition_penalty: \"1\" is not a number",
        ),
    ] {
        Dir::tiny_llama()
            .write("generation_config.json", text)
            .check(&format!("DIR/generation_config.json: {want}"));
    }
    let all = Dir::tiny_llama().write("generation_config.json", r#"{"top_k": -1, "top_p": null}"#);
    let sampling = all.read().unwrap().sampling;
    assert_eq!((sampling.top_k, sampling.top_p), (Some(0), None));
}

#[test]
fn the_three_places_of_a_chat_template() {
    let template = |dir: &Dir| {
        let source = ModelSource::open(dir.0.path()).unwrap();
        source.tokenizer_config().unwrap().chat_template
    };
    let dir = Dir::tiny_llama();
    assert_eq!(template(&dir), None);
    let named = r#"{"chat_template": [{"name": "tool_use", "template": "T"},
        {"name": "default", "template": "D"}], "bos_token": {"content": "<s>"}}"#;
    let dir = dir.write("tokenizer_config.json", named);
    assert_eq!(template(&dir).as_deref(), Some("D"));
    let dir = dir.write("chat_template.json", r#"{"chat_template": "J"}"#);
    assert_eq!(template(&dir).as_deref(), Some("J"));
    let dir = dir.write("chat_template.jinja", "F");
    assert_eq!(template(&dir).as_deref(), Some("F"));
    let source = ModelSource::open(dir.0.path()).unwrap();
    let tokens = source.tokenizer_config().unwrap().special_tokens;
    assert_eq!(tokens["bos_token"], "<s>");
}
