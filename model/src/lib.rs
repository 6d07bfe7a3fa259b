//! What a model directory or GGUF file says, without tensors.
//!
//! This layer knows file formats and configurations. It must not know devices,
//! arithmetic, HTTP or how a tokenizer works.
