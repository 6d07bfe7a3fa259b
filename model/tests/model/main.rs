//! Tests of the layer as its users see it, on the golden models and on broken ones.

mod directories;
mod gguf_builder;
mod gguf_errors;
mod gguf_hostile;
mod golden;

use std::path::PathBuf;

/// A file or directory of the golden data.
fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(name)
}
