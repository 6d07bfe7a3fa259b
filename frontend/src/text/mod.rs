//! Text of a model: chat template, tokenizer, detokenizer, stop strings.
//!
//! Pure functions of text and token ids. This layer knows no HTTP and no
//! engine: it turns messages into a prompt, a prompt into token ids, and a
//! stream of token ids into text that may be shown.

mod byte_alphabet;
pub mod chat_template;
pub mod detokenizer;
pub mod stop_strings;
pub mod text_model;
mod token_pieces;
pub mod tokenizer;
mod tokenizer_from_gguf;

pub use chat_template::{ChatOptions, ChatTemplate, TemplateError};
pub use detokenizer::Detokenizer;
pub use stop_strings::{StopMatcher, StopStrings};
pub use text_model::TextModel;
pub use tokenizer::{EncodeError, Tokenizer};
