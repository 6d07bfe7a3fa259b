//! Small models in GGUF files.

use crate::golden::{self, Case, Tolerance};
use crate::ops::{exact, reference, serving};
use serde::Deserialize;
use std::path::PathBuf;

#[derive(Deserialize)]
struct Golden {
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    file: String,
    cases: Vec<Case>,
}

impl File {
    fn path(&self) -> PathBuf {
        golden::path(&format!("gguf/{}", self.file))
    }

    /// The row of the arithmetic that serves the file.
    fn serving(&self) -> Tolerance {
        match self.file.as_str() {
            // Keys and values in f16, all else f32.
            "tiny-llama.F32.gguf" | "tiny-llama.F16.gguf" | "tiny-llama3-rope.F16.gguf" => {
                Tolerance::lossy(0.05, 0.05)
            }
            // Activations in int8.
            "tiny-llama-256.Q4_K_M.gguf" | "tiny-llama-256.Q6_K.gguf" => Tolerance::lossy(1.0, 0.2),
            _ => Tolerance::lossy(0.7, 0.2),
        }
    }
}

fn llama_files() -> Vec<File> {
    let Golden { mut files } = golden::read("gguf/golden.json");
    files.retain(|file| file.file.starts_with("tiny-llama"));
    assert_eq!(files.len(), 10);
    files
}

#[test]
fn reference_operations_on_every_type() {
    for file in llama_files() {
        golden::check(reference, &file.path(), &file.cases, Tolerance::f32(1e-3));
    }
}

#[test]
fn float32_on_every_type() {
    for file in llama_files() {
        golden::check(exact, &file.path(), &file.cases, Tolerance::f32(1e-3));
    }
}

#[test]
fn serving_operations_on_every_type() {
    for file in llama_files() {
        golden::check(serving, &file.path(), &file.cases, file.serving());
    }
}
