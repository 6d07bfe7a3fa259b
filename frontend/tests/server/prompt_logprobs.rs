//! Log-probabilities of prompts, which may be many times as large as the prompt.

use crate::support::{Response, Server, client_send, config, output, post};
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::model_runner_output::TokenLogprobs;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn of(id: u32) -> TokenLogprobs {
    TokenLogprobs {
        token_id: id,
        logprob: -0.5,
        rank: 2,
        top: vec![(id + 1, -0.25), (id, -0.5)],
    }
}

#[test]
fn the_first_sequence_of_each_prompt_asks_and_every_answer_has_them() {
    let (server, core) = Server::start(config());
    let body = json!({"prompt": [[5, 6, 7], [8, 9]], "n": 2, "max_tokens": 1, "echo": true,
        "logprobs": 2, "prompt_logprobs": 1, "return_tokens_as_token_ids": true});
    let client = client_send(server.addr, COMPLETIONS, &body);
    let adds: Vec<_> = (0..4).map(|_| core.next_add()).collect();
    let asked: Vec<_> = adds.iter().map(|a| a.sampling.prompt_logprobs).collect();
    assert_eq!(asked, [Some(2), None, Some(2), None]);
    // Those that tell come last.
    for add in adds.iter().rev() {
        let mut answer = output(add.id, &[40], Some(FinishReason::Length));
        if add.sampling.prompt_logprobs.is_some() {
            let rest = &add.prompt_token_ids[1..];
            answer.prompt_logprobs = Some(rest.iter().map(|id| of(*id)).collect());
        }
        core.outputs(vec![answer]);
    }
    let answer = Response::read(client).json();
    for (at, tokens) in [(0, ["5", "6", "7"].as_slice()), (2, &["8", "9"])] {
        let (first, second) = (&answer["choices"][at], &answer["choices"][at + 1]);
        for part in ["text", "logprobs", "prompt_logprobs"] {
            assert_eq!(first[part], second[part], "{part}");
        }
        let named = |id: &str| json!(format!("token_id:{id}"));
        let all: Vec<Value> = tokens.iter().chain(&["40"]).map(|id| named(id)).collect();
        let lists = &first["logprobs"];
        assert_eq!(lists["tokens"], json!(all));
        assert_eq!(lists["token_logprobs"][0], Value::Null);
        assert_eq!(lists["token_logprobs"][1], -0.5);
        let next = format!("token_id:{}", tokens[1].parse::<u32>().expect("an id") + 1);
        assert_eq!(lists["top_logprobs"][1][next], -0.25);
        let told = first["prompt_logprobs"].as_array().expect("a list");
        assert_eq!(told.len(), tokens.len());
        assert_eq!(told[0], Value::Null);
        assert_eq!(told[1][tokens[1]]["rank"], 2);
    }
}

#[test]
fn a_stream_that_echoes_has_them_in_every_choice() {
    let (server, core) = Server::start(config());
    let body = json!({"prompt": [5, 6], "n": 2, "max_tokens": 1, "echo": true, "logprobs": 1,
        "stream": true});
    let client = client_send(server.addr, COMPLETIONS, &body);
    for add in [core.next_add(), core.next_add()] {
        assert_eq!(add.sampling.prompt_logprobs, Some(1));
        let mut answer = output(add.id, &[40], Some(FinishReason::Length));
        answer.prompt_logprobs = Some(vec![of(6)]);
        core.outputs(vec![answer]);
    }
    let events = Response::read(client).events_to_done();
    let tokens = |event: &Value| event["choices"][0]["logprobs"]["tokens"].clone();
    let lists: Vec<Value> = events.iter().map(tokens).collect();
    assert_eq!(lists.len(), 2);
    assert_eq!(lists[0].as_array().map(Vec::len), Some(3));
    assert_eq!(lists[0], lists[1]);
}

#[test]
fn more_than_an_answer_can_hold_is_400_and_names_the_limit() {
    let (server, core) = Server::start(config());
    let long = vec![5; 500];
    let chat = json!([{"role": "user", "content": "x"}]);
    for (path, body) in [
        (
            COMPLETIONS,
            json!({"prompt": long, "max_tokens": 1, "n": 128, "echo": true, "logprobs": 20}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": long, "max_tokens": 1, "n": 128, "prompt_logprobs": 20}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": [5], "max_tokens": 500, "n": 128, "logprobs": 20}),
        ),
        // An answer may fill the context.
        (
            CHAT,
            json!({"messages": chat, "n": 128, "logprobs": true, "top_logprobs": 20}),
        ),
    ] {
        let refused = post(server.addr, path, &body);
        assert_eq!(refused.status, 400);
        let error = refused.json();
        assert_eq!(error["error"]["param"], "logprobs");
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.contains("the limit is 1048576"), "{message}");
    }
    assert!(core.is_quiet());
}
