//! What the fuzz targets run: a module each, named as the target, with
//! `run(bytes)`. Whatever the bytes are, it gives a result or an error; it never
//! panics, hangs, or takes memory out of proportion to them.
//!
//! A target's seeds lie in `fuzz/seeds/` under its name. A new target is a
//! module here, a file in `fuzz_targets/` with its lines in `Cargo.toml`, a
//! folder of seeds, and a row in `tests/src/fuzz_smoke/main.rs`.

pub mod chat_template;
pub mod frames;
pub mod gguf;
mod loading;
pub mod model_json;
pub mod request_body;
pub mod safetensors;

/// Longer inputs are cut to this: headers are what is read, not tensors' data.
pub const MAX_BYTES: usize = 64 << 10;
