//! Each way in which a GGUF file can be wrong ends in one line that says which.

use crate::gguf_builder::{GgufBuilder, file};
use nano_model::ModelSource;

/// The error of reading everything from these bytes, without the file's name.
fn error(bytes: &[u8]) -> String {
    let file = file(bytes);
    let source = ModelSource::open(file.path());
    let error = match source.and_then(|source| source.validate()) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(error) => error.to_string(),
    };
    assert!(!error.contains('\n'), "{error}");
    let name = format!("{}: ", file.path().display());
    error.strip_prefix(&name).expect(&error).to_owned()
}

#[track_caller]
fn check(builder: GgufBuilder, want: &str) {
    assert_eq!(error(&builder.bytes()), want);
}

#[test]
fn the_smallest_llama_is_accepted() {
    let file = file(&GgufBuilder::llama().bytes());
    let source = ModelSource::open(file.path()).unwrap();
    let config = source.validate().unwrap();
    assert_eq!((config.vocab_size, config.head_dim), (4, 8));
    assert!(config.tie_word_embeddings);
    // No eos, no bos: nothing to end with, but no error.
    let generation = source.generation_config().unwrap();
    assert_eq!(generation, Default::default());
}

#[test]
fn version_2_is_accepted() {
    let builder = GgufBuilder::llama();
    let file = file(&builder.bytes_claiming(2, 1, 10));
    ModelSource::open(file.path()).unwrap().validate().unwrap();
}

#[test]
fn no_gguf_file() {
    assert_eq!(error(b"PK\x03\x04 and more"), "magic: not a GGUF file");
    assert_eq!(
        error(b"GG"),
        "magic: the file ends here: 4 bytes are needed at offset 0, 2 are left"
    );
    assert_eq!(
        error(b""),
        "magic: the file ends here: 4 bytes are needed at offset 0, 0 are left"
    );
}

#[test]
fn versions() {
    let builder = GgufBuilder::default();
    for (version, want) in [
        (1, "version: GGUF version 1 is not supported (2 and 3 are)"),
        (0, "version: GGUF version 0 is not supported (2 and 3 are)"),
        (3 << 24, "version: big-endian GGUF files are not supported"),
    ] {
        assert_eq!(error(&builder.bytes_claiming(version, 0, 0)), want);
    }
}

#[test]
fn claims_beyond_the_file() {
    let builder = GgufBuilder::default();
    assert_eq!(
        error(&builder.bytes_claiming(3, u64::MAX, 0)),
        "tensor_count: claims 18446744073709551615 items, but the file has room for at most 0"
    );
    let huge = [8u32.to_le_bytes().as_slice(), &u64::MAX.to_le_bytes()].concat();
    check(
        GgufBuilder::default().raw("list", 9, &huge),
        "list: claims 18446744073709551615 items, but the file has room for at most 1",
    );
    check(
        GgufBuilder::default().raw("text", 8, &(1u64 << 40).to_le_bytes()),
        "text: the file ends here: 1099511627776 bytes are needed at offset 48, 16 are left",
    );
}

#[test]
fn values() {
    let nested = [9u32.to_le_bytes().as_slice(), &0u64.to_le_bytes()].concat();
    check(
        GgufBuilder::default().raw("list", 9, &nested),
        "list: arrays of arrays are not supported",
    );
    check(
        GgufBuilder::default().raw("key", 99, &[0; 8]),
        "key: unknown value type 99",
    );
    check(
        GgufBuilder::default().raw("key", 7, &[2]),
        "key: 2 is no boolean",
    );
    check(
        GgufBuilder::default().u32("a", 1).u32("a", 1),
        "a: this key appears twice",
    );
    check(
        GgufBuilder::default().u32("general.alignment", 24),
        "general.alignment: must be a power of two",
    );
    check(
        GgufBuilder::default().u32("split.count", 3),
        "split.count: one of 3 parts; join the parts into one file first",
    );
    check(
        GgufBuilder::default().raw("x\u{1b}[31m\n", 99, &[0; 8]),
        r"x\u{1b}[31m\n: unknown value type 99",
    );
}

