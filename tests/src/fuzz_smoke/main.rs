//! What the fuzz targets run, over their seeds and over some thousand changed
//! copies of them, the same ones in every run. `scripts/fuzz` looks deeper.

mod mutation;
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

use mutation::Mutations;
use std::fs;
use std::path::{Path, PathBuf};

/// A target's seeds, cut as `scripts/fuzz` cuts them.
fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let dir = root
        .expect("in the workspace")
        .join("fuzz/seeds")
        .join(target);
    let mut seeds: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let mut bytes = fs::read(&path).expect("a seed");
            bytes.truncate(targets::MAX_BYTES);
            (path, bytes)
        })
        .collect();
    // The same order on every file system, and so the same mutations.
    seeds.sort();
    assert!(!seeds.is_empty(), "{} is empty", dir.display());
    seeds
}

fn check(target: &str, run: fn(&[u8]), mutations: usize) {
    let seeds = seeds(target);
    for (_, bytes) in &seeds {
        run(bytes);
    }
    let mut mutated = Mutations::new();
    for index in 0..mutations {
        let (path, bytes) = &seeds[index % seeds.len()];
        let bytes = mutated.of(bytes);
        let unharmed = std::panic::catch_unwind(|| run(&bytes));
        if let Err(panic) = unharmed {
            let kept = std::env::temp_dir().join(format!("{target}-{index}.crash"));
            fs::write(&kept, &bytes).expect("the bytes are kept");
            eprintln!(
                "mutation {index} of {} is kept in {}",
                path.display(),
                kept.display()
            );
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn chat_template() {
    check("chat_template", targets::chat_template::run, 300);
}

#[test]
fn frames() {
    check("frames", targets::frames::run, 20_000);
}

#[test]
fn gguf() {
    check("gguf", targets::gguf::run, 1500);
}

#[test]
fn model_json() {
    check("model_json", targets::model_json::run, 500);
}

#[test]
fn request_body() {
    check("request_body", targets::request_body::run, 3000);
}

#[test]
fn safetensors() {
    check("safetensors", targets::safetensors::run, 1500);
}
