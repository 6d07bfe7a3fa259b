//! What a server is at when something happens to it.

use crate::client::{Stream, StreamEvent, long_completion};
use crate::metrics::Metrics;
use crate::server::{Server, ServerOptions, wait_for};
use serde_json::json;
use std::time::{Duration, Instant};

/// What a server is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Its worker loads.
    Loading,
    /// No request is open.
    Idle,
    /// A long prompt is computed, step by step: nobody has a token yet.
    Prefill,
    /// A client reads tokens.
    MidStream,
}

impl Moment {
    /// All of them.
    pub const ALL: [Moment; 4] = [
        Moment::Loading,
        Moment::Idle,
        Moment::Prefill,
        Moment::MidStream,
    ];

    /// A server that is at it, and a client where it has one. `takes`: about
    /// how long it stays at it by itself.
    pub fn reach(self, options: ServerOptions, takes: Duration) -> (Server, Option<Stream>) {
        let in_steps_of = |ms: u32| (takes.as_millis() as u32).div_ceil(ms);
        match self {
            Moment::Loading => {
                let load_ms = takes.as_millis().to_string();
                let server = options.env("NANO_MOCK_LOAD_MS", &load_ms).spawn();
                server.process("nano-worker");
                (server, None)
            }
            Moment::Idle => (options.start(), None),
            Moment::Prefill => {
                let server = options
                    .env("NANO_MOCK_STEP_MS", "200")
                    .args(&["--max-num-batched-tokens", "8"])
                    .start();
                let body = json!({
                    "model": "tiny-llama",
                    "prompt": vec![5; in_steps_of(200) as usize * 8],
                    "max_tokens": 3,
                    "ignore_eos": true,
                });
                let stream = Stream::open(server.base_url(), "/v1/completions", body);
                wait_for("prefill", Duration::from_secs(20), || {
                    let metrics = Metrics::read(&server);
                    let runs = metrics.sum("vllm:num_requests_running", "") > 0.0;
                    runs.then_some(())
                });
                (server, Some(stream))
            }
            Moment::MidStream => {
                let server = options.env("NANO_MOCK_STEP_MS", "20").start();
                let body = long_completion(in_steps_of(20));
                let stream = Stream::open(server.base_url(), "/v1/completions", body);
                stream.wait_started();
                (server, Some(stream))
            }
        }
    }
}

/// Asserts that a client got everything that it asked for.
pub fn assert_done(stream: &Stream, within: Duration) {
    let events = stream.rest(Instant::now() + within);
    assert!(events.contains(&StreamEvent::Done), "{events:?}");
}

/// Asserts that a client learnt of the server's end: by an error that it can
/// parse, or, where nobody was left to write one, by a cut response.
pub fn assert_told(stream: &Stream, by: Instant, cut: bool) {
    let events = stream.rest(by);
    let Some(StreamEvent::End { whole }) = events.last() else {
        panic!("no end: {events:?}");
    };
    assert!(
        !events.contains(&StreamEvent::Done),
        "it was not done: {events:?}"
    );
    if cut {
        assert!(!whole, "a cut response does not look like a whole one");
        return;
    }
    // Either in the stream, or as the whole answer where it had not begun.
    let refused = matches!(events[0], StreamEvent::Status(500..=503));
    let has_error = events.iter().any(
        |event| matches!(event, StreamEvent::Data(json) if json["error"]["message"].is_string()),
    );
    assert!(refused || has_error, "an error to parse: {events:?}");
    assert!(*whole, "the response ends as HTTP demands: {events:?}");
}
