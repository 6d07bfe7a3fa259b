//! Kinds of requests that have brought down servers, whole: in every field and
//! at every moment, not in one.

use crate::support::{CoreDouble, Response};
use crate::support::{Server, client_send, config, get, output, post, request};
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::engine_core_request::EngineCoreRequest;
use nano_ipc::model_runner_output::TokenLogprobs;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const PATHS: [&str; 4] = [COMPLETIONS, CHAT, "/tokenize", "/detokenize"];

fn text_of_error(response: Response, status: u16) -> String {
    assert_eq!(response.status, status);
    let error = response.json();
    let message = error["error"]["message"].as_str().expect("a message");
    message.to_owned()
}

/// Surrogates alone, the wrong way round, twice, before a character, at the end.
const SURROGATES: [&str; 5] = [
    r"\ud800",
    r"\udc00\ud800",
    r"\ud83d\ud83d",
    r"\udbffx",
    r"x\uDFFF",
];

#[test]
fn a_lone_surrogate_is_400_in_every_text_that_is_read() {
    let (server, core) = Server::start(config());
    let mut tried = 0;
    for surrogate in SURROGATES {
        for (path, body) in [
            (COMPLETIONS, r#"{"prompt": "@"}"#),
            (COMPLETIONS, r#"{"prompt": ["x", "@"]}"#),
            (COMPLETIONS, r#"{"prompt": "x", "stop": "@"}"#),
            (COMPLETIONS, r#"{"prompt": "x", "stop": ["a", "@"]}"#),
            (COMPLETIONS, r#"{"prompt": "x", "model": "@"}"#),
            (COMPLETIONS, r#"{"prompt": "x", "logit_bias": {"@": 1}}"#),
            (
                COMPLETIONS,
                r#"{"prompt": "x", "response_format": {"type": "@"}}"#,
            ),
            (COMPLETIONS, r#"{"prompt": "x", "@": 1}"#),
            (CHAT, r#"{"messages": [{"role": "@", "content": "x"}]}"#),
            (CHAT, r#"{"messages": [{"role": "user", "content": "@"}]}"#),
            (
                CHAT,
                r#"{"messages": [{"role": "user", "content": "x", "name": "@"}]}"#,
            ),
            (
                CHAT,
                r#"{"messages": [{"role": "user", "content": "x", "@": 1}]}"#,
            ),
            (
                CHAT,
                r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "@"}]}]}"#,
            ),
            (
                CHAT,
                r#"{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": "@"}}"#,
            ),
            ("/tokenize", r#"{"prompt": "@"}"#),
            (
                "/tokenize",
                r#"{"messages": [{"role": "user", "content": "@"}]}"#,
            ),
            ("/detokenize", r#"{"tokens": [1], "model": "@"}"#),
        ] {
            let body = body.replace('@', surrogate);
            let response = request(server.addr, "POST", path, &[], body.as_bytes());
            assert!(!text_of_error(response, 400).is_empty(), "{body}");
            tried += 1;
        }
    }
    assert_eq!(tried, 85);
    assert!(core.is_quiet());
}

#[test]
fn bodies_that_are_no_json_object_are_400_on_every_path() {
    let (server, core) = Server::start(config());
    let deep = |open: &str| open.repeat(200_000);
    for path in PATHS {
        for body in [
            b"".to_vec(),
            b"null".to_vec(),
            b"\"x\"".to_vec(),
            b"[{}]".to_vec(),
            b"{".to_vec(),
            b"{}x".to_vec(),
            b"{\"a\": NaN}".to_vec(),
            b"{\"a\": 01}".to_vec(),
            b"{\"a\": \"\n\"}".to_vec(),
            b"\xef\xbb\xbf{}".to_vec(),
            b"\xff\xfe{\0}\0".to_vec(),
            b"{\"a\": \"\xc3\x28\"}".to_vec(),
            b"\0".to_vec(),
            format!("{{\"a\": {}", deep("[")).into_bytes(),
            format!("{{\"a\": {}", deep("{\"a\":")).into_bytes(),
        ] {
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            let response = request(server.addr, "POST", path, &[], &body);
            assert!(!text_of_error(response, 400).is_empty(), "{path} {shown}");
        }
    }
    assert!(core.is_quiet());
    assert_eq!(get(server.addr, "/health").status, 200);
}

#[test]
fn a_text_far_longer_than_the_context_is_refused_before_it_is_tokenized() {
    let (server, core) = Server::start(config());
    let text = "a b".repeat(300_000);
    let chat = json!({"messages": [{"role": "user", "content": text}]});
    for (path, body) in [
        ("/tokenize", json!({"prompt": text})),
        ("/tokenize", chat.clone()),
        (COMPLETIONS, json!({"prompt": text})),
        (CHAT, chat),
    ] {
        let error = post(server.addr, path, &body);
        let message = text_of_error(error, 400);
        assert!(message.contains("at least"), "{path}: {message}");
    }
    // Somewhat longer is counted.
    let body = json!({"prompt": "a b".repeat(1000)});
    let count = post(server.addr, "/tokenize", &body).json()["count"].clone();
    assert!(count.as_u64() > Some(512), "{count}");
    assert!(core.is_quiet());
}

#[test]
fn no_error_quotes_more_than_a_little_of_what_the_client_sent() {
    let (server, core) = Server::start(config());
    let long = "B".repeat(500_000);
    let mut bodies = vec![format!("\"{long}\"")];
    for name in [
        "prompt",
        "model",
        "n",
        "max_tokens",
        "temperature",
        "stream",
        "stop_token_ids",
        "logit_bias",
        "stream_options",
        "response_format",
        "messages",
        "chat_template_kwargs",
    ] {
        bodies.push(format!(r#"{{"{name}": "{long}"}}"#));
        bodies.push(format!(r#"{{"{name}": {{"{long}": "{long}"}}}}"#));
        bodies.push(format!(
            r#"{{"prompt": 5, "messages": 5, "{name}": ["{long}"]}}"#
        ));
    }
    for body in bodies {
        for path in PATHS {
            let response = request(server.addr, "POST", path, &[], body.as_bytes());
            assert!(response.status == 400 || response.status == 404, "{path}");
            let text = response.text();
            assert!(text.len() < 5000, "{path}: {}", text.len());
        }
    }
    assert!(core.is_quiet());
}

/// Answers a request that arrived.
fn finish(core: &CoreDouble, add: &EngineCoreRequest) {
    core.tokens(add.id, &[40], Some(FinishReason::Length));
}

#[test]
fn requests_that_bring_the_same_id_are_each_answered() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let ask = move || {
        let id = [("x-request-id", "the-same")];
        let body = br#"{"prompt": "x"}"#;
        request(addr, "POST", COMPLETIONS, &id, body)
    };
    let clients = [(); 3].map(|()| std::thread::spawn(ask));
    let adds = [core.next_add(), core.next_add(), core.next_add()];
    for add in &adds {
        assert_eq!(add.external_id, "cmpl-the-same");
        let same = adds.iter().filter(|other| other.id == add.id);
        assert_eq!(same.count(), 1, "the engine tells them apart");
        let same = adds.iter().filter(|other| other.trace_key == add.trace_key);
        assert_eq!(same.count(), 1, "and so does the trace");
    }
    // In another order than they came.
    for at in [1, 2, 0] {
        finish(&core, &adds[at]);
    }
    for client in clients {
        let response = client.join().expect("client");
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-request-id"), Some("the-same"));
    }
}

#[test]
fn what_a_template_raises_is_400_with_its_text_and_so_is_what_it_cannot_render() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("template.jinja");
    let template = "{% if messages[0].content == 'raise' %}\
                    {{ raise_exception('Only \"good\" messages, é\n!') }}{% endif %}\
                    {% if messages[0].content == 'fail' %}{{ messages[0].missing.field }}{% endif %}\
                    {% if messages[0].content == 'loop' %}{% for a in range(9999) %}\
                    {% for b in range(9999) %}x{% endfor %}{% endfor %}{% endif %}fine";
    std::fs::write(&path, template).expect("writable");
    let mut config = config();
    config.chat_template = Some(path);
    let (server, core) = Server::start(config);
    for (content, needle) in [
        ("raise", "Only \"good\" messages, é\n!"),
        ("fail", "does not fit the conversation"),
        ("loop", "too long for the chat template"),
    ] {
        for (path, stream) in [(CHAT, false), (CHAT, true), ("/tokenize", false)] {
            let body =
                json!({"messages": [{"role": "user", "content": content}], "stream": stream});
            let message = text_of_error(post(server.addr, path, &body), 400);
            assert!(message.contains(needle), "{path}: {message}");
        }
    }
    let fine = json!({"messages": [{"role": "user", "content": "x"}]});
    let client = client_send(server.addr, CHAT, &fine);
    finish(&core, &core.next_add());
    assert_eq!(Response::read(client).status, 200);
}

/// Whatever a model's probabilities are, the answer is JSON that every parser
/// takes: in every place that has one, on both paths, streamed and not.
#[test]
fn probabilities_that_are_no_numbers_are_numbers_in_the_answer() {
    let (server, core) = Server::start(config());
    for strange in [f32::NEG_INFINITY, f32::NAN, -f32::MAX, -0.0] {
        for stream in [false, true] {
            for (path, body) in [
                (
                    COMPLETIONS,
                    json!({"prompt": [5, 6], "logprobs": 2, "echo": true}),
                ),
                (
                    CHAT,
                    json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true,
                        "top_logprobs": 2}),
                ),
            ] {
                let mut body = body;
                body["stream"] = json!(stream);
                if !stream {
                    body["prompt_logprobs"] = json!(2);
                }
                let client = client_send(server.addr, path, &body);
                let add = core.next_add();
                let of = |id: u32| TokenLogprobs {
                    token_id: id,
                    logprob: strange,
                    rank: 1,
                    top: vec![(id, strange), (id + 1, strange)],
                };
                let mut answer = output(add.id, &[40, 41], Some(FinishReason::Length));
                answer.logprobs = vec![of(40), of(41)];
                if add.sampling.prompt_logprobs.is_some() {
                    let rest = &add.prompt_token_ids[1..];
                    answer.prompt_logprobs = Some(rest.iter().map(|id| of(*id)).collect());
                }
                core.outputs(vec![answer]);
                let mut response = Response::read(client);
                assert_eq!(response.status, 200);
                // Reading refuses what is no JSON, of which NaN and Infinity are.
                let answers = if stream {
                    response.events_to_done()
                } else {
                    vec![response.json()]
                };
                let numbers: Vec<f64> = answers.iter().flat_map(logprobs).collect();
                assert!(numbers.len() >= 2, "{answers:?}");
                assert!(numbers.iter().all(|n| n.is_finite()), "{answers:?}");
            }
        }
    }
}

/// Every number in a field of that name.
fn logprobs(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(values) => values.iter().flat_map(logprobs).collect(),
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match (name.as_str(), value) {
                ("logprob", value) => vec![value.as_f64().unwrap_or(f64::NAN)],
                ("token_logprobs", Value::Array(values)) => {
                    // The first token of a prompt has none.
                    values.iter().filter_map(Value::as_f64).collect()
                }
                _ => logprobs(value),
            })
            .collect(),
        _ => Vec::new(),
    }
}
