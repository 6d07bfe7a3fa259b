//! Real models behind the real server.

use crate::client::{Stream, StreamEvent, post};
use crate::metrics::Metrics;
use crate::programs::golden;
use crate::server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The token ids that a streaming completion gave.
fn token_ids(events: &[StreamEvent]) -> Vec<u64> {
    assert!(events.contains(&StreamEvent::Done), "{events:?}");
    let ids = events.iter().filter_map(|event| match event {
        StreamEvent::Data(chunk) => chunk["choices"][0]["token_ids"].as_array(),
        _ => None,
    });
    ids.flatten()
        .map(|id| id.as_u64().expect("an id"))
        .collect()
}

fn open(server: &Server, body: &Value) -> Stream {
    Stream::open(server.base_url(), "/v1/completions", body.clone())
}

fn rest(stream: &Stream) -> Vec<StreamEvent> {
    stream.rest(Instant::now() + Duration::from_secs(300))
}

/// Requests of mixed lengths, greedy and sampled.
fn mixed_requests() -> Vec<Value> {
    (0..32_u64)
        .map(|n| {
            json!({
                "model": "tiny-llama",
                // Lengths from 1 to about 280; half of them share their beginning.
                "prompt": (0..1 + n * 9)
                    .map(|i| (i * 31 + (n % 2) * n) % 700 + 3)
                    .collect::<Vec<_>>(),
                "max_tokens": 5 + (n * 7) % 40,
                "temperature": if n % 3 == 0 { 0.0 } else { 0.9 },
                "top_p": 0.95,
                "seed": n,
                "ignore_eos": true,
                "return_token_ids": true,
            })
        })
        .collect()
}

/// Short prompts and long answers: all are admitted, and then outgrow the cache.
fn growing_requests() -> Vec<Value> {
    (0..16_u64)
        .map(|n| {
            json!({
                "model": "tiny-llama",
                "prompt": (0..1 + n).map(|i| (i * 31 + n) % 700 + 3).collect::<Vec<_>>(),
                "max_tokens": 240,
                "temperature": if n % 3 == 0 { 0.0 } else { 0.9 },
                "seed": n,
                "ignore_eos": true,
                "return_token_ids": true,
            })
        })
        .collect()
}

/// What each request gives when nothing else runs, and then when all do.
fn assert_alone_and_together_agree(server: &Server, requests: &[Value]) {
    let alone: Vec<Vec<u64>> = requests
        .iter()
        .map(|body| token_ids(&rest(&open(server, body))))
        .collect();
    for (body, ids) in requests.iter().zip(&alone) {
        assert_eq!(ids.len() as u64, body["max_tokens"].as_u64().expect("set"));
    }
    let streams: Vec<Stream> = requests.iter().map(|body| open(server, body)).collect();
    for (number, (stream, alone)) in streams.iter().zip(&alone).enumerate() {
        let together = token_ids(&rest(stream));
        assert_eq!(&together, alone, "request {number}");
    }
}

#[test]
fn each_of_32_streams_gives_the_tokens_that_it_gives_alone() {
    let server = ServerOptions::real(&golden("models/tiny-llama"))
        .args(&["--max-num-batched-tokens", "64", "--max-num-seqs", "24"])
        .start();
    assert_alone_and_together_agree(&server, &mixed_requests());
}

#[test]
fn nor_does_preemption_change_a_token() {
    // Too few blocks: any three of the 16 streams outgrow them before they end.
    let server = ServerOptions::real(&golden("models/tiny-llama"))
        .args(&["--num-kv-blocks", "40", "--max-num-batched-tokens", "64"])
        .start();
    assert_alone_and_together_agree(&server, &growing_requests());
    let preemptions = Metrics::read(&server).sum("vllm:num_preemptions_total", "");
    assert!(preemptions > 0.0, "nobody lost blocks");
}

