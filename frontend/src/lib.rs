//! HTTP, chat templates, tokenizers and SSE.
//!
//! This layer knows OpenAI's HTTP contract and everything that is text. It must
//! not know tensors, KV blocks or scheduling: the core gets token ids only.
//!
//! A request's way through it, as types: body -> `CompletionRequest` or
//! `ChatCompletionRequest` (`routes`) -> `Prompt` -> `EngineCoreRequest` ->
//! [`engine_client`] -> `Arrival` -> `TextDelta` -> chunk (`sse`).

mod api_error;
mod app;
mod body;
pub mod client_input;
pub mod engine_client;
mod event_loop;
mod fields;
mod generation_options;
mod http_server;
mod logprobs;
pub mod metrics;
mod panics;
mod prompt;
mod request_head;
mod request_trace;
mod routes;
mod served_model;
mod server;
mod sse;
mod stalled_writes;
#[cfg(test)]
mod test_support;
pub mod text;
mod text_delta;
mod unsupported_fields;
mod usage;
mod waiter;

pub use server::{FrontendError, run};
