//! The tokenizer of a GGUF file, rebuilt from its metadata.
//!
//! GGUF keeps vocabulary and merges, and for the rest one name
//! (`tokenizer.ggml.pre`) that stands for how the model's own tokenizer cuts
//! text into words. What each name stands for is written here.

use nano_model::gguf::{GgufTokenizer, TokenType, TokenizerModel};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::{AddedToken, Tokenizer};

/// What is wrong: the metadata key and the reason.
pub(super) struct BuildError {
    pub field: &'static str,
    pub reason: String,
}

impl BuildError {
    fn new(field: &'static str, reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self { field, reason }
    }
}

pub(super) fn build(gguf: &GgufTokenizer<'_>) -> Result<Tokenizer, BuildError> {
    match gguf.model {
        TokenizerModel::ByteLevelBpe => byte_level_bpe(gguf),
        TokenizerModel::SentencePiece => sentence_piece(gguf),
    }
}

/// How text is cut into words before byte-level BPE.
struct PreTokenizer {
    /// Pattern of a word; GPT-2's own where absent.
    pattern: Option<&'static str>,
    /// Each digit is a word.
    single_digits: bool,
    /// A word that is a token needs no merges.
    ignore_merges: bool,
    /// Text is brought into Unicode's composed form first.
    nfc: bool,
    /// BOS before a text where the file does not say.
    add_bos: bool,
}

impl PreTokenizer {
    const GPT2: Self = Self {
        pattern: None,
        single_digits: false,
        ignore_merges: false,
        nfc: false,
        add_bos: false,
    };
    const SMOLLM: Self = Self {
        single_digits: true,
        ..Self::GPT2
    };
    const LLAMA3: Self = Self {
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ignore_merges: true,
        add_bos: true,
        ..Self::GPT2
    };
    const QWEN2: Self = Self {
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        nfc: true,
        ..Self::GPT2
    };

    fn named(name: &str) -> Option<Self> {
        match name {
            "gpt-2" => Some(Self::GPT2),
            "smollm" => Some(Self::SMOLLM),
            "llama-bpe" | "llama3" | "llama-v3" => Some(Self::LLAMA3),
            "qwen2" => Some(Self::QWEN2),
            _ => None,
        }
    }

    fn steps(&self) -> Value {
        let split = self.pattern.map(|pattern| {
            json!({"type": "Split", "pattern": {"Regex": pattern},
                   "behavior": "Isolated", "invert": false})
        });
        let digits = self
            .single_digits
            .then(|| json!({"type": "Digits", "individual_digits": true}));
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false,
                           "trim_offsets": true, "use_regex": self.pattern.is_none()});
        let steps: Vec<Value> = [digits, split, Some(bytes)].into_iter().flatten().collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

fn byte_level_bpe(gguf: &GgufTokenizer<'_>) -> Result<Tokenizer, BuildError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let pre = PreTokenizer::named(gguf.pre).ok_or_else(|| {
        let reason = format!(
            "{} is not supported (supported: gpt-2, llama-bpe, qwen2, smollm)",
            gguf.pre
        );
        BuildError::new("tokenizer.ggml.pre", reason)
    })?;
    let merges = gguf
        .merges
        .iter()
        .map(|merge| {
            let (left, right) = merge.split_once(' ')?;
            Some((left.to_owned(), right.to_owned()))
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| BuildError::new(MERGES, "an entry is not two tokens"))?;
    let bpe = BPE::builder()
        .vocab_and_merges(vocab(gguf), merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|error| BuildError::new(MERGES, error))?;
    let mut tokenizer = Tokenizer::new(bpe);
    if pre.nfc {
        set_normalizer(&mut tokenizer, json!({"type": "NFC"}))?;
    }
    tokenizer
        .with_pre_tokenizer(Some(component::<tokenizers::PreTokenizerWrapper>(
            pre.steps(),
        )?))
        .with_decoder(Some(component::<tokenizers::DecoderWrapper>(json!({
            "type": "ByteLevel", "add_prefix_space": true,
            "trim_offsets": true, "use_regex": true
        }))?));
    finish(tokenizer, gguf, pre.add_bos)
}