/// Prompts of three families that share beginnings of many lengths, greedy and
/// sampled, each asked twice.
fn overlapping_requests() -> Vec<Value> {
    (0..48_u64)
        .map(|n| n % 24)
        .map(|n| {
            let (family, shared, length) = (n % 3, 7 * n, 11 * n + 1);
            json!({
                "model": "tiny-llama",
                "prompt": (0..length)
                    .map(|i| (i * 31 + family + if i < shared { 0 } else { n }) % 700 + 3)
                    .collect::<Vec<_>>(),
                "max_tokens": 20,
                "temperature": if n % 2 == 0 { 0.0 } else { 0.9 },
                "seed": n,
                "logprobs": 5,
                "ignore_eos": true,
                "return_token_ids": true,
            })
        })
        .collect()
}

/// Tokens and log-probabilities of all answers, and how many tokens of
/// prompts were found in the prefix cache.
fn answers(options: ServerOptions, requests: &[Value]) -> (Vec<Value>, f64) {
    let server = options.start();
    let url = format!("{}/v1/completions", server.base_url());
    let answer = |body| {
        let (status, mut answer) = post(&url, body).expect("answered");
        assert_eq!(status, 200, "{answer}");
        let choice = answer["choices"][0].take();
        assert!(choice["logprobs"]["token_logprobs"].is_array(), "{choice}");
        choice
    };
    let answers = requests.iter().map(answer).collect();
    let hits = Metrics::read(&server).sum("vllm:prefix_cache_hits_total", "");
    (answers, hits)
}

#[test]
fn the_prefix_cache_changes_no_token_and_no_bit_of_a_log_probability() {
    let requests = overlapping_requests();
    let models = [
        "models/tiny-llama",
        "gguf/tiny-llama.Q4_1.gguf",
        "gguf/tiny-llama.Q8_0.gguf",
    ];
    for model in models {
        // Chunks, too, are cut elsewhere where the beginning is cached.
        let options = ServerOptions::real(&golden(model)).args(&[
            "--served-model-name",
            "tiny-llama",
            "--max-num-batched-tokens",
            "96",
        ]);
        let (with, hits) = answers(options.clone(), &requests);
        let (without, none) = answers(options.args(&["--no-enable-prefix-caching"]), &requests);
        assert!(
            hits > 1000.0 && none == 0.0,
            "{hits} and {none} tokens were found"
        );
        for (number, (with, without)) in with.iter().zip(&without).enumerate() {
            // Numbers are equal as written only if all their bits are.
            assert_eq!(with, without, "request {number} of {model}");
        }
    }
}

#[test]
fn the_single_process_gives_the_same_tokens_and_ends_as_told() {
    let body = &mixed_requests()[9];
    let options = ServerOptions::real(&golden("models/tiny-llama"));
    let server = options.clone().start();
    let several = token_ids(&rest(&open(&server, body)));
    let mut single = options.env("NANO_ENABLE_MULTIPROCESSING", "0").start();
    assert_eq!(token_ids(&rest(&open(&single, body))), several);
    // A stream that is open when it is told to end may finish.
    let stream = open(
        &single,
        &json!({"model": "tiny-llama", "prompt": [5], "max_tokens": 200}),
    );
    stream.wait_started();
    single.signal("nano-serve-single", Signal::SIGTERM);
    let events = rest(&stream);
    assert!(events.contains(&StreamEvent::Done), "{events:?}");
    let status = single.wait_exit(Duration::from_secs(3));
    assert_eq!(status.code(), Some(0), "{}", single.log());
}

#[test]
fn a_completion_is_what_the_golden_data_say() {
    let text = std::fs::read_to_string(golden("models/tiny-llama/golden.json")).expect("golden");
    let golden_data: Value = serde_json::from_str(&text).expect("JSON");
    let server = ServerOptions::real(&golden("models/tiny-llama"))
        .args(&["--dtype", "float32"])
        .start();
    for case in golden_data["cases"].as_array().expect("cases") {
        let expected = &case["greedy"]["ids"];
        let body = json!({
            "model": "tiny-llama",
            "prompt": case["input_ids"],
            "max_tokens": expected.as_array().expect("ids").len(),
            "temperature": 0.0,
            "ignore_eos": true,
            "return_token_ids": true,
        });
        let url = format!("{}/v1/completions", server.base_url());
        let (status, answer) = post(&url, &body).expect("answered");
        assert_eq!(status, 200, "{answer}");
        assert_eq!(
            &answer["choices"][0]["token_ids"], expected,
            "{}",
            case["name"]
        );
    }
}
