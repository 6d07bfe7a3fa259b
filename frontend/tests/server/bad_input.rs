//! What clients may send and must not: each refused with the field's name, and
//! nothing else harmed.

use crate::support::{Response, Server, client_send, config, engine_info, get, post, request};
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::engine_core_request::EngineCoreRequest;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A body's text and what its error must say: the field, and a part of the message.
type Case = (&'static str, &'static str, &'static str);

/// Fields that both endpoints take, in a body that is right without them.
const FIELDS: &[Case] = &[
    (
        r#""temperature": 2.1"#,
        "temperature",
        "from 0 to 2, it is 2.1",
    ),
    (
        r#""temperature": -1"#,
        "temperature",
        "from 0 to 2, it is -1",
    ),
    (
        r#""temperature": "hot""#,
        "temperature",
        "invalid type: string",
    ),
    (r#""temperature": 1e999"#, "temperature", "out of range"),
    (r#""temperature": NaN"#, "", "no JSON object"),
    (r#""top_p": 0"#, "top_p", "greater than 0"),
    (r#""top_p": 1.01"#, "top_p", "from 0 to 1, it is 1.01"),
    (r#""top_k": -2"#, "top_k", "from -1 to"),
    (r#""top_k": 1.5"#, "top_k", "1.5"),
    (
        r#""max_tokens": 2.0"#,
        "max_tokens",
        "an integer, it is 2.0",
    ),
    (r#""n": 1e0"#, "n", "an integer, it is 1.0"),
    (
        r#""stream_options": 5"#,
        "stream_options",
        "expected an object",
    ),
    (
        r#""response_format": "x""#,
        "response_format",
        "expected an object",
    ),
    (r#""min_p": 1.1"#, "min_p", "from 0 to 1"),
    (
        r#""presence_penalty": 2.5"#,
        "presence_penalty",
        "from -2 to 2",
    ),
    (
        r#""frequency_penalty": -2.5"#,
        "frequency_penalty",
        "from -2 to 2",
    ),
    (
        r#""repetition_penalty": 0"#,
        "repetition_penalty",
        "greater than 0",
    ),
    (
        r#""repetition_penalty": 3"#,
        "repetition_penalty",
        "from 0 to 2",
    ),
    (r#""n": 0"#, "n", "from 1 to 128, it is 0"),
    (r#""n": 129"#, "n", "from 1 to 128, it is 129"),
    (r#""n": 100000000000000000000"#, "n", "from 1 to 128"),
    (r#""n": 17"#, "n", "the server takes 16 at once"),
    (r#""max_tokens": -1"#, "max_tokens", "from"),
    (
        r#""max_tokens": 100000"#,
        "max_tokens",
        "the context has 512 tokens",
    ),
    (
        r#""min_tokens": 5, "max_tokens": 4"#,
        "min_tokens",
        "at most max_tokens (4)",
    ),
    (r#""min_tokens": 513"#, "min_tokens", "at most max_tokens"),
    (r#""seed": "x""#, "seed", "invalid type"),
    (r#""stop": 5"#, "stop", "a string or a list of strings"),
    (r#""stop": ["a", ""]"#, "stop", "1 to 1024 bytes, one has 0"),
    (
        r#""stop_token_ids": [1000000]"#,
        "stop_token_ids",
        "1000000 is no token id",
    ),
    (
        r#""stop_token_ids": [-1]"#,
        "stop_token_ids",
        "invalid value",
    ),
    (
        r#""logit_bias": {"1000000": 1}"#,
        "logit_bias",
        "1000000 is no token id",
    ),
    (
        r#""logit_bias": {"x": 1}"#,
        "logit_bias",
        "x is no token id",
    ),
    (
        r#""logit_bias": {"1": 101}"#,
        "logit_bias",
        "from -100 to 100",
    ),
    (r#""logit_bias": {"1": null}"#, "logit_bias", "invalid type"),
    (
        r#""prompt_logprobs": 21"#,
        "prompt_logprobs",
        "from 0 to 20",
    ),
    (
        r#""prompt_logprobs": 1, "stream": true"#,
        "prompt_logprobs",
        "stream",
    ),
    (r#""stream": "yes""#, "stream", "invalid type"),
    (
        r#""stream_options": {"include_usage": true}"#,
        "stream_options",
        "stream is true",
    ),
    (r#""ignore_eos": 1"#, "ignore_eos", "invalid type"),
    (
        r#""model": "other""#,
        "model",
        "`other` is not served here; served: tiny, alias/of-it",
    ),
    (r#""model": 5"#, "model", "invalid type"),
];

const COMPLETION_BODIES: &[Case] = &[
    ("", "", "no JSON object"),
    ("[]", "", "no JSON object"),
    (r#"{"prompt": "x""#, "", "no JSON object"),
    ("{}", "prompt", "required"),
    (r#"{"prompt": null}"#, "prompt", "required"),
    (r#"{"prompt": ""}"#, "prompt", "empty"),
    (r#"{"prompt": []}"#, "prompt", ""),
    (r#"{"prompt": ["x", ""]}"#, "prompt", "empty"),
    (r#"{"prompt": [[1], []]}"#, "prompt", "empty"),
    (
        r#"{"prompt": [1, 1000000]}"#,
        "prompt",
        "1000000 is out of the vocabulary",
    ),
    (r#"{"prompt": [1, -1]}"#, "prompt", "expected u32"),
    (r#"{"prompt": [1.5]}"#, "prompt", "expected u32"),
    (
        r#"{"prompt": {"a": 1}}"#,
        "prompt",
        "a string, a list of strings",
    ),
    (r#"{"prompt": [1, "x"]}"#, "prompt", "expected u32"),
    (r#"{"prompt": "\ud800"}"#, "prompt", "hex escape"),
    (r#"{"prompt": "\ud800\u0041"}"#, "prompt", "surrogate"),
    (r#"{"prompt": "\udc00"}"#, "prompt", "surrogate"),
    (
        r#"{"prompt": "x", "max_tokens": 0}"#,
        "max_tokens",
        "unless echo is true",
    ),
    (
        r#"{"prompt": "x", "logprobs": 21}"#,
        "logprobs",
        "from 0 to 20, it is 21",
    ),
    (
        r#"{"prompt": "x", "logprobs": true}"#,
        "logprobs",
        "invalid type",
    ),
    (
        r#"{"prompt": "x", "suffix": "y"}"#,
        "suffix",
        "not supported",
    ),
    (
        r#"{"prompt": "x", "best_of": 2}"#,
        "best_of",
        "not supported",
    ),
    (
        r#"{"prompt": "x", "response_format": {"type": "json_object"}}"#,
        "response_format",
        "json_object is not supported",
    ),
];

const CHAT_BODIES: &[Case] = &[
    ("{}", "messages", "required"),
    (
        r#"{"messages": []}"#,
        "messages",
        "1 to 16384 messages, it is 0",
    ),
    (r#"{"messages": "hi"}"#, "messages", "invalid type"),
    (r#"{"messages": [5]}"#, "messages[0]", "must be an object"),
    (
        r#"{"messages": [{"content": "x"}]}"#,
        "messages[0].role",
        "must be a text",
    ),
    (
        r#"{"messages": [{"role": "user", "content": 5}]}"#,
        "messages[0].content",
        "a text or a list",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "\ud800x"}]}"#,
        "messages",
        "hex escape",
    ),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}"#,
        "messages[0].content[0].type",
        "image_url are not supported",
    ),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#,
        "messages[0].content[0].text",
        "must be a text",
    ),
];

/// Fields of a chat, in a body that is right without them.
const CHAT_FIELDS: &[Case] = &[
    (
        r#""max_completion_tokens": 0"#,
        "max_completion_tokens",
        "from 1 to",
    ),
    (
        r#""top_logprobs": 21, "logprobs": true"#,
        "top_logprobs",
        "from 0 to 20",
    ),
    (r#""top_logprobs": 2"#, "top_logprobs", "logprobs is true"),
    (r#""logprobs": 2"#, "logprobs", "invalid type"),
    (
        r#""response_format": {"type": "json_schema"}"#,
        "response_format",
        "json_schema is not supported",
    ),
    (
        r#""tools": [{"type": "function"}]"#,
        "tools",
        "not supported",
    ),
    (
        r#""tool_choice": "required""#,
        "tool_choice",
        "not supported",
    ),
    (
        r#""chat_template": "{{ 1 }}""#,
        "chat_template",
        "not supported",
    ),
    (
        r#""continue_final_message": true, "add_generation_prompt": true"#,
        "continue_final_message",
        "exclude",
    ),
    (
        r#""chat_template_kwargs": 5"#,
        "chat_template_kwargs",
        "invalid type",
    ),
];

/// Fields of a component of the interface's description, with their schemas.
fn described(document: &Value, component: &Value) -> Vec<(String, Value)> {
    if let Some(path) = component["$ref"].as_str() {
        return described(document, document.pointer(&path[1..]).expect("a component"));
    }
    let own = component["properties"].as_object().into_iter().flatten();
    let mut all: Vec<_> = own
        .map(|(name, schema)| (name.clone(), schema.clone()))
        .collect();
    for part in component["allOf"].as_array().into_iter().flatten() {
        all.extend(described(document, part));
    }
    all
}

#[test]
fn what_is_known_but_not_supported_is_refused_by_name_and_what_asks_for_nothing_is_taken() {
    let (server, core) = Server::start(config());
    let document = get(server.addr, "/openapi.json").json();
    let mut tried = 0;
    for (path, component, fine) in [
        (
            COMPLETIONS,
            "CompletionRequest",
            json!({"prompt": "x", "max_tokens": 600}),
        ),
        (
            CHAT,
            "ChatCompletionRequest",
            json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 600}),
        ),
    ] {
        let schema = &document["components"]["schemas"][component];
        for (name, schema) in described(&document, schema) {
            if !schema["description"].to_string().contains("Not supported") {
                continue;
            }
            tried += 1;
            let mut body = fine.clone();
            body[&name] = json!([{"x": 1}]);
            let message = format!("{name} is not supported");
            assert_refused(&server, path, &body.to_string(), &name, &message);
            let harmless = schema["enum"].as_array().cloned();
            for value in harmless.unwrap_or_else(|| vec![Value::Null, json!([])]) {
                body[&name] = value;
                // It comes as far as the length, which is wrong.
                assert_refused(
                    &server,
                    path,
                    &body.to_string(),
                    "max_tokens",
                    "the context",
                );
            }
        }
    }
    assert!(tried > 15, "{tried} fields are not supported");
    assert!(core.is_quiet());
}

fn assert_refused(server: &Server, path: &str, body: &str, param: &str, needle: &str) {
    let response = request(server.addr, "POST", path, &[], body.as_bytes());
    let status = response.status;
    let error = response.json();
    let message = error["error"]["message"].as_str().expect("a message");
    let expected = if message.contains("is not served here") {
        404
    } else {
        400
    };
    assert_eq!(status, expected, "{body}: {error}");
    assert!(message.contains(needle), "{body}: {message}");
    assert_eq!(error["error"]["type"], "invalid_request_error", "{body}");
    match param {
        "" => assert_eq!(error["error"]["param"], Value::Null, "{body}"),
        param => assert_eq!(error["error"]["param"], param, "{body}"),
    }
}

#[test]
fn each_wrong_field_is_named_and_nothing_reaches_the_engine() {
    let (server, core) = Server::start(config());
    for (body, param, needle) in COMPLETION_BODIES {
        assert_refused(&server, COMPLETIONS, body, param, needle);
    }
    for (body, param, needle) in CHAT_BODIES {
        assert_refused(&server, CHAT, body, param, needle);
    }
    for (field, param, needle) in FIELDS {
        let body = format!(r#"{{"prompt": "x", {field}}}"#);
        assert_refused(&server, COMPLETIONS, &body, param, needle);
    }
    for (field, param, needle) in FIELDS.iter().chain(CHAT_FIELDS) {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], {field}}}"#);
        assert_refused(&server, CHAT, &body, param, needle);
    }
    assert!(core.is_quiet());
    assert_eq!(get(server.addr, "/health").status, 200);
}

/// What the engine gets for a body that is right.
fn accepted(server: &Server, core: &crate::support::CoreDouble, body: &str) -> EngineCoreRequest {
    let addr = server.addr;
    let body = body.to_owned();
    let client =
        std::thread::spawn(move || request(addr, "POST", COMPLETIONS, &[], body.as_bytes()).status);
    let add = core.next_add();
    core.tokens(add.id, &[40], Some(FinishReason::Length));
    assert_eq!(client.join().expect("client"), 200);
    add
}

#[test]
fn values_at_the_bounds_arrive_as_they_are() {
    let (server, core) = Server::start(config());
    let add = accepted(
        &server,
        &core,
        r#"{"prompt": [0], "temperature": 2, "top_p": 1.0, "top_k": -1, "min_p": 1,
            "presence_penalty": -2, "frequency_penalty": 2.0, "repetition_penalty": 2,
            "max_tokens": 511, "min_tokens": 511, "seed": -1, "logit_bias": {"7": -100, "3": 100},
            "stop_token_ids": [9, 9], "ignore_eos": true, "logprobs": 20, "stop": null}"#,
    );
    let sampling = &add.sampling;
    assert_eq!(sampling.temperature, 2.0);
    assert_eq!(
        (sampling.top_p, sampling.top_k, sampling.min_p),
        (1.0, 0, 1.0)
    );
    assert_eq!(sampling.presence_penalty, -2.0);
    assert_eq!(sampling.frequency_penalty, 2.0);
    assert_eq!(sampling.repetition_penalty, 2.0);
    assert_eq!((add.max_tokens, sampling.min_tokens), (511, 511));
    assert_eq!(sampling.seed, u64::MAX);
    assert_eq!(sampling.logit_bias, [(3, 100.0), (7, -100.0)]);
    assert_eq!(sampling.stop_token_ids, [9]);
    assert_eq!(sampling.logprobs, Some(20));
    // Nothing said: greedy or not is the model's makers' choice, else OpenAI's.
    let add = accepted(&server, &core, r#"{"prompt": [0], "temperature": 1e-7}"#);
    assert_eq!(add.sampling.temperature, 0.0);
    let again = accepted(&server, &core, r#"{"prompt": [0], "temperature": 1e-7}"#);
    assert_ne!(add.sampling.seed, again.sampling.seed, "each draws its own");
    // The default length gives way to the context.
    let prompt: Vec<u32> = vec![1; 500];
    let add = accepted(&server, &core, &json!({"prompt": prompt}).to_string());
    assert_eq!(add.max_tokens, 12);
}

#[test]
fn prompts_longer_than_context_or_cache_are_refused_at_once() {
    let (server, core) = Server::loading(config());
    let mut info = engine_info();
    info.num_kv_blocks = 4; // 64 tokens, fewer than the context.
    core.ready(info);
    server.reports.recv().expect("a report");
    let prompt: Vec<u32> = vec![1; 64];
    let body = json!({"prompt": prompt}).to_string();
    assert_refused(
        &server,
        COMPLETIONS,
        &body,
        "prompt",
        "the context of 64 tokens",
    );
    let body = json!({"prompt": prompt[..60], "max_tokens": 5}).to_string();
    assert_refused(
        &server,
        COMPLETIONS,
        &body,
        "max_tokens",
        "the context has 64 tokens",
    );
    let error = post(server.addr, COMPLETIONS, &json!({"prompt": prompt})).json();
    assert_eq!(error["error"]["code"], "context_length_exceeded");
}

#[test]
fn bodies_that_are_no_text_too_large_or_cut() {
    let (server, _core) = Server::start(config());
    let bad = request(
        server.addr,
        "POST",
        COMPLETIONS,
        &[],
        b"{\"prompt\": \"\xff\"}",
    );
    assert_eq!(bad.status, 400);
    let message = bad.json()["error"]["message"].to_string();
    assert!(message.contains("UTF-8, from byte 12 on"), "{message}");
    let large = vec![b' '; (1 << 20) + 1];
    let refused = request(server.addr, "POST", COMPLETIONS, &[], &large);
    assert_eq!(refused.status, 413);
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("1048576 bytes"), "{message}");
    // Chunked, its length is known only when it came.
    let mut stream = TcpStream::connect(server.addr).expect("the server listens");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("server reads");
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..17 {
        // The server may have answered and closed already.
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    assert_eq!(Response::read(stream).status, 413);
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    assert_eq!(
        request(server.addr, "POST", COMPLETIONS, &[], deep.as_bytes()).status,
        400
    );
}

#[test]
fn a_large_prompt_is_tokenized_beside_the_event_loop() {
    let (server, core) = Server::start(config());
    // Much text, too long for the context: refused after all the work.
    let body = json!({"prompt": "many words ".repeat(60_000)});
    let client = client_send(server.addr, COMPLETIONS, &body);
    let add = accepted(&server, &core, r#"{"prompt": "quick"}"#);
    assert!(!add.prompt_token_ids.is_empty());
    let answer = Response::read(client);
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
}

#[test]
fn paths_and_methods_that_are_not() {
    let (server, _core) = Server::start(config());
    let nothing = get(server.addr, "/v2/completions");
    assert_eq!(nothing.status, 404);
    assert!(
        nothing.json()["error"]["message"]
            .to_string()
            .contains("/v2/completions")
    );
    let wrong = get(server.addr, COMPLETIONS);
    assert_eq!(wrong.status, 405);
    assert!(wrong.json()["error"]["message"].is_string());
    for (path, body, param) in [
        ("/tokenize", "{}", "prompt"),
        ("/tokenize", r#"{"prompt": 5}"#, "prompt"),
        ("/detokenize", "{}", "tokens"),
        ("/detokenize", r#"{"tokens": [1000000]}"#, "tokens"),
    ] {
        assert_refused(&server, path, body, param, "");
    }
}
