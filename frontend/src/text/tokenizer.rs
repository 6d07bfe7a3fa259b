//! Between text and token ids.

use super::detokenizer::Detokenizer;
use super::token_pieces::{Decoding, TokenPieces};
use super::tokenizer_from_gguf;
use nano_model::{ModelError, ModelSource};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Why a text could not be tokenized.
#[derive(Debug, thiserror::Error)]
#[error("the text cannot be tokenized: {0}")]
pub struct EncodeError(String);

/// Between text and token ids.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Arc<TokenPieces>,
    /// Bytes of text that one token can stand for.
    most_bytes_a_token: usize,
}

/// Composing characters makes text shorter, at most by this.
const NORMALIZATION_SHRINKS: usize = 4;

impl Tokenizer {
    /// From `tokenizer.json` of a directory, or from a GGUF file's metadata.
    pub fn load(source: &ModelSource) -> Result<Self, ModelError> {
        match source {
            ModelSource::Gguf(gguf) => {
                let inner = tokenizer_from_gguf::build(&gguf.tokenizer()?).map_err(|reason| {
                    ModelError::field(gguf.path(), reason.field, reason.reason)
                })?;
                Self::new(inner, gguf.path())
            }
            ModelSource::Directory(dir) => {
                let path = dir.tokenizer_file()?;
                let inner = tokenizers::Tokenizer::from_file(&path)
                    .map_err(|error| ModelError::file(&path, error))?;
                Self::new(inner, &path)
            }
        }
    }

    fn new(mut inner: tokenizers::Tokenizer, path: &Path) -> Result<Self, ModelError> {
        // Prompts are never cut or filled up, whatever training did.
        inner
            .with_padding(None)
            .with_truncation(None)
            .map_err(|error| ModelError::field(path, "truncation", error))?;
        let decoding = decoding(&inner).ok_or_else(|| {
            let reason = "is not supported (supported: ByteLevel, and Replace, ByteFallback, \
                          Fuse with or without Strip)";
            ModelError::field(path, "decoder", reason)
        })?;
        let added = inner.get_added_vocabulary();
        let len = inner
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |highest| highest + 1);
        let pieces = TokenPieces::new(decoding, len, |id| {
            let token = inner.id_to_token(id)?;
            let special = added.is_special_token(&token);
            Some((token, special))
        });
        Ok(Self {
            inner,
            most_bytes_a_token: pieces.longest() * NORMALIZATION_SHRINKS,
            pieces: Arc::new(pieces),
        })
    }

    /// Token ids of a text. Special tokens written in it become their ids.
    /// `add_special`: with what the model wants around a text, such as BOS.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, EncodeError> {
        // The regex engine panics when its backtracking limit is reached, and
        // text comes from clients. Encoding changes nothing that a panic could
        // leave half done: its cache is written whole entries at a time.
        let encoded = catch_unwind(AssertUnwindSafe(|| {
            self.inner.encode_fast(text, add_special)
        }));
        match encoded {
            Ok(Ok(encoding)) => Ok(encoding.get_ids().to_vec()),
            Ok(Err(error)) => Err(EncodeError(error.to_string())),
            Err(_) => Err(EncodeError("it is too hard to split into words".into())),
        }
    }

    /// No tokenization of the text has fewer tokens than this. Costs nothing,
    /// so a text far too long is refused without tokenizing it.
    pub fn fewest_tokens(&self, text: &str) -> usize {
        text.len() / self.most_bytes_a_token
    }

    /// The text of token ids, as a text of its own.
    pub fn decode(&self, token_ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(Arc::clone(&self.pieces), skip_special);
        let mut text: String = token_ids.iter().map(|&id| detokenizer.push(id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// Turns a stream of generated ids, which continue a prompt, into text.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::continuing(Arc::clone(&self.pieces), skip_special)
    }

    /// The text of one token and the bytes it adds; U+FFFD in the text stands
    /// for bytes that are no whole character.
    pub fn token_text(&self, token_id: u32) -> (String, Vec<u8>) {
        let (_, bytes) = self.pieces.piece(token_id);
        (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
    }

    /// The id of a token by its text in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// One more than the highest id of the vocabulary; a model may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len() as usize
    }
}

/// What the tokenizer's decoder does, if it is one of those that are known.
fn decoding(inner: &tokenizers::Tokenizer) -> Option<Decoding> {
    let decoder = serde_json::to_value(inner.get_decoder()?).ok()?;
    let kind = |step: &serde_json::Value| step["type"].as_str().map(str::to_owned);
    if kind(&decoder)? == "ByteLevel" {
        return Some(Decoding::ByteLevel);
    }
    let steps = decoder["decoders"].as_array()?;
    let kinds: Vec<String> = steps.iter().filter_map(kind).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let (["Replace", "ByteFallback", "Fuse", rest @ ..], [replace, _, _, strip @ ..]) =
        (kinds.as_slice(), steps.as_slice())
    else {
        return None;
    };
    if replace["pattern"]["String"] != "▁" || replace["content"] != " " {
        return None;
    }
    let strip_leading_space = match (rest, strip) {
        ([], []) => false,
        (["Strip"], [strip]) => {
            let usual = strip["content"] == " " && strip["start"] == 1 && strip["stop"] == 0;
            usual.then_some(true)?
        }
        _ => return None,
    };
    Some(Decoding::ByteFallback {
        strip_leading_space,
    })
}
