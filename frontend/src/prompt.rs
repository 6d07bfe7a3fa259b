//! What a sequence begins with, as token ids.

use crate::api_error::ApiError;
use crate::fields::{Fields, wrong};
use crate::text::TextModel;
use crate::waiter::Waiter;
use nano_ipc::engine_info::EngineInfo;
use nano_trace::Event;

/// Prompts of one request at most.
const MAX_PROMPTS: usize = 1024;

/// What a sequence begins with.
///
/// Holds: not empty, every id below the model's vocabulary size, shorter than
/// the model's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// As the client wrote it, where it did.
    text: Option<String>,
    token_ids: Vec<u32>,
}

/// The field `prompt`, by how it begins.
enum PromptField {
    Texts(Vec<String>),
    TokenIds(Vec<Vec<u32>>),
}

impl PromptField {
    /// Reads the one form that the first characters allow, so that a long list
    /// of ids takes little more memory than the ids.
    fn parse(json: &str) -> serde_json::Result<Option<PromptField>> {
        let mut begin = json.bytes().filter(|byte| !byte.is_ascii_whitespace());
        let texts = |texts| Some(PromptField::Texts(texts));
        let token_ids = |ids| Some(PromptField::TokenIds(ids));
        match (begin.next(), begin.next()) {
            (Some(b'"'), _) => serde_json::from_str(json).map(|text| texts(vec![text])),
            (Some(b'['), Some(b'"')) => serde_json::from_str(json).map(texts),
            (Some(b'['), Some(b'[')) => serde_json::from_str(json).map(token_ids),
            (Some(b'['), _) => serde_json::from_str(json).map(|ids| token_ids(vec![ids])),
            _ => Ok(None),
        }
    }

    fn len(&self) -> usize {
        match self {
            PromptField::Texts(texts) => texts.len(),
            PromptField::TokenIds(lists) => lists.len(),
        }
    }
}

impl Prompt {
    /// The prompts of the field `prompt`: one or several, as text or token ids.
    ///
    /// # Errors
    /// When there is none, or one is empty, too long or out of the vocabulary;
    /// or when nobody waits for them any more.
    pub fn from_fields(
        fields: &Fields<'_>,
        add_special: bool,
        model: &TextModel,
        info: &EngineInfo,
        waiter: &Waiter,
    ) -> Result<Vec<Prompt>, ApiError> {
        const NAME: &str = "prompt";
        let raw = fields
            .raw(NAME)
            .ok_or_else(|| ApiError::invalid(NAME, "prompt is required"))?;
        let field = PromptField::parse(raw.get())
            .map_err(|error| wrong(NAME, &error))?
            .ok_or_else(|| {
                let forms = "a string, a list of strings, a list of token ids, or a list of such";
                ApiError::invalid(NAME, format!("prompt must be {forms}"))
            })?;
        if field.len() > MAX_PROMPTS {
            return Err(ApiError::invalid(
                NAME,
                format!("prompt may be {MAX_PROMPTS} prompts, it is {}", field.len()),
            ));
        }
        match field {
            PromptField::Texts(texts) => texts
                .into_iter()
                .map(|text| {
                    waiter.check()?;
                    Prompt::from_text(NAME, text, add_special, model, info)
                })
                .collect(),
            PromptField::TokenIds(lists) => lists
                .into_iter()
                .map(|ids| Prompt::from_token_ids(NAME, ids, info))
                .collect(),
        }
    }

    /// Tokenizes a text, which came in the field `name`.
    ///
    /// # Errors
    /// When it is empty, too long, or no token ids can be made of it.
    pub fn from_text(
        name: &'static str,
        text: String,
        add_special: bool,
        model: &TextModel,
        info: &EngineInfo,
    ) -> Result<Prompt, ApiError> {
        let token_ids = encode(name, &text, add_special, model, info)?;
        let prompt = Prompt::from_token_ids(name, token_ids, info)?;
        Ok(Prompt {
            text: Some(text),
            ..prompt
        })
    }

    /// Takes token ids, which came in the field `name`.
    ///
    /// # Errors
    /// When there are none or too many, or one is out of the vocabulary.
    pub fn from_token_ids(
        name: &'static str,
        token_ids: Vec<u32>,
        info: &EngineInfo,
    ) -> Result<Prompt, ApiError> {
        if token_ids.is_empty() {
            return Err(ApiError::invalid(
                name,
                format!("{name} is empty: at least one token is needed"),
            ));
        }
        if let Some(id) = token_ids.iter().find(|id| **id >= info.vocab_size) {
            return Err(ApiError::invalid(
                name,
                format!(
                    "{name}: token id {id} is out of the vocabulary, ids are below {}",
                    info.vocab_size
                ),
            ));
        }
        let limit = longest_sequence(info);
        if token_ids.len() >= limit as usize {
            return Err(ApiError::context_length(
                name,
                format!(
                    "{name} has {} tokens; with at least one token of answer it exceeds the \
                     context of {limit} tokens",
                    token_ids.len()
                ),
            ));
        }
        Ok(Prompt {
            text: None,
            token_ids,
        })
    }

    /// The text: the client's, or that of the token ids.
    pub fn text(&self, model: &TextModel) -> String {
        match &self.text {
            Some(text) => text.clone(),
            None => model.decode(&self.token_ids, true),
        }
    }

    /// The ids. Not empty.
    pub fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// How many. At least 1, and fewer than the context has.
    pub fn len(&self) -> u32 {
        self.token_ids.len() as u32
    }
}

/// Token ids of a text, which came in the field `name`. There may be more than
/// the context has, but not many times as many: what a text costs is bounded.
///
/// # Errors
/// When it is far too long, or no token ids can be made of it.
pub(crate) fn encode(
    name: &'static str,
    text: &str,
    add_special: bool,
    model: &TextModel,
    info: &EngineInfo,
) -> Result<Vec<u32>, ApiError> {
    let (fewest, limit) = (model.fewest_tokens(text), longest_sequence(info));
    if fewest > limit as usize {
        return Err(ApiError::context_length(
            name,
            format!("{name} has at least {fewest} tokens, the context is {limit} tokens"),
        ));
    }
    let slice = nano_trace::slice(Event::Tokenize, [text.len() as u64]);
    let token_ids = model.encode(text, add_special)?;
    slice.end([token_ids.len() as u64]);
    Ok(token_ids)
}

/// Tokens that prompt and answer may have together: the model's context, or all
/// KV blocks where those are fewer.
pub(crate) fn longest_sequence(info: &EngineInfo) -> u32 {
    info.max_model_len
        .min(info.num_kv_blocks.saturating_mul(info.block_size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::served_model;
    use crate::waiter::Waiting;

    #[test]
    fn no_text_is_tokenized_that_nobody_waits_for() {
        let served = served_model();
        // The second text is wrong, which only shows when its turn comes.
        let fields = Fields::parse(br#"{"prompt": ["x", ""]}"#).expect("an object");
        let waiting = Waiting::begin();
        let waiter = waiting.waiter();
        let read = || {
            let prompts = Prompt::from_fields(&fields, false, &served.text, &served.info, &waiter);
            prompts.expect_err("no prompts").message().to_owned()
        };
        assert!(read().contains("empty"));
        drop(waiting);
        assert_eq!(read(), "the client has gone");
    }
}