#[test]
fn tensors() {
    let with = |dims: &[u64], number: u32, offset: u64| {
        GgufBuilder::llama().tensor_entry("t", dims, number, offset)
    };
    check(
        with(&[], 0, 0),
        "tensor t: has 0 dimensions; 1 to 4 are allowed",
    );
    check(
        with(&[1; 5], 0, 0),
        "tensor t: has 5 dimensions; 1 to 4 are allowed",
    );
    check(
        with(&[8], 10, 0),
        "tensor t: element type 10 is not supported (supported: F32, F16, BF16, Q4_0, Q4_1, \
         Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)",
    );
    check(
        with(&[8], 0, 3),
        "tensor t: offset 3 is not a multiple of the alignment 32",
    );
    for dims in [&[48, 1], &[0, 32], &[u64::MAX - 31, 32]] {
        let want =
            format!("tensor t: shape {dims:?} does not fit Q4_1, whose blocks have 32 elements");
        check(with(dims, 3, 0), &want);
    }
    let error = error(&with(&[128], 0, 0).bytes());
    assert!(
        error.starts_with("tensor t: 512 bytes at offset 0 of the data"),
        "{error}"
    );
    check(
        GgufBuilder::llama().tensor("token_embd.weight", &[16, 4], 0, 256),
        "tensor token_embd.weight: this name appears twice",
    );
}

#[test]
fn a_cut_file_is_noticed() {
    let whole = GgufBuilder::llama().bytes();
    let error = error(&whole[..whole.len() - 1]);
    assert!(error.ends_with("(is it cut?)"), "{error}");
}

#[test]
fn model_fields() {
    let llama = GgufBuilder::llama;
    check(GgufBuilder::default(), "general.architecture: missing");
    check(
        GgufBuilder::default().string("general.architecture", "gpt2"),
        "general.architecture: gpt2 is not supported (supported: llama)",
    );
    check(
        GgufBuilder::default().u32("general.architecture", 1),
        "general.architecture: is an unsigned integer, but must be a string",
    );
    check(
        GgufBuilder::default().string("general.architecture", "llama"),
        "llama.embedding_length: missing",
    );
    check(
        llama().u32("llama.attention.head_count_kv", 0),
        "llama.attention.head_count_kv: 0 is not in 1..=268435456",
    );
    check(
        llama().u32("llama.attention.head_count_kv", 3),
        "llama.attention.head_count_kv: 2 heads cannot share 3 key/value heads evenly",
    );
    check(
        llama().u32("llama.attention.key_length", 12),
        "llama.attention.key_length: 12 is not a multiple of 8",
    );
    check(
        llama().u32("llama.rope.dimension_count", 2),
        "llama.rope.dimension_count: 2 is not supported: heads are 8 wide",
    );
    check(
        llama().f32("llama.rope.freq_base", f32::NAN),
        "llama.rope.freq_base: NaN is not a positive number",
    );
    check(
        llama().string("llama.rope.scaling.type", "yarn"),
        "llama.rope.scaling.type: yarn is not supported (supported: none, linear)",
    );
    check(
        llama().tensor("rope_freqs.weight", &[3], 0, 12),
        "tensor rope_freqs.weight: must hold 4 numbers of type F32",
    );
    check(
        llama().tensor("rope_freqs.weight", &[4], 0, 16),
        "tensor rope_freqs.weight: holds what is no positive number",
    );
}

#[test]
fn tokenizer_fields() {
    let llama = GgufBuilder::llama;
    check(
        llama().raw(
            "tokenizer.ggml.token_type",
            9,
            &[5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        ),
        "tokenizer.ggml.token_type: has 1 entries for 3 tokens",
    );
    check(
        llama().string("tokenizer.ggml.bos_token_id", "x"),
        "tokenizer.ggml.bos_token_id: is a string, but must be an integer of 32 bits",
    );
    let base = GgufBuilder::default()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 16)
        .u32("llama.embedding_length", 16)
        .u32("llama.feed_forward_length", 8)
        .u32("llama.attention.head_count", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    check(base.clone(), "tensor token_embd.weight: missing");
    let base = base.tensor("token_embd.weight", &[16, 4], 0, 256);
    check(
        base.clone(),
        "tokenizer.ggml.model: missing: the file has no tokenizer",
    );
    check(
        base.clone().string("tokenizer.ggml.model", "bert"),
        "tokenizer.ggml.model: bert is not supported (supported: gpt2, llama)",
    );
    let bpe = base.string("tokenizer.ggml.model", "gpt2");
    check(
        bpe.clone(),
        "tokenizer.ggml.tokens: missing: the file has no vocabulary",
    );
    check(
        bpe.strings("tokenizer.ggml.tokens", &["a"; 5]),
        "tokenizer.ggml.tokens: 5 tokens, but the embedding has 4 rows",
    );
}

#[test]
fn ids_that_mean_none_are_none() {
    for value in [u32::MAX, 3] {
        let builder = GgufBuilder::llama().u32("tokenizer.ggml.bos_token_id", value);
        let file = file(&builder.bytes());
        let source = ModelSource::open(file.path()).unwrap();
        let ModelSource::Gguf(gguf) = source else {
            panic!("a file")
        };
        assert_eq!(gguf.tokenizer().unwrap().bos, None);
    }
}
