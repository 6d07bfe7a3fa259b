//! HTTP, chat templates, tokenizers and SSE.
//!
//! This layer knows OpenAI's HTTP contract and everything that is text. It must
//! not know tensors, KV blocks or scheduling: the core gets token ids only.

pub mod text;
