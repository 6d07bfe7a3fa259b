//! `POST /v1/completions`.

mod convert;
mod prompt_part;
mod types;
mod validate;

pub use types::CompletionRequest;
