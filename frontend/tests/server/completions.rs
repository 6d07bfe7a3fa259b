//! `/v1/completions`.

use crate::support::{Server, config, get, model, output, post};
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::model_runner_output::TokenLogprobs;
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

fn ids(text: &str) -> Vec<u32> {
    model().encode(text, false).expect("tokens")
}

#[test]
fn a_stream_has_text_as_it_comes_then_finish_usage_and_done() {
    let (server, core) = Server::start(config());
    let answer = ids("Hello there 😀!");
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 40, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true}});
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        let mut response = post(addr, PATH, &body);
        assert_eq!(response.status, 200);
        assert_eq!(
            response.header("content-type"),
            Some("text/event-stream; charset=utf-8")
        );
        response.events_to_done()
    });
    let request = core.next_add();
    assert_eq!(request.prompt_token_ids, [1, 2, 3]);
    assert_eq!(request.max_tokens, 40);
    assert_eq!(request.sampling.temperature, 0.0);
    for id in &answer {
        core.tokens(request.id, &[*id], None);
    }
    core.tokens(request.id, &[], Some(FinishReason::Length));
    let events = client.join().expect("client");
    let (usage, chunks) = events.split_last().expect("events");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["prompt_tokens"], 3);
    assert_eq!(usage["usage"]["completion_tokens"], answer.len());
    assert_eq!(usage["usage"]["total_tokens"], 3 + answer.len());
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, "Hello there 😀!");
    for chunk in chunks {
        assert_eq!(chunk["object"], "text_completion");
        assert_eq!(chunk["model"], "tiny");
        assert_eq!(chunk["usage"], Value::Null);
        assert!(chunk["id"].as_str().expect("id").starts_with("cmpl-"));
        assert!(chunk["created"].as_u64().expect("created") > 1_700_000_000);
    }
    let finished: Vec<_> = chunks
        .iter()
        .filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null())
        .collect();
    assert_eq!(finished.len(), 1);
    assert_eq!(finished[0]["choices"][0]["finish_reason"], "length");
}

#[test]
fn text_prompts_are_tokenized_and_lists_give_one_choice_each_and_n() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"model": "alias/of-it", "prompt": ["one", "two words"], "n": 2, "seed": 7, "echo": true}),
        )
        .json()
    });
    let requests: Vec<_> = (0..4).map(|_| core.next_add()).collect();
    assert_eq!(requests[0].prompt_token_ids, ids("one"));
    assert_eq!(requests[1].prompt_token_ids, ids("one"));
    assert_eq!(requests[3].prompt_token_ids, ids("two words"));
    let seeds: Vec<u64> = requests.iter().map(|r| r.sampling.seed).collect();
    assert_eq!(seeds, [7, 8, 7, 8]);
    let mut keys: Vec<u64> = requests.iter().map(|r| r.trace_key).collect();
    keys.dedup();
    assert_eq!(keys.len(), 4, "each has a key of its own");
    assert_eq!(requests[0].max_tokens, 16);
    // Out of order, and the last sequence in one piece.
    let outputs = requests.iter().rev().zip(["d", "c", "b", "a"]);
    let outputs = outputs.map(|(r, text)| output(r.id, &ids(text), Some(FinishReason::Length)));
    core.outputs(outputs.collect());
    let answer = client.join().expect("client");
    let texts: Vec<_> = (0..4)
        .map(|at| answer["choices"][at]["text"].clone())
        .collect();
    assert_eq!(texts, ["onea", "oneb", "two wordsc", "two wordsd"]);
    assert_eq!(answer["choices"][3]["index"], 3);
    let prompt_tokens = ids("one").len() + ids("two words").len();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt_tokens);
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert_eq!(answer["object"], "text_completion");
}

