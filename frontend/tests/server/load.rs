//! A server that has much to do: who is turned away, and who does not notice.

use crate::support::{PATIENCE, Response, Server, client_send, config, engine_info, get, post};
use nano_ipc::engine_core_output::FinishReason;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATH: &str = "/v1/completions";

#[test]
fn a_core_that_has_no_room_is_429_with_retry_after() {
    let (server, core) = Server::start(config());
    for (stream, n) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let body = json!({"prompt": "x", "stream": stream, "n": n});
        let client = client_send(server.addr, PATH, &body);
        let ids: Vec<_> = (0..n).map(|_| core.next_add().id).collect();
        let reason = "16 requests wait already".to_owned();
        let last = ids[n - 1];
        core.tokens(last, &[], Some(FinishReason::Refused(reason.clone())));
        let answer = Response::read(client);
        assert_eq!(answer.status, 429);
        assert_eq!(answer.header("retry-after"), Some("1"));
        let error = answer.json();
        assert_eq!(error["error"]["message"], reason.as_str());
        assert_eq!(error["error"]["type"], "rate_limit_error");
        assert_eq!(error["error"]["code"], "rate_limit_exceeded");
        // The request is over, so its other sequence is given up.
        if n == 2 {
            assert_eq!(core.next_abort(), ids[0]);
        }
    }
    let text = get(server.addr, "/metrics").text();
    let refused = r#"route="/v1/completions",status="429"} 4"#;
    assert!(text.contains(refused), "{text}");
}

/// More prompts at once than the event loop has threads, each of which takes
/// long to tokenize: on the event loop they would leave it no thread.
#[test]
fn long_prompts_are_tokenized_while_others_are_answered() {
    const PROMPTS: usize = 6;
    let (server, core) = Server::loading(config());
    let mut info = engine_info();
    (info.max_model_len, info.num_kv_blocks) = (1 << 20, 1 << 20);
    core.ready(info);
    server.reports.recv_timeout(PATIENCE).expect("a report");
    let addr = server.addr;
    // Half a megabyte.
    let text = "Words, words; 12345 mere words. ".repeat((1 << 19) / 32);
    let one = Instant::now();
    let count = post(addr, "/tokenize", &json!({"prompt": text})).json()["count"].clone();
    let one = one.elapsed();
    assert!(count.as_u64() > Some(50_000), "{count}");
    let answered = AtomicUsize::new(0);
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    let _core = thread::scope(|scope| {
        for at in 0..PROMPTS {
            let (text, answered) = (&text, &answered);
            scope.spawn(move || {
                let path = ["/tokenize", PATH][at % 2];
                let body = json!({"prompt": text, "max_tokens": 1});
                assert_eq!(post(addr, path, &body).status, 200);
                answered.fetch_add(1, Ordering::Relaxed);
            });
        }
        let engine = scope.spawn(move || {
            for _ in 0..PROMPTS / 2 {
                let add = core.next_add();
                assert!(add.prompt_token_ids.len() > 50_000);
                core.tokens(add.id, &[40], Some(FinishReason::Length));
            }
            // Its connection must outlive the last answer.
            core
        });
        while answered.load(Ordering::Relaxed) < PROMPTS {
            let begun = Instant::now();
            assert_eq!(get(addr, "/health").status, 200);
            slowest = slowest.max(begun.elapsed());
            asked += 1;
        }
        engine.join().expect("no panic")
    });
    println!("one prompt {one:?}; {asked} times /health, the slowest {slowest:?}");
    // One prompt's time is what an answer waits for a thread that tokenizes.
    assert!(
        asked >= 20 && slowest < one / 2,
        "{asked} answers, the slowest after {slowest:?}; one prompt takes {one:?}"
    );
}
