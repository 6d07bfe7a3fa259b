//! `/v1/chat/completions`.

use crate::support::{Server, config, model, output, post};
use nano_frontend::text::ChatOptions;
use nano_ipc::engine_core_output::FinishReason;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn ids(text: &str) -> Vec<u32> {
    model().encode(text, false).expect("tokens")
}

fn messages() -> Value {
    json!([{"role": "system", "content": "Be brief."},
           {"role": "user", "content": [{"type": "text", "text": "Hi!"},
                                        {"type": "text", "text": "All"}]}])
}

#[test]
fn a_stream_has_a_role_first_and_one_end_for_each_choice() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"model": "tiny", "messages": messages(), "stream": true, "n": 2,
                "max_completion_tokens": 9, "stream_options": {"include_usage": true},
                // What real clients send beside it.
                "user": "u", "tools": [], "tool_choice": "none", "chat_template": null,
                "response_format": {"type": "text"}, "reasoning_effort": "low", "logit_bias": {},
                "parallel_tool_calls": true, "something_unknown": {"x": [1]}}),
        )
        .events_to_done()
    });
    let requests = [core.next_add(), core.next_add()];
    // Parts are one text to a template.
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "Hi!\nAll"}),
    ];
    let prompt = model()
        .render_chat(&messages, &ChatOptions::default())
        .expect("template");
    assert_eq!(requests[0].prompt_token_ids, ids(&prompt));
    assert_eq!(requests[0].max_tokens, 9);
    for id in model().chat_eos_token_ids() {
        assert!(requests[0].sampling.stop_token_ids.contains(id));
    }
    let mut first = output(requests[0].id, &ids("Yes"), None);
    first.num_cached_tokens = 16;
    core.outputs(vec![first, output(requests[1].id, &ids("No"), None)]);
    let mut last = output(requests[0].id, &ids("."), Some(FinishReason::Length));
    last.num_cached_tokens = 16;
    core.outputs(vec![
        last,
        output(requests[1].id, &[], Some(FinishReason::Length)),
    ]);
    let events = client.join().expect("client");
    for (at, event) in events[..2].iter().enumerate() {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["choices"][0]["index"], at);
        assert_eq!(
            event["choices"][0]["delta"],
            json!({"role": "assistant", "content": ""})
        );
    }
    let text = |index: usize| -> String {
        let of_index = |e: &&Value| e["choices"][0]["index"] == index;
        let texts = events.iter().filter(of_index);
        texts
            .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
            .collect()
    };
    assert_eq!((text(0), text(1)), ("Yes.".to_owned(), "No".to_owned()));
    let ends = events
        .iter()
        .filter(|e| e["choices"][0]["finish_reason"] == "length");
    assert_eq!(ends.count(), 2);
    let usage = &events.last().expect("usage")["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 16);
    assert_eq!(usage["prompt_tokens"], ids(&prompt).len());
}

#[test]
fn a_whole_answer_with_logprobs() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"messages": messages(), "logprobs": true, "top_logprobs": 2,
                "return_token_ids": true}),
        )
        .json()
    });
    let request = core.next_add();
    let prompt_tokens = request.prompt_token_ids.len();
    // Whatever fits.
    assert_eq!(request.max_tokens as usize, 512 - prompt_tokens);
    assert_eq!(request.sampling.logprobs, Some(2));
    let answer = ids("Yes é");
    core.tokens(request.id, &answer[..1], None);
    core.tokens(request.id, &answer[1..], Some(FinishReason::Length));
    let json = client.join().expect("client");
    assert_eq!(json["object"], "chat.completion");
    let choice = &json["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Yes é");
    assert_eq!(choice["token_ids"], json!(answer));
    assert_eq!(json["prompt_token_ids"], json!(request.prompt_token_ids));
    let content = choice["logprobs"]["content"].as_array().expect("list");
    assert_eq!(content.len(), answer.len());
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .map(|byte| byte.as_u64().expect("byte") as u8)
        .collect();
    assert_eq!(bytes, "Yes é".as_bytes());
    assert_eq!(content[0]["logprob"], -0.5);
    assert_eq!(content[0]["top_logprobs"][0]["logprob"], -0.25);
    assert_eq!(content[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn the_last_message_is_continued_and_echoed() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(
            addr,
            PATH,
            &json!({"messages": [{"role": "user", "content": "Count"},
                                 {"role": "assistant", "content": "one, two"}],
                "continue_final_message": true, "echo": true, "max_tokens": 30}),
        )
        .json()
    });
    let request = core.next_add();
    let text = model().decode(&request.prompt_token_ids, false);
    assert!(text.ends_with("one, two"), "{text:?}");
    core.tokens(request.id, &ids(", three"), Some(FinishReason::Length));
    let json = client.join().expect("client");
    assert_eq!(
        json["choices"][0]["message"]["content"], "one, two, three",
        "{json}"
    );
}
