//! Every parameter of a request that generates, in one table.
//!
//! Each row says what an answer shows when its parameter is obeyed. The same
//! must be false of the answer to the same request without the parameter: so
//! no row can pass of a server that ignores it. What the server's own
//! description names must be in the table.

use crate::client::{Stream, StreamEvent, get, post, post_for_text};
use crate::metrics::Metrics;
use crate::programs::golden;
use crate::server::{Server, ServerOptions, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Renders a chat so that a test can tell what of it arrived.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ extra }}\
                        {% if add_generation_prompt %}>{% endif %}";
/// What the model puts before a text of its own.
const BOS: &str = "<|begin_of_text|>";

/// What an answer is like, and those to similar requests.
struct Asked<'a> {
    server: &'a Server,
    name: &'static str,
    path: &'static str,
    body: Value,
    /// JSON, or the list of a stream's events.
    answer: Value,
}

impl Asked<'_> {
    fn new<'a>(
        server: &'a Server,
        name: &'static str,
        path: &'static str,
        body: &Value,
    ) -> Asked<'a> {
        let url = format!("{}{path}", server.base_url());
        let (status, text) = post_for_text(&url, body).expect("answered");
        assert_eq!(status, 200, "{body}: {text}");
        let answer = match text.strip_prefix("data: ") {
            None => serde_json::from_str(&text).expect("JSON"),
            Some(events) => events
                .split("\n\ndata: ")
                .filter_map(|event| serde_json::from_str::<Value>(event).ok())
                .collect(),
        };
        Asked {
            server,
            name,
            path,
            body: body.clone(),
            answer,
        }
    }

    /// The answer to the same once more, but for one parameter.
    fn but(&self, name: &str, value: Value) -> Asked<'_> {
        let mut body = self.body.clone();
        body[name] = value;
        Asked::new(self.server, self.name, self.path, &body)
    }

    /// Whether it is what the most likely tokens give.
    fn is_greedy(&self) -> bool {
        self.ids() == self.but("temperature", json!(0)).ids()
    }

    /// Whether it has more different tokens than without its parameter.
    fn is_more_varied(&self) -> bool {
        self.different() > self.but(self.name, Value::Null).different()
    }

    fn different(&self) -> usize {
        let ids = self.ids().as_array().expect("ids").iter();
        ids.map(Value::as_u64).collect::<BTreeSet<_>>().len()
    }

    fn choice(&self) -> &Value {
        &self.answer["choices"][0]
    }

    fn ids(&self) -> &Value {
        &self.choice()["token_ids"]
    }

    fn text(&self) -> &str {
        self.choice()["text"].as_str().expect("a text")
    }

    fn tokens(&self) -> u64 {
        self.answer["usage"]["completion_tokens"]
            .as_u64()
            .expect("a count")
    }

    /// The prompt as the engine got it.
    fn prompt(&self) -> String {
        let ids = match self.path {
            CHAT => &self.answer["prompt_token_ids"],
            _ => &self.choice()["prompt_token_ids"],
        };
        let url = format!("{}/detokenize", self.server.base_url());
        let (_, text) = post(&url, &json!({"tokens": ids})).expect("answered");
        text["prompt"].as_str().expect("a text").to_owned()
    }
}

/// A parameter, in a request to `path` that has `base` beside it.
struct Row {
    path: &'static str,
    base: Value,
    name: &'static str,
    value: Value,
    obeyed: fn(&Asked<'_>) -> bool,
}

/// Greedy, unless the row says otherwise.
fn body(row: &Row, with: bool) -> Value {
    let mut body = json!({"max_tokens": 5, "temperature": 0, "return_token_ids": true});
    match row.path {
        CHAT => body["messages"] = json!([{"role": "user", "content": "say"}]),
        _ => body["prompt"] = json!([5, 6, 7]),
    }
    for (name, value) in row.base.as_object().expect("an object") {
        body[name] = value.clone();
    }
    if with {
        body[row.name] = row.value.clone();
    } else if let Some(body) = body.as_object_mut() {
        body.remove(row.name);
    }
    body
}

fn both(name: &'static str, value: Value, base: Value, obeyed: fn(&Asked<'_>) -> bool) -> [Row; 2] {
    [COMPLETIONS, CHAT].map(|path| Row {
        path,
        base: base.clone(),
        name,
        value: value.clone(),
        obeyed,
    })
}