/// SentencePiece joins, again and again, the pair of neighbours whose union has
/// the highest score. As BPE: every way to cut a token into two others is a
/// merge, ranked by the token's score.
fn sentence_piece(gguf: &GgufTokenizer<'_>) -> Result<Tokenizer, BuildError> {
    let vocab = vocab(gguf);
    let normal = |id: u32| matches!(gguf.token_types.get(id as usize), Some(TokenType::Normal));
    let mut ranked = Vec::new();
    for (id, (token, &score)) in gguf.tokens.iter().zip(gguf.scores).enumerate() {
        if !normal(id as u32) {
            continue;
        }
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            let known = |part| vocab.get(part).copied().filter(|&id| normal(id));
            if let (Some(_), Some(_)) = (known(left), known(right)) {
                ranked.push((score, left.len(), (left.to_owned(), right.to_owned())));
            }
        }
    }
    // Stable: tokens of one score keep their order.
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let merges = ranked.into_iter().map(|(_, _, merge)| merge).collect();

    let mut builder = BpeBuilder::new()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(true)
        .byte_fallback(true);
    if let Some(unknown) = gguf.unknown.and_then(|id| gguf.tokens.get(id as usize)) {
        builder = builder.unk_token(unknown.clone());
    }
    let bpe = builder
        .build()
        .map_err(|error| BuildError::new("tokenizer.ggml.scores", error))?;

    let prefix = gguf.add_space_prefix.unwrap_or(true);
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let prepend = prefix.then(|| json!({"type": "Prepend", "prepend": "▁"}));
    let normalizers: Vec<Value> = prepend.into_iter().chain([replace(" ", "▁")]).collect();
    let mut decoders = vec![
        replace("▁", " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let mut tokenizer = Tokenizer::new(bpe);
    set_normalizer(
        &mut tokenizer,
        json!({"type": "Sequence", "normalizers": normalizers}),
    )?;
    tokenizer.with_decoder(Some(component::<tokenizers::DecoderWrapper>(
        json!({"type": "Sequence", "decoders": decoders}),
    )?));
    finish(tokenizer, gguf, true)
}

/// Ids by token. Of equal tokens the first keeps the name; holes have none.
fn vocab(gguf: &GgufTokenizer<'_>) -> Vocab {
    let mut vocab = Vocab::with_capacity(gguf.tokens.len());
    for (id, (token, kind)) in gguf.tokens.iter().zip(&gguf.token_types).enumerate() {
        if *kind != TokenType::Unused {
            vocab.entry(token.clone()).or_insert(id as u32);
        }
    }
    vocab
}

/// Special tokens, and what is put around a text.
fn finish(
    mut tokenizer: Tokenizer,
    gguf: &GgufTokenizer<'_>,
    add_bos: bool,
) -> Result<Tokenizer, BuildError> {
    const TYPES: &str = "tokenizer.ggml.token_type";
    let added = |wanted: &'static [TokenType], special: bool| {
        gguf.tokens
            .iter()
            .zip(&gguf.token_types)
            .filter(|(token, kind)| wanted.contains(kind) && !token.is_empty())
            .map(move |(token, _)| AddedToken::from(token.as_str(), special).normalized(false))
            .collect::<Vec<_>>()
    };
    tokenizer
        .add_special_tokens(added(&[TokenType::Control, TokenType::Unknown], true))
        .map_err(|error| BuildError::new(TYPES, error))?;
    tokenizer
        .add_tokens(added(&[TokenType::UserDefined], false))
        .map_err(|error| BuildError::new(TYPES, error))?;

    let around = |wanted: bool, id: Option<u32>| {
        let id = id.filter(|_| wanted)?;
        Some((gguf.tokens.get(id as usize)?.as_str(), id))
    };
    let bos = around(gguf.add_bos.unwrap_or(add_bos), gguf.bos);
    let eos = around(gguf.add_eos.unwrap_or(false), gguf.eos);
    if bos.is_some() || eos.is_some() {
        tokenizer.with_post_processor(Some(component::<tokenizers::PostProcessorWrapper>(
            template(bos, eos),
        )?));
    }
    Ok(tokenizer)
}

fn template(bos: Option<(&str, u32)>, eos: Option<(&str, u32)>) -> Value {
    let special = |token: Option<(&str, u32)>, type_id: u32| {
        token.map(|(token, _)| json!({"SpecialToken": {"id": token, "type_id": type_id}}))
    };
    let one = |name: &str, type_id: u32| -> Vec<Value> {
        let sequence = json!({"Sequence": {"id": name, "type_id": type_id}});
        [special(bos, type_id), Some(sequence), special(eos, type_id)]
            .into_iter()
            .flatten()
            .collect()
    };
    let tokens: serde_json::Map<String, Value> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|(token, id)| {
            let entry = json!({"id": token, "ids": [id], "tokens": [token]});
            (token.to_owned(), entry)
        })
        .collect();
    let pair = [one("A", 0), one("B", 1)].concat();
    json!({"type": "TemplateProcessing", "single": one("A", 0), "pair": pair,
           "special_tokens": tokens})
}

fn set_normalizer(tokenizer: &mut Tokenizer, normalizer: Value) -> Result<(), BuildError> {
    tokenizer
        .with_normalizer(Some(component::<tokenizers::NormalizerWrapper>(
            normalizer,
        )?))
        .map(|_| ())
        .map_err(|error| BuildError::new("tokenizer.ggml.tokens", error))
}

/// A part of a tokenizer in the words of `tokenizer.json`.
fn component<T: DeserializeOwned>(description: Value) -> Result<T, BuildError> {
    serde_json::from_value(description)
        .map_err(|error| BuildError::new("tokenizer.ggml.pre", error))
}
