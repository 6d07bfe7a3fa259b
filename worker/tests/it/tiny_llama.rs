//! Small models in Hugging Face layout.

use crate::golden::{self, Case, Cases, Tolerance};
use crate::ops::{exact, reference, serving};
use std::path::Path;

/// Arithmetic in f32: only rounding may differ.
const F32: Tolerance = Tolerance::f32(5e-5);
/// As served: keys and values in f16, all else f32.
const SERVING: Tolerance = Tolerance::lossy(0.05, 0.05);

fn check(model: &Path, golden: &str) {
    let Cases { cases } = golden::read(golden);
    check_cases(model, &cases);
}

fn check_cases(model: &Path, cases: &[Case]) {
    golden::check(reference, model, cases, F32);
    golden::check(exact, model, cases, F32);
    golden::check(serving, model, cases, SERVING);
}

#[test]
fn f32() {
    let model = golden::path("models/tiny-llama");
    check(&model, "models/tiny-llama/golden.json");
}

#[test]
fn bf16() {
    let model = golden::path("models/tiny-llama-bf16");
    check(&model, "models/tiny-llama-bf16/golden.json");
}

#[test]
fn sharded() {
    let model = golden::path("models/tiny-llama-sharded");
    check(&model, "models/tiny-llama-sharded/golden.json");
}

#[test]
fn llama3_rope_with_tied_embeddings() {
    let model = golden::path("models/tiny-llama3-rope");
    check(&model, "models/tiny-llama3-rope/golden.json");
}

#[test]
fn linear_rope() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let from = golden::path("models/tiny-llama");
    for (name, to) in [
        ("config_linear.json", "config.json"),
        ("model.safetensors", "model.safetensors"),
    ] {
        std::fs::copy(from.join(name), dir.path().join(to)).expect("copied");
    }
    check(dir.path(), "models/tiny-llama/golden_linear.json");
}
