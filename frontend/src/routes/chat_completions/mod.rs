//! `POST /v1/chat/completions`.

mod convert;
mod types;
mod validate;

pub use types::ChatCompletionRequest;
