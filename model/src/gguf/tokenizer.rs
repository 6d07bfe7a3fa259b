//! The tokenizer inside a GGUF file, as plain data.

use super::file::GgufFile;
use super::value::Value;
use crate::error::ModelError;

/// Which algorithm the vocabulary is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerModel {
    /// `gpt2`: byte-level BPE with merges.
    ByteLevelBpe,
    /// `llama`: SentencePiece-like BPE by scores, with byte tokens.
    SentencePiece,
}

/// What a token is; numbers as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// 1: text.
    Normal,
    /// 2: stands for what no token covers.
    Unknown,
    /// 3: never the product of ordinary text, and hidden in output.
    Control,
    /// 4: added by a user; matched whole in text, and shown.
    UserDefined,
    /// 5: a hole in the vocabulary.
    Unused,
    /// 6: one byte, written `<0xAB>`.
    Byte,
}

/// The tokenizer inside a GGUF file.
///
/// Holds: there is at least one token; `token_types` has one entry a token;
/// `scores`, for [`TokenizerModel::SentencePiece`], too; each special id is a token.
#[derive(Clone, Debug)]
pub struct GgufTokenizer<'a> {
    /// `tokenizer.ggml.model`.
    pub model: TokenizerModel,
    /// `tokenizer.ggml.pre`: how text is cut before BPE; `default` when absent.
    pub pre: &'a str,
    /// By id. Byte-level BPE: in the printable alphabet of GPT-2.
    pub tokens: &'a [String],
    /// By id.
    pub token_types: Vec<TokenType>,
    /// Two tokens with a space between, best first. Empty for SentencePiece.
    pub merges: &'a [String],
    /// By id; higher merges first. Empty for byte-level BPE.
    pub scores: &'a [f32],
    /// Put [`bos`](Self::bos) before a text; the algorithm's own habit when absent.
    pub add_bos: Option<bool>,
    /// Put [`eos`](Self::eos) behind a text.
    pub add_eos: Option<bool>,
    /// SentencePiece: put a space before a text.
    pub add_space_prefix: Option<bool>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Stands for what no token covers.
    pub unknown: Option<u32>,
    /// Padding.
    pub padding: Option<u32>,
}

impl GgufFile {
    /// The file's tokenizer.
    pub fn tokenizer(&self) -> Result<GgufTokenizer<'_>, ModelError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const TYPES: &str = "tokenizer.ggml.token_type";
        const SCORES: &str = "tokenizer.ggml.scores";
        const MERGES: &str = "tokenizer.ggml.merges";
        let model = self.tokenizer_model()?;
        let tokens = self
            .typed(TOKENS, Value::as_strings, "an array of strings")?
            .filter(|tokens| !tokens.is_empty())
            .ok_or_else(|| self.error(TOKENS, "missing: the file has no vocabulary"))?;
        let one_each = |key, len: usize| match len == tokens.len() {
            true => Ok(()),
            false => Err(self.error(
                key,
                format_args!("has {len} entries for {} tokens", tokens.len()),
            )),
        };
        let token_types = match self.typed(TYPES, Value::as_i32s, "an array of 32-bit integers")? {
            None => vec![TokenType::Normal; tokens.len()],
            Some(numbers) => {
                one_each(TYPES, numbers.len())?;
                numbers.iter().map(|&number| token_type(number)).collect()
            }
        };
        let (merges, scores): (&[String], &[f32]) = match model {
            TokenizerModel::ByteLevelBpe => {
                let merges = self.typed(MERGES, Value::as_strings, "an array of strings")?;
                let missing = || self.error(MERGES, "missing: byte-level BPE needs them");
                (merges.ok_or_else(missing)?, &[])
            }
            TokenizerModel::SentencePiece => {
                let scores = self.typed(SCORES, Value::as_f32s, "an array of 32-bit floats")?;
                let missing = || self.error(SCORES, "missing: SentencePiece needs them");
                let scores = scores.ok_or_else(missing)?;
                one_each(SCORES, scores.len())?;
                (&[], scores)
            }
        };
        let id = |name: &str| self.token_id(&format!("tokenizer.ggml.{name}"), tokens.len());
        Ok(GgufTokenizer {
            model,
            pre: self.str("tokenizer.ggml.pre")?.unwrap_or("default"),
            tokens,
            token_types,
            merges,
            scores,
            add_bos: self.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: self.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: self.bool("tokenizer.ggml.add_space_prefix")?,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            unknown: id("unknown_token_id")?,
            padding: id("padding_token_id")?,
        })
    }

    fn tokenizer_model(&self) -> Result<TokenizerModel, ModelError> {
        const KEY: &str = "tokenizer.ggml.model";
        match self.str(KEY)? {
            Some("gpt2") => Ok(TokenizerModel::ByteLevelBpe),
            Some("llama") => Ok(TokenizerModel::SentencePiece),
            Some(other) => Err(self.error(
                KEY,
                format_args!("{other} is not supported (supported: gpt2, llama)"),
            )),
            None => Err(self.error(KEY, "missing: the file has no tokenizer")),
        }
    }

    /// A token's id, or nothing where the key is absent or points nowhere:
    /// writers put -1, its unsigned form, or a stale number for "none".
    pub(crate) fn token_id(&self, key: &str, tokens: usize) -> Result<Option<u32>, ModelError> {
        let id = match self.value(key) {
            Some(Value::Signed(value)) if *value < 0 => return Ok(None),
            _ => self.u32(key)?,
        };
        Ok(id.filter(|&id| {
            let known = (id as usize) < tokens;
            if !known {
                log::warn!(
                    "{}: {key}: {id} is no token and is ignored",
                    self.path().display()
                );
            }
            known
        }))
    }
}

/// Unknown numbers (0 is "undefined") are treated as ordinary text.
fn token_type(number: i32) -> TokenType {
    match number {
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => TokenType::Normal,
    }
}
