//! Clients that go away, or do not read, at every stage.

use crate::support::{Server, client_send, config, get, model, output, post};
use nano_ipc::engine_core_output::FinishReason;
use serde_json::json;
use std::time::{Duration, Instant};

const PATH: &str = "/v1/completions";

fn waiting(server: &Server) -> String {
    get(server.addr, "/metrics").text()
}

#[test]
fn a_client_that_goes_aborts_all_of_its_sequences_whether_streaming_or_not() {
    let (server, core) = Server::start(config());
    let token = model().encode("a", false).expect("tokens")[0];
    for stream in [false, true] {
        for tokens_before in [0, 3] {
            let body = json!({"prompt": "x", "n": 3, "stream": stream, "max_tokens": 100});
            let client = client_send(server.addr, PATH, &body);
            let ids = [core.next_add().id, core.next_add().id, core.next_add().id];
            for _ in 0..tokens_before {
                core.outputs(ids.iter().map(|id| output(*id, &[token], None)).collect());
            }
            drop(client);
            let mut aborted = [core.next_abort(), core.next_abort(), core.next_abort()];
            aborted.sort();
            assert_eq!(aborted, ids, "stream {stream}, {tokens_before} tokens");
            // Late outputs are nobody's, and harm nobody.
            core.tokens(ids[0], &[token], Some(FinishReason::Abort));
        }
    }
    assert!(core.is_quiet());
    let text = waiting(&server);
    let aborts =
        r#"vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 12"#;
    assert!(text.contains(aborts), "{text}");
}

#[test]
fn room_returns_with_every_end_and_more_is_429() {
    let mut config = config();
    config.max_queued_requests = 2;
    let (server, core) = Server::start(config);
    let body = json!({"prompt": "x", "n": 2, "max_tokens": 5});
    let client = client_send(server.addr, PATH, &body);
    let ids = [core.next_add().id, core.next_add().id];
    let refused = post(server.addr, PATH, &json!({"prompt": "x"}));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    drop(client);
    core.next_abort();
    core.next_abort();
    assert!(ids[0] != ids[1]);
    // The abort was sent after the room returned.
    let too_many = post(server.addr, PATH, &json!({"prompt": "x", "n": 3}));
    assert_eq!(too_many.status, 400);
    let addr = server.addr;
    let client = std::thread::spawn(move || post(addr, PATH, &body).status);
    for _ in 0..2 {
        let id = core.next_add().id;
        core.tokens(id, &[5], Some(FinishReason::Length));
    }
    assert_eq!(client.join().expect("client"), 200);
}

#[test]
fn a_client_that_does_not_read_holds_no_other_and_gets_everything_late() {
    let (server, core) = Server::start(config());
    let slow_body = json!({"prompt": "x", "stream": true, "max_tokens": 500, "logprobs": 20});
    let slow = client_send(server.addr, PATH, &slow_body);
    let slow_id = core.next_add().id;
    let text = model().encode("a", false).expect("tokens");
    let mut answer = output(slow_id, &text, None);
    // As much as the sockets between cannot hold.
    for entry in &mut answer.logprobs {
        entry.top = (0..20).map(|id| (id, -1.0)).collect();
    }
    for _ in 0..499 {
        core.outputs(vec![answer.clone()]);
    }
    let addr = server.addr;
    let quick = std::thread::spawn(move || {
        let begun = Instant::now();
        let answer = post(addr, PATH, &json!({"prompt": "y", "max_tokens": 1})).json();
        (begun.elapsed(), answer)
    });
    let id = core.next_add().id;
    core.tokens(id, &text, Some(FinishReason::Length));
    let (elapsed, answer_of_quick) = quick.join().expect("client");
    assert_eq!(answer_of_quick["choices"][0]["text"], "a");
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    answer.finish_reason = Some(FinishReason::Length);
    core.outputs(vec![answer]);
    let events = crate::support::Response::read(slow).events_to_done();
    let text: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, "a".repeat(500));
    let entries: usize = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["tokens"].as_array())
        .map(Vec::len)
        .sum();
    assert_eq!(entries, 500);
}

#[test]
fn an_engine_that_sends_more_than_was_asked_for_fails_that_request_alone() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        post(addr, PATH, &json!({"prompt": "x", "max_tokens": 2})).status
    });
    let id = core.next_add().id;
    core.tokens(id, &[1, 2, 3], None);
    assert_eq!(core.next_abort(), id);
    assert_eq!(client.join().expect("client"), 500);
    assert_eq!(get(server.addr, "/health").status, 200);
}