fn one(
    path: &'static str,
    name: &'static str,
    value: Value,
    base: Value,
    obeyed: fn(&Asked<'_>) -> bool,
) -> Row {
    Row {
        path,
        base,
        name,
        value,
        obeyed,
    }
}

/// Tokens are steered by biases, next to which the model's own logits are
/// nothing. Token 32 is `A`, 759 and 760 begin and end a text.
fn table() -> Vec<Row> {
    let only_nines = |asked: &Asked<'_>| *asked.ids() == json!([9, 9, 9, 9, 9]);
    let sampled = json!({"temperature": 1, "top_p": 1, "seed": 3, "max_tokens": 16});
    // Of 40 tokens, those that the model likes best come again and again.
    let biases = (20..60).map(|id| (id.to_string(), json!(100)));
    let biases: serde_json::Map<String, Value> = biases.collect();
    let repetitive = json!({"logit_bias": biases, "max_tokens": 30});
    let special = json!({"logit_bias": {"759": 100}, "ignore_eos": true});
    let letter = json!({"logit_bias": {"32": 100}});
    let mut rows = Vec::new();
    for rows_of_one in [
        both("n", json!(3), json!({}), |asked| {
            asked.answer["choices"].as_array().expect("choices").len() == 3
        }),
        both(
            "max_tokens",
            json!(2),
            json!({"ignore_eos": true}),
            |asked| asked.tokens() == 2,
        ),
        // Without it, 9 ends the answer at once.
        both(
            "min_tokens",
            json!(3),
            json!({"stop_token_ids": [9], "logit_bias": {"9": 100, "10": 50}}),
            |asked| *asked.ids() == json!([10, 10, 10, 9]),
        ),
        both("temperature", json!(0), sampled.clone(), |asked| {
            asked.is_greedy()
        }),
        both("top_p", json!(1e-6), sampled.clone(), |asked| {
            asked.is_greedy()
        }),
        both("top_k", json!(1), sampled.clone(), |asked| {
            asked.is_greedy()
        }),
        both("min_p", json!(1), sampled.clone(), |asked| {
            asked.is_greedy()
        }),
        both(
            "seed",
            json!(7),
            json!({"temperature": 1, "max_tokens": 16, "ignore_eos": true}),
            |asked| asked.but("user", json!("me")).ids() == asked.ids(),
        ),
        both("logit_bias", json!({"9": 100}), json!({}), only_nines),
        both("frequency_penalty", json!(2), repetitive.clone(), |asked| {
            asked.is_more_varied()
        }),
        // Halving 100 leaves none of them a chance while there are others.
        both(
            "repetition_penalty",
            json!(2),
            repetitive.clone(),
            |asked| asked.different() == 30,
        ),
        both(
            "stop_token_ids",
            json!([9]),
            json!({"logit_bias": {"9": 100}}),
            |asked| *asked.ids() == json!([9]) && asked.choice()["stop_reason"] == json!(9),
        ),
        both(
            "ignore_eos",
            json!(true),
            json!({"logit_bias": {"760": 100}}),
            |asked| {
                *asked.ids() == json!(vec![760; 5]) && asked.choice()["finish_reason"] == "length"
            },
        ),
        both("return_token_ids", json!(true), json!({}), |asked| {
            asked.ids().is_array()
        }),
        both("timings", json!(true), json!({}), |asked| {
            asked.answer["timings"]["time_to_first_token_ms"].as_f64() > Some(0.0)
        }),
        both("stream", json!(true), json!({}), |asked| {
            asked.answer.is_array()
        }),
        both(
            "stream_options",
            json!({"include_usage": true}),
            json!({"stream": true}),
            |asked| {
                let events = asked.answer.as_array().expect("events");
                events.last().expect("one")["usage"]["completion_tokens"] == 5
            },
        ),
    ] {
        rows.extend(rows_of_one);
    }
    rows.extend([
        one(
            COMPLETIONS,
            "stop",
            json!(["AAA"]),
            letter.clone(),
            |asked| {
                asked.text().is_empty()
                    && asked.tokens() == 3
                    && asked.choice()["stop_reason"] == "AAA"
            },
        ),
        one(CHAT, "stop", json!("AA"), letter.clone(), |asked| {
            asked.choice()["message"]["content"] == "" && asked.tokens() == 2
        }),
    ]);
    let with_stop = json!({"logit_bias": {"32": 100}, "stop": "AA"});
    rows.extend(both(
        "include_stop_str_in_output",
        json!(true),
        with_stop,
        |asked| {
            let choice = asked.choice();
            choice["text"] == "AA" || choice["message"]["content"] == "AA"
        },
    ));
    rows.extend(both(
        "skip_special_tokens",
        json!(false),
        special,
        |asked| {
            let choice = asked.choice();
            let text = choice["text"]
                .as_str()
                .or(choice["message"]["content"].as_str());
            text.expect("a text").contains(BOS)
        },
    ));
    rows.extend([
        one(COMPLETIONS, "logprobs", json!(3), json!({}), |asked| {
            let top = &asked.choice()["logprobs"]["top_logprobs"];
            top.as_array().is_some_and(|top| {
                top.len() == 5
                    && top
                        .iter()
                        .all(|t| t.as_object().is_some_and(|t| t.len() == 3))
            })
        }),
        one(CHAT, "logprobs", json!(true), json!({}), |asked| {
            let content = asked.choice()["logprobs"]["content"].as_array();
            content.is_some_and(|content| content.len() == 5)
        }),
        one(
            CHAT,
            "top_logprobs",
            json!(4),
            json!({"logprobs": true}),
            |asked| {
                let first = &asked.choice()["logprobs"]["content"][0]["top_logprobs"];
                first.as_array().is_some_and(|top| top.len() == 4)
            },
        ),
        one(
            COMPLETIONS,
            "return_tokens_as_token_ids",
            json!(true),
            json!({"logprobs": 0, "logit_bias": {"9": 100}}),
            |asked| asked.choice()["logprobs"]["tokens"][0] == "token_id:9",
        ),
        one(
            CHAT,
            "return_tokens_as_token_ids",
            json!(true),
            json!({"logprobs": true, "logit_bias": {"9": 100}}),
            |asked| asked.choice()["logprobs"]["content"][0]["token"] == "token_id:9",
        ),
        one(
            COMPLETIONS,
            "prompt_logprobs",
            json!(2),
            json!({}),
            |asked| {
                let of_prompt = asked.choice()["prompt_logprobs"].as_array();
                of_prompt
                    .is_some_and(|p| p.len() == 3 && p[0].is_null() && p[2]["7"]["rank"].is_u64())
            },
        ),
        one(CHAT, "prompt_logprobs", json!(2), json!({}), |asked| {
            let ids = asked.answer["prompt_token_ids"].as_array().expect("ids");
            let of_prompt = asked.answer["prompt_logprobs"].as_array();
            of_prompt.is_some_and(|of_prompt| of_prompt.len() == ids.len())
        }),
        one(
            COMPLETIONS,
            "echo",
            json!(true),
            json!({"prompt": "say it"}),
            |asked| asked.text().starts_with("say it"),
        ),
        one(
            CHAT,
            "echo",
            json!(true),
            json!({"messages": [{"role": "assistant", "content": "I say"}],
                "continue_final_message": true}),
            |asked| {
                let content = asked.choice()["message"]["content"].as_str();
                content.expect("a text").starts_with("I say")
            },
        ),
        // The model likes 50 better than 57 by less than 2, and more than 0.
        one(
            COMPLETIONS,
            "presence_penalty",
            json!(2),
            json!({"max_tokens": 2, "logit_bias": {"50": 100, "57": 99}}),
            |asked| *asked.ids() == json!([50, 57]),
        ),
        one(CHAT, "presence_penalty", json!(2), repetitive, |asked| {
            asked.is_more_varied()
        }),
        one(
            CHAT,
            "max_completion_tokens",
            json!(2),
            json!({"ignore_eos": true}),
            |asked| asked.tokens() == 2,
        ),
        one(
            COMPLETIONS,
            "add_special_tokens",
            json!(false),
            json!({"prompt": "say"}),
            |asked| !asked.prompt().starts_with(BOS),
        ),
        one(
            CHAT,
            "add_special_tokens",
            json!(true),
            json!({}),
            |asked| asked.prompt().starts_with(BOS),
        ),
        one(
            CHAT,
            "chat_template_kwargs",
            json!({"extra": "more"}),
            json!({}),
            |asked| asked.prompt() == "user:say;more>",
        ),
        one(
            CHAT,
            "add_generation_prompt",
            json!(false),
            json!({}),
            |asked| asked.prompt() == "user:say;",
        ),
        one(
            CHAT,
            "continue_final_message",
            json!(true),
            json!({}),
            |asked| asked.prompt() == "user:say",
        ),
    ]);
    rows
}

/// Parameters that no row can show, and why.
const ELSEWHERE: [(&str, &str); 5] = [
    ("prompt", "an answer needs it"),
    ("messages", "an answer needs it"),
    (
        "model",
        "another is 404: frontend/tests/server/bad_input.rs",
    ),
    (
        "response_format",
        "others than text are 400: frontend/tests/server/bad_input.rs",
    ),
    ("priority", "shows in the order of requests: below"),
];

/// A server of the model whose tokens the table speaks of.
fn server(args: &[&str]) -> Server {
    ServerOptions::real(&golden("models/tiny-llama3-rope"))
        .args(args)
        .start()
}

/// Parameters that a component of the interface's description names; those
/// that are not supported are refused, which the frontend's tests show.
fn described(document: &Value, component: &Value) -> BTreeSet<String> {
    if let Some(path) = component["$ref"].as_str() {
        return described(document, document.pointer(&path[1..]).expect("a component"));
    }
    let own = component["properties"].as_object().into_iter().flatten();
    let mut all: BTreeSet<String> = own
        .filter(|(_, schema)| !schema["description"].to_string().contains("Not supported"))
        .map(|(name, _)| name.clone())
        .collect();
    for part in component["allOf"].as_array().into_iter().flatten() {
        all.extend(described(document, part));
    }
    all
}

#[test]
fn every_parameter_does_what_it_says_and_nothing_of_it_happens_without_it() {
    let template = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(template.path(), TEMPLATE).expect("writable");
    let path = template.path().to_str().expect("UTF-8");
    let server = server(&["--chat-template", path]);
    let mut wrong = Vec::new();
    for row in table() {
        for with in [true, false] {
            let asked = Asked::new(&server, row.name, row.path, &body(&row, with));
            if (row.obeyed)(&asked) != with {
                wrong.push(format!("{} {}: {}", row.name, asked.body, asked.answer));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let (_, document) = get(&format!("{}/openapi.json", server.base_url())).expect("answered");
    let document: Value = serde_json::from_str(&document).expect("JSON");
    for (path, component) in [
        (COMPLETIONS, "CompletionRequest"),
        (CHAT, "ChatCompletionRequest"),
    ] {
        let tried: BTreeSet<String> = table()
            .into_iter()
            .filter(|row| row.path == path)
            .map(|row| row.name.to_owned())
            .chain(ELSEWHERE.map(|(name, _)| name.to_owned()))
            .collect();
        let component = &document["components"]["schemas"][component];
        let missing: Vec<_> = described(&document, component)
            .into_iter()
            .filter(|name| !tried.contains(name))
            .collect();
        assert!(missing.is_empty(), "{path}: no row tries {missing:?}");
    }
}

#[test]
fn a_prompt_that_was_here_before_is_counted_as_cached() {
    let server = server(&[]);
    let body = json!({"prompt": (1..=100).collect::<Vec<_>>(), "max_tokens": 1});
    let cached = || {
        let usage = Asked::new(&server, "", COMPLETIONS, &body).answer["usage"].take();
        assert_eq!(usage["prompt_tokens"], 100);
        usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .expect("a count")
    };
    assert_eq!(cached(), 0);
    let again = cached();
    // Whole blocks of 16 tokens, and never the whole prompt.
    assert!((80..100).contains(&again), "{again}");
}

fn waiting(server: &Server) -> f64 {
    let [waiting] = Metrics::read(server).values("vllm:num_requests_waiting", "")[..] else {
        panic!("one gauge");
    };
    waiting
}

#[test]
fn of_those_that_wait_the_lowest_priority_is_served_first() {
    let server = ServerOptions::mock(20)
        .args(&["--max-num-seqs", "1"])
        .start();
    let open = |priority: i32, max_tokens: u32| {
        let body = json!({"prompt": [5], "priority": priority, "max_tokens": max_tokens,
            "ignore_eos": true, "return_token_ids": true});
        Stream::open(server.base_url(), COMPLETIONS, body)
    };
    // Goes on for minutes, unless its client goes.
    let body = json!({"prompt": [5], "max_tokens": 8000, "ignore_eos": true, "stream": true});
    let body = body.to_string();
    let addr = server
        .base_url()
        .strip_prefix("http://")
        .expect("an address");
    let mut running = TcpStream::connect(addr).expect("it listens");
    let length = body.len();
    write!(
        running,
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .expect("it reads");
    assert!(running.read(&mut [0; 16]).expect("it answers") > 0);
    // Each is there before the next is sent.
    let mut streams = Vec::new();
    for (at, priority) in [5, -1, 3].into_iter().enumerate() {
        streams.push((priority, open(priority, 5)));
        wait_for("one more that waits", Duration::from_secs(60), || {
            (waiting(&server) >= (at + 1) as f64).then_some(())
        });
    }
    drop(running);
    let deadline = Instant::now() + Duration::from_secs(60);
    let threads: Vec<_> = streams
        .into_iter()
        .map(|(priority, stream)| {
            std::thread::spawn(move || {
                assert!(stream.rest(deadline).contains(&StreamEvent::Done));
                (Instant::now(), priority)
            })
        })
        .collect();
    let ends = threads.into_iter().map(|thread| thread.join());
    let mut ends: Vec<_> = ends.map(|end| end.expect("a whole stream")).collect();
    ends.sort();
    let order: Vec<i32> = ends.iter().map(|(_, priority)| *priority).collect();
    assert_eq!(order, [-1, 3, 5]);
}
