//! Chat template and the texts of special tokens.

use crate::error::ModelError;
use crate::files::{file_exists, read_text};
use crate::gguf::GgufFile;
use crate::json::JsonObject;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// What chat templates need beside the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// Jinja text of the model's chat template.
    pub chat_template: Option<String>,
    /// Texts by name: `bos_token`, `eos_token`, `unk_token`, `pad_token`, and
    /// whatever else the file names `*_token`.
    pub special_tokens: BTreeMap<String, String>,
}

impl TokenizerConfig {
    /// From `tokenizer_config.json`, `chat_template.jinja` and
    /// `chat_template.json` of a directory; none of them has to be there.
    pub(crate) fn from_dir(dir: &Path) -> Result<Self, ModelError> {
        let json = JsonObject::read_if_exists(&dir.join("tokenizer_config.json"))?;
        let mut chat_template = template_file(dir)?;
        let mut special_tokens = BTreeMap::new();
        if let Some(json) = json {
            if chat_template.is_none() {
                chat_template = template(&json)?;
            }
            special_tokens = json
                .entries()
                .filter(|(name, _)| name.ends_with("_token"))
                .filter_map(|(name, value)| Some((name.to_owned(), token_text(value)?)))
                .collect();
        }
        Ok(Self {
            chat_template,
            special_tokens,
        })
    }

    /// From GGUF metadata.
    pub(crate) fn from_gguf(gguf: &GgufFile) -> Result<Self, ModelError> {
        let tokenizer = gguf.tokenizer()?;
        let text = |id: Option<u32>| tokenizer.tokens.get(id? as usize).cloned();
        let special_tokens = [
            ("bos_token", tokenizer.bos),
            ("eos_token", tokenizer.eos),
            ("unk_token", tokenizer.unknown),
            ("pad_token", tokenizer.padding),
        ]
        .into_iter()
        .filter_map(|(name, id)| Some((name.to_owned(), text(id)?)))
        .collect();
        Ok(Self {
            chat_template: gguf.str("tokenizer.chat_template")?.map(str::to_owned),
            special_tokens,
        })
    }
}

/// A token is its text, or an object with the text in `content`.
fn token_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::Object(token) => token.get("content")?,
        value => value,
    };
    text.as_str().map(str::to_owned)
}

/// A file of its own comes before the field in `tokenizer_config.json`.
fn template_file(dir: &Path) -> Result<Option<String>, ModelError> {
    let jinja = dir.join("chat_template.jinja");
    if file_exists(&jinja)? {
        return read_text(&jinja).map(Some);
    }
    match JsonObject::read_if_exists(&dir.join("chat_template.json"))? {
        Some(json) => template(&json),
        None => Ok(None),
    }
}

/// One template, or a list of named ones, of which `default` is taken.
fn template(json: &JsonObject) -> Result<Option<String>, ModelError> {
    const FIELD: &str = "chat_template";
    match json.get(FIELD) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => list
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|entry| entry.get("template").and_then(Value::as_str))
            .map(|text| Some(text.to_owned()))
            .ok_or_else(|| json.error(FIELD, "none of the templates is named \"default\"")),
        Some(_) => Err(json.error(FIELD, "is neither a string nor a list of named templates")),
    }
}
