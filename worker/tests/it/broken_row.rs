//! What is wrong with one sequence ends that sequence alone.

use crate::driver::{Driver, Generated, Limits, Request};
use crate::golden;
use crate::ops::{exact, serving};
use nano_worker::backend::CpuOps;
use safetensors::SafeTensors;
use tempfile::TempDir;

/// The token whose embedding is no number.
const BROKEN: u32 = 700;

/// tiny-llama with one broken row of its embedding.
fn broken_model() -> TempDir {
    let from = golden::path("models/tiny-llama");
    let mut bytes = std::fs::read(from.join("model.safetensors")).expect("weights");
    let (header, metadata) = SafeTensors::read_metadata(&bytes).expect("a header");
    let embedding = metadata.info("model.embed_tokens.weight").expect("there");
    let row_bytes = embedding.shape[1] * size_of::<f32>();
    let start = 8 + header + embedding.data_offsets.0 + BROKEN as usize * row_bytes;
    bytes[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());

    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::write(dir.path().join("model.safetensors"), bytes).expect("written");
    std::fs::copy(from.join("config.json"), dir.path().join("config.json")).expect("copied");
    dir
}

fn check(ops: fn() -> CpuOps) {
    let model = broken_model();
    let broken = Request {
        // Deep enough to leave more than one block that is no number.
        prompt: (0..40)
            .map(|i| if i == 20 { BROKEN } else { 3 + i })
            .collect(),
        ..Request::greedy(&[], 8)
    };
    let good = |first: u32, delay| Request {
        delay,
        ..Request::greedy(&[first, first + 1, first + 2], 40)
    };
    // The last ones enter when the broken one is gone, and get its blocks.
    let requests = [good(5, 0), broken, good(50, 0), good(90, 2), good(95, 3)];

    let alone: Vec<Generated> = requests
        .iter()
        .flat_map(|request| {
            let request = Request {
                delay: 0,
                ..request.clone()
            };
            Driver::open(ops(), model.path(), Limits::default()).run_to_end(&[request])
        })
        .collect();
    let together = Driver::open(ops(), model.path(), Limits::default()).run_to_end(&requests);
    assert_eq!(together, alone);
    for (index, generated) in together.iter().enumerate() {
        let why = generated.failed.as_deref();
        if index == 1 {
            assert!(why.is_some_and(|why| why.contains("no token has a finite logit")));
            assert!(generated.token_ids.is_empty());
        } else {
            assert_eq!((why, generated.token_ids.len()), (None, 40));
        }
    }
}

#[test]
fn a_sequence_whose_logits_are_no_numbers_fails_alone() {
    check(exact);
    check(serving);
}
