//! Everything about a model that is text.

use super::chat_template::{ChatOptions, ChatTemplate, TemplateError};
use super::detokenizer::Detokenizer;
use super::tokenizer::{EncodeError, Tokenizer};
use nano_model::{GenerationConfig, ModelError, ModelSource};
use serde_json::Value;

/// Tokens with which families of models end a turn.
const TURN_ENDS: [&str; 7] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
];

/// Everything about a model that is text: tokenizer, chat template, and how its
/// makers want it sampled and stopped.
pub struct TextModel {
    tokenizer: Tokenizer,
    /// Absent where neither the model nor the operator gave one.
    chat_template: Option<ChatTemplate>,
    generation_config: GenerationConfig,
    chat_eos_token_ids: Vec<u32>,
    vocab_size: usize,
}

impl TextModel {
    /// Reads tokenizer, template and generation config. `chat_template_override`
    /// is the text of a template that replaces the model's own.
    pub fn load(
        source: &ModelSource,
        chat_template_override: Option<&str>,
    ) -> Result<Self, ModelError> {
        let vocab_size = source.config()?.vocab_size;
        let generation_config = source.generation_config()?;
        let tokenizer_config = source.tokenizer_config()?;
        let tokenizer = Tokenizer::load(source)?;
        if tokenizer.vocab_size() > vocab_size {
            let reason = format!(
                "the tokenizer has ids up to {}, but the model's vocab_size is {vocab_size}",
                tokenizer.vocab_size() - 1
            );
            return Err(ModelError::field(source.path(), "vocab_size", reason));
        }
        let template = chat_template_override
            .map(str::to_owned)
            .or(tokenizer_config.chat_template);
        let chat_template = template
            .map(|text| ChatTemplate::new(&text, &tokenizer_config.special_tokens))
            .transpose()
            .map_err(|error| ModelError::field(source.path(), "chat_template", error))?;
        let mut chat_eos_token_ids = generation_config.eos_token_ids.clone();
        if let Some(template) = &chat_template {
            let ends = TURN_ENDS
                .iter()
                .filter(|end| template.text().contains(*end));
            chat_eos_token_ids.extend(ends.filter_map(|end| tokenizer.token_id(end)));
            chat_eos_token_ids.sort_unstable();
            chat_eos_token_ids.dedup();
        }
        Ok(Self {
            tokenizer,
            chat_template,
            generation_config,
            chat_eos_token_ids,
            vocab_size,
        })
    }

    /// Token ids of a text; see [`Tokenizer::encode`]. A rendered chat has its
    /// BOS inside already: encode it without `add_special`.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, EncodeError> {
        self.tokenizer.encode(text, add_special)
    }

    /// See [`Tokenizer::fewest_tokens`].
    pub fn fewest_tokens(&self, text: &str) -> usize {
        self.tokenizer.fewest_tokens(text)
    }

    /// The text of token ids, as a text of its own.
    pub fn decode(&self, token_ids: &[u32], skip_special: bool) -> String {
        self.tokenizer.decode(token_ids, skip_special)
    }

    /// Turns the ids that one sequence generates into text.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        self.tokenizer.detokenizer(skip_special)
    }

    /// The prompt of a conversation. `messages` are objects as clients send
    /// them, with `role` and `content`.
    pub fn render_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<String, TemplateError> {
        match &self.chat_template {
            Some(template) => template.render(messages, options),
            None => Err(TemplateError::Absent),
        }
    }

    /// The text of one token and the bytes it adds, for log-probabilities.
    pub fn token_text(&self, token_id: u32) -> (String, Vec<u8>) {
        self.tokenizer.token_text(token_id)
    }

    /// How the model's makers want it sampled, and which tokens end a text.
    pub fn generation_defaults(&self) -> &GenerationConfig {
        &self.generation_config
    }

    /// Tokens that end an answer in a chat: those of
    /// [`generation_defaults`](Self::generation_defaults) and those that the
    /// chat template ends turns with. Sorted.
    pub fn chat_eos_token_ids(&self) -> &[u32] {
        &self.chat_eos_token_ids
    }

    /// Rows of the model's embedding: token ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}
