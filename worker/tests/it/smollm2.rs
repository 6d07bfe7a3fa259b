//! The default model, a real one.

use crate::golden::{self, Bare, Cases, Tolerance};
use crate::ops::{exact, reference, serving};
use std::path::PathBuf;

/// The default model's file: `$NANO_TEST_MODEL`, or where the server keeps it.
fn model() -> PathBuf {
    let path = std::env::var_os("NANO_TEST_MODEL")
        .map(PathBuf::from)
        .or_else(nano_model::default_model_path)
        .expect("NANO_TEST_MODEL, or a home directory");
    assert!(
        path.is_file(),
        "{} is missing: scripts/test fetches it, or set NANO_TEST_MODEL",
        path.display()
    );
    path
}

fn golden() -> Cases {
    golden::read("smollm2/smollm2_golden.json")
}

#[test]
fn reference_operations() {
    golden::check(reference, &model(), &golden().cases, Tolerance::f32(1e-3));
}

#[test]
fn float32() {
    golden::check(exact, &model(), &golden().cases, Tolerance::f32(1e-3));
}

/// Q4_1 and Q8_0 weights with int8 activations; keys and values in f16.
#[test]
fn serving_operations() {
    let cases = golden().cases;
    assert_eq!(cases.len(), 8);
    let mut bare = Bare::open(serving(), &model(), 256);
    for case in cases {
        let logits = bare.last_logits(&case.input_ids);
        let logsumexp = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
        for (&id, &expected) in case.top.ids.iter().zip(&case.top.logits) {
            let logprob = f64::from(logits[id as usize]) - logsumexp;
            let difference = (logprob - (f64::from(expected) - case.logsumexp)).abs();
            assert!(
                difference < 0.6,
                "{}: log-probability of token {id} is off by {difference}",
                case.name
            );
        }
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        let common = ids[..20]
            .iter()
            .filter(|id| case.top.ids.contains(id))
            .count();
        assert!(common >= 17, "{}: {common} of the top 20", case.name);
    }
}