#[test]
fn a_stop_string_over_tokens_never_leaks_and_ends_the_sequence_in_the_engine() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"prompt": "x", "max_tokens": 100, "stop": ["END"], "stream": true,
                "return_token_ids": true}),
        )
        .events_to_done()
    });
    let request = core.next_add();
    let answer: Vec<u32> = ["abc", "E", "N", "D", " tail"]
        .iter()
        .flat_map(|t| ids(t))
        .collect();
    // The engine is ahead: what it sent behind the stop string is nobody's.
    core.tokens(request.id, &answer, None);
    assert_eq!(core.next_abort(), request.id);
    let events = client.join().expect("client");
    let text: String = events
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, "abc");
    let last = &events.last().expect("events")["choices"][0];
    assert_eq!(last["finish_reason"], "stop");
    assert_eq!(last["stop_reason"], "END");
    let kept: usize = events
        .iter()
        .map(|chunk| {
            chunk["choices"][0]["token_ids"]
                .as_array()
                .map_or(0, Vec::len)
        })
        .sum();
    assert_eq!(kept, answer.len() - ids(" tail").len());
    assert_eq!(events[0]["choices"][0]["prompt_token_ids"], json!(ids("x")));
}

#[test]
fn a_stop_token_leaves_no_text_and_is_named_if_the_client_asked_for_it() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let stop = ids("z")[0];
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"prompt": "x", "stop_token_ids": [stop], "ignore_eos": true, "timings": true}),
        )
        .json()
    });
    let request = core.next_add();
    assert_eq!(request.sampling.stop_token_ids, [stop]);
    let mut answer = ids("abc");
    answer.push(stop);
    core.tokens(request.id, &answer, Some(FinishReason::Stop));
    let answer = client.join().expect("client");
    assert_eq!(answer["choices"][0]["text"], "abc");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["stop_reason"], stop);
    assert!(answer["timings"]["time_to_first_token_ms"].as_f64() > Some(0.0));
}

#[test]
fn logprobs_are_parallel_lists_and_json_whatever_the_model_says() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"prompt": "ab cd", "logprobs": 3, "echo": true, "prompt_logprobs": 1}),
        )
        .json()
    });
    let request = core.next_add();
    assert_eq!(request.sampling.logprobs, Some(3));
    assert_eq!(request.sampling.prompt_logprobs, Some(3));
    let prompt = request.prompt_token_ids.clone();
    assert!(prompt.len() > 1, "{prompt:?}");
    let answer = ids(" yes");
    let mut done = output(request.id, &answer, Some(FinishReason::Length));
    let of_prompt = prompt[1..].iter().map(|id| TokenLogprobs {
        token_id: *id,
        logprob: f32::NEG_INFINITY,
        rank: 9,
        top: vec![(5, -0.1), (6, f32::NAN), (7, -0.3)],
    });
    done.prompt_logprobs = Some(of_prompt.collect());
    core.outputs(vec![done]);
    let answer_json = client.join().expect("client");
    let choice = &answer_json["choices"][0];
    let text = choice["text"].as_str().expect("text");
    assert_eq!(text, "ab cd yes");
    let logprobs = &choice["logprobs"];
    let list = |name: &str| logprobs[name].as_array().expect("list").clone();
    let count = prompt.len() + answer.len();
    for name in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        assert_eq!(list(name).len(), count, "{name}");
    }
    assert_eq!(list("token_logprobs")[0], Value::Null);
    assert_eq!(list("top_logprobs")[0], Value::Null);
    assert_eq!(list("token_logprobs")[1], -9999.0);
    assert_eq!(list("token_logprobs")[prompt.len()], -0.5);
    for (token, offset) in list("tokens").iter().zip(list("text_offset")) {
        let token = token.as_str().expect("token");
        let offset = offset.as_u64().expect("offset") as usize;
        assert_eq!(&text[offset..offset + token.len()], token);
    }
    let of_prompt = choice["prompt_logprobs"].as_array().expect("list");
    assert_eq!(of_prompt.len(), prompt.len());
    assert_eq!(of_prompt[0], Value::Null);
    let second = of_prompt[1].as_object().expect("object");
    assert_eq!(second[&prompt[1].to_string()]["rank"], 9);
    assert_eq!(second["5"]["rank"], 1);
    assert_eq!(second.len(), 2, "one alternative beside the token");
}

