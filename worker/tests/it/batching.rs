//! A row depends on no other row, nor on how a prompt was cut: bit for bit.

use crate::driver::{Driver, Generated, Limits, Request};
use crate::golden::{self, Bare, Cases};
use crate::ops::cpu;
use nano_ipc::config::Dtype;
use nano_ipc::sampling_params::SamplingParams;
use std::path::PathBuf;

/// A model of each kind of arithmetic.
fn models() -> Vec<(PathBuf, Dtype)> {
    [
        ("models/tiny-llama", Dtype::Float32),
        ("models/tiny-llama-bf16", Dtype::Auto),
        ("models/tiny-llama3-rope", Dtype::Auto),
        ("gguf/tiny-llama.Q4_1.gguf", Dtype::Auto),
        ("gguf/tiny-llama.Q8_0.gguf", Dtype::Auto),
        ("gguf/tiny-llama-256.Q4_K_M.gguf", Dtype::Auto),
        ("gguf/tiny-llama-256.Q6_K.gguf", Dtype::Float32),
    ]
    .map(|(name, dtype)| (golden::path(name), dtype))
    .into()
}

fn prompts() -> Vec<Vec<u32>> {
    let Cases { cases } = golden::read("models/tiny-llama/golden.json");
    cases.into_iter().map(|case| case.input_ids).collect()
}

#[test]
fn logits_do_not_depend_on_how_a_prompt_was_cut_nor_on_threads() {
    let prompts = prompts();
    for (model, dtype) in models() {
        let mut whole = Bare::open(cpu(dtype, 2), &model, 512);
        let mut cut = Bare::open(cpu(dtype, 3), &model, 512);
        for prompt in &prompts {
            let expected = whole.last_logits(prompt);
            for chunk in [1, 3, 7, 64, 65] {
                let logits = cut.last_logits_in_chunks(prompt, chunk);
                assert!(
                    logits == expected,
                    "{}: {} tokens in chunks of {chunk}",
                    model.display(),
                    prompt.len()
                );
            }
        }
    }
}

/// Greedy and sampled, with log-probabilities, in odd chunks, entering over time.
fn requests() -> Vec<Request> {
    let prompts = prompts();
    (0..24)
        .map(|i| Request {
            chunk: [usize::MAX, 5, 17, 1][i % 4],
            delay: i / 2,
            logprobs: Some(3),
            prompt_logprobs: (i % 5 == 0).then_some(2),
            sampling: SamplingParams {
                temperature: [0.0, 0.8, 1.3][i % 3],
                top_p: [1.0, 0.9][i % 2],
                top_k: [0, 0, 40][i % 3],
                seed: i as u64,
                frequency_penalty: [0.0, 0.5][i % 2],
                ..SamplingParams::greedy()
            },
            ..Request::greedy(&prompts[i % prompts.len()], 10 + i)
        })
        .collect()
}

#[test]
fn a_sequence_gets_the_same_tokens_alone_and_among_others() {
    let requests = requests();
    for (model, dtype) in models() {
        let limits = Limits {
            max_num_batched_tokens: 4096,
            ..Limits::default()
        };
        let mut driver = Driver::open(cpu(dtype, 2), &model, limits);
        let together = driver.run(&requests);
        let alone: Vec<Generated> = requests
            .iter()
            .flat_map(|request| {
                driver.run(&[Request {
                    delay: 0,
                    chunk: usize::MAX,
                    ..request.clone()
                }])
            })
            .collect();
        for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
            assert_eq!(together, alone, "{}: request {i}", model.display());
        }
    }
}
