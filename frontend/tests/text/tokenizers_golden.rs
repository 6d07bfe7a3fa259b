//! Token ids, decoded text and streamed pieces equal those of the golden data.

use crate::{default_model, golden, golden_path, load};
use nano_frontend::text::Tokenizer;
use nano_model::ModelSource;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    strings: Vec<GoldenString>,
    #[serde(default)]
    decode_of_pieces: Vec<Decoded>,
}

#[derive(Deserialize)]
struct GoldenString {
    text: String,
    ids: Vec<u32>,
    ids_with_special: Option<Vec<u32>>,
    decoded: String,
    decoded_skip_special: String,
    stream_pieces: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Decoded {
    ids: Vec<u32>,
    decoded: String,
}

/// Every string of the golden file that differs, by what differs.
fn differences(tokenizer: &Tokenizer, golden: &Golden) -> Vec<String> {
    let mut differences = Vec::new();
    let mut check = |what: &str, text: &str, same: bool| {
        if !same {
            differences.push(format!("{what}: {text:?}"));
        }
    };
    for want in &golden.strings {
        let text = &want.text;
        let ids = tokenizer.encode(text, false).unwrap();
        check("ids", text, ids == want.ids);
        let decoded = tokenizer.decode(&want.ids, false);
        check("decoded", text, decoded == want.decoded);
        let with_special = want.ids_with_special.as_ref().unwrap_or(&want.ids);
        let ids = tokenizer.encode(text, true).unwrap();
        check("ids with special", text, ids == *with_special);
        let decoded = tokenizer.decode(with_special, true);
        check("skip special", text, decoded == want.decoded_skip_special);
        if let Some(pieces) = &want.stream_pieces {
            let mut detokenizer = tokenizer.detokenizer(false);
            let got: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
            check("pieces", text, got == *pieces);
            check("end", text, detokenizer.finish().is_empty());
        }
    }
    for want in &golden.decode_of_pieces {
        let decoded = tokenizer.decode(&want.ids, false);
        check("decode", &want.decoded, decoded == want.decoded);
    }
    differences
}

fn tokenizer(path: &str) -> Tokenizer {
    Tokenizer::load(&ModelSource::open(&golden_path(path)).unwrap()).unwrap()
}

#[track_caller]
fn check(path: &str, golden_file: &str) {
    let golden: Golden = golden(golden_file);
    assert!(golden.strings.len() > 30 && golden.decode_of_pieces.len() > 15);
    let differences = differences(&tokenizer(path), &golden);
    assert!(differences.is_empty(), "{path}: {differences:#?}");
}

#[test]
fn smollm2() {
    let golden: Golden = golden("smollm2/tokenizer_golden.json");
    assert_eq!(golden.strings.len(), 64);
    let tokenizer = Tokenizer::load(&default_model()).unwrap();
    let differences = differences(&tokenizer, &golden);
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn smollm2_partial_characters() {
    #[derive(Deserialize)]
    struct Rows {
        rows: Vec<Decoded>,
    }
    let golden: Rows = golden("smollm2/decode_partial_utf8.json");
    assert!(golden.rows.len() > 10);
    let text = load(&default_model());
    for row in golden.rows {
        assert_eq!(text.decode(&row.ids, false), row.decoded, "{:?}", row.ids);
    }
}

#[test]
fn tokenizer_json() {
    for model in ["tiny-llama", "tiny-llama3-rope"] {
        let dir = format!("models/{model}");
        check(&dir, &format!("{dir}/tokenizer_golden.json"));
    }
    for model in ["tiny-llama-bf16", "tiny-llama-sharded"] {
        check(
            &format!("models/{model}"),
            "models/tiny-llama/tokenizer_golden.json",
        );
    }
}

/// Families whose models come later; their tokenizers work already. Their
/// directories hold no weights here, so the file is read through another's.
#[test]
fn tokenizer_json_of_other_families() {
    for model in [
        "tiny-qwen2",
        "tiny-qwen3",
        "tiny-mistral",
        "tiny-gemma3-text",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let from = golden_path(&format!("models/{model}"));
        for file in ["config.json", "tokenizer.json"] {
            std::fs::copy(from.join(file), dir.path().join(file)).unwrap();
        }
        std::fs::write(dir.path().join("model.safetensors"), "").unwrap();
        check(
            dir.path().to_str().unwrap(),
            &format!("models/{model}/tokenizer_golden.json"),
        );
    }
}

#[test]
fn gguf() {
    for quantization in ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"] {
        check(
            &format!("gguf/tiny-llama.{quantization}.gguf"),
            "models/tiny-llama/tokenizer_golden.json",
        );
    }
    for (file, model) in [
        ("tiny-llama-256.Q4_K_M", "tiny-llama"),
        ("tiny-llama-256.Q6_K", "tiny-llama"),
        ("tiny-llama3-rope.F16", "tiny-llama3-rope"),
        ("tiny-llama-spm.Q8_0", "tiny-mistral"),
        ("tiny-qwen2.Q8_0", "tiny-qwen2"),
        ("tiny-qwen3.Q8_0", "tiny-qwen3"),
    ] {
        check(
            &format!("gguf/{file}.gguf"),
            &format!("models/{model}/tokenizer_golden.json"),
        );
    }
}

#[test]
fn end_tokens() {
    let smollm2 = load(&default_model());
    assert_eq!(smollm2.generation_defaults().eos_token_ids, [2]);
    assert_eq!(smollm2.chat_eos_token_ids(), [2]);
    assert_eq!(smollm2.vocab_size(), 49152);
    // The file's only end token is <|eot_id|>.
    let llama3 = crate::load_golden("gguf/tiny-llama3-rope.F16.gguf");
    assert_eq!(llama3.chat_eos_token_ids(), [766]);
}

#[test]
fn texts_of_single_tokens() {
    let smollm2 = load(&default_model());
    assert_eq!(
        smollm2.token_text(905),
        (" world".into(), b" world".to_vec())
    );
    let (text, bytes) = smollm2.token_text(10813);
    assert_eq!(
        (text.as_str(), bytes.as_slice()),
        ("\u{fffd}", &[0xF0, 0x9F][..])
    );
    assert_eq!(smollm2.token_text(1).0, "<|im_start|>");
    assert_eq!(smollm2.token_text(u32::MAX), (String::new(), Vec::new()));
}

#[test]
fn a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let from = golden_path("models/tiny-llama");
    std::fs::copy(
        from.join("tokenizer.json"),
        dir.path().join("tokenizer.json"),
    )
    .unwrap();
    std::fs::write(dir.path().join("model.safetensors"), "").unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let config = config.replace("\"vocab_size\": 768", "\"vocab_size\": 700");
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let source = ModelSource::open(dir.path()).unwrap();
    let Err(error) = nano_frontend::text::TextModel::load(&source, None) else {
        panic!("accepted")
    };
    let error = error.to_string();
    let want = "vocab_size: the tokenizer has ids up to 767, but the model's vocab_size is 700";
    assert!(error.ends_with(want), "{error}");
}