#[test]
fn an_echo_of_the_prompt_alone() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"prompt": "just this", "max_tokens": 0, "echo": true}),
        )
        .json()
    });
    let request = core.next_add();
    assert_eq!(request.max_tokens, 1);
    core.tokens(request.id, &ids("!"), Some(FinishReason::Length));
    let answer = client.join().expect("client");
    assert_eq!(answer["choices"][0]["text"], "just this");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[test]
fn a_held_back_character_is_shown_at_the_end_and_ids_name_tokens() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"prompt": "x", "logprobs": 0, "return_tokens_as_token_ids": true}),
        )
        .json()
    });
    let request = core.next_add();
    let whole = ids("é€");
    let cut = &whole[..whole.len() - 1];
    core.tokens(request.id, cut, Some(FinishReason::Length));
    let answer = client.join().expect("client");
    let text = answer["choices"][0]["text"].as_str().expect("text");
    assert_eq!(text, model().decode(cut, true));
    assert!(text.ends_with('\u{fffd}'), "{text:?}");
    let names = &answer["choices"][0]["logprobs"]["tokens"];
    assert_eq!(names[0], format!("token_id:{}", cut[0]));
}

#[test]
fn a_failed_sequence_is_an_error_with_a_status_before_text_and_an_event_after() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let body = json!({"prompt": "x", "stream": true});
    let shared = body.clone();
    let client = std::thread::spawn(move || {
        let response = post(addr, PATH, &shared);
        (response.status, response.json())
    });
    let request = core.next_add();
    core.tokens(
        request.id,
        &[],
        Some(FinishReason::Error("no luck".to_owned())),
    );
    let (status, error) = client.join().expect("client");
    assert_eq!(
        (status, &error["error"]["message"]),
        (500, &json!("no luck"))
    );

    let (saw_first, first_seen) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        let mut response = post(addr, PATH, &body);
        let first = response.event_json();
        saw_first.send(()).expect("the test waits");
        let second = response.event_json();
        assert_eq!(response.event(), None, "the error ends the stream");
        (first, second)
    });
    let request = core.next_add();
    core.tokens(request.id, &ids("abc"), None);
    first_seen.recv().expect("the first event");
    core.tokens(
        request.id,
        &[],
        Some(FinishReason::Error("no luck".to_owned())),
    );
    let (first, second) = client.join().expect("client");
    assert_eq!(first["choices"][0]["text"], "abc");
    assert_eq!(second["error"]["message"], "no luck");
    assert!(second["error"]["type"].is_string());
}

#[test]
fn models_version_and_tokens() {
    let (server, _core) = Server::start(config());
    let models = get(server.addr, "/v1/models").json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][1]["id"], "alias/of-it");
    assert_eq!(models["data"][0]["max_model_len"], 512);
    let card = get(server.addr, "/v1/models/alias/of-it").json();
    assert_eq!(card["id"], "alias/of-it");
    assert_eq!(get(server.addr, "/v1/models/other").status, 404);
    let version = get(server.addr, "/version").json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let tokens = post(
        server.addr,
        "/tokenize",
        &json!({"prompt": "two words", "return_token_strs": true}),
    )
    .json();
    assert_eq!(tokens["tokens"], json!(ids("two words")));
    assert_eq!(tokens["count"], ids("two words").len());
    assert_eq!(tokens["max_model_len"], 512);
    let strings: String = tokens["token_strs"]
        .as_array()
        .expect("list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(strings, "two words");
    let text = post(
        server.addr,
        "/detokenize",
        &json!({"tokens": tokens["tokens"]}),
    )
    .json();
    assert_eq!(text, json!({"prompt": "two words"}));
    let chat = post(
        server.addr,
        "/tokenize",
        &json!({"messages": [{"role": "user", "content": "hi"}]}),
    )
    .json();
    assert!(chat["count"].as_u64() > Some(1));
}
