//! `POST /v1/completions`.

mod convert;
mod types;
mod validate;

pub use types::CompletionRequest;
