//! What the trace shows of requests, judged by the validator. A process
//! records once, so this is a test of its own.

#[path = "server/support/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "shared with the other tests, which use more of it"
)]
mod support;

use nano_ipc::engine_core_output::FinishReason;
use nano_trace::check::{OpenSlices, check};
use nano_trace::read::Source;
use nano_trace::timeline::{ArgValue, TimelineSlice};
use nano_trace::{Event, ProcessTrace, Rings, SessionSpec};
use serde_json::json;
use support::{PATIENCE, RUN, Response, Server, client_send, config, output, request};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn every_request_is_one_whole_track_whatever_became_of_it() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let rings = Rings::create().expect("memory");
    nano_trace::start(ProcessTrace {
        dir: dir.path().to_owned(),
        role: "frontend".to_owned(),
        run: RUN,
        rings: rings.fd().try_clone_to_owned().expect("descriptor"),
        facts: Vec::new(),
        keep: None,
        sessions: vec![SessionSpec::new("auto".parse().expect("a name"), 64 << 20)],
    })
    .expect("recording starts");
    let (server, core) = Server::start(config());
    let addr = server.addr;

    // A stream of two, one of them stopped by its text.
    let body = r#"{"messages": [{"role": "user", "content": "x"}], "n": 2, "stream": true,
        "stop": "b"}"#;
    let headers = [("x-request-id", "one"), ("traceparent", PARENT)];
    let client = std::thread::spawn(move || {
        request(
            addr,
            "POST",
            "/v1/chat/completions",
            &headers,
            body.as_bytes(),
        )
        .events_to_done()
    });
    let (a, b) = (core.next_add(), core.next_add());
    let ids = support::model().encode("ab", false).expect("tokens");
    let mut first = output(a.id, &ids, None);
    first.num_cached_tokens = 7;
    core.outputs(vec![first]);
    assert_eq!(core.next_abort(), a.id);
    core.tokens(b.id, &ids[..1], Some(FinishReason::Length));
    client.join().expect("client");
    // One that is refused.
    assert_eq!(
        request(addr, "POST", "/v1/completions", &[], b"{}").status,
        400
    );
    // One whose client goes while it waits, and one while it streams.
    for tokens in [0, 2] {
        let body = json!({"prompt": "x", "stream": true});
        let client = client_send(addr, "/v1/completions", &body);
        let id = core.next_add().id;
        if tokens > 0 {
            core.tokens(id, &[40, 41], None);
            let mut response = Response::read(client);
            response.event_json();
        } else {
            drop(client);
        }
        assert_eq!(core.next_abort(), id);
    }
    // One that the core's death ends.
    let client = client_send(addr, "/v1/completions", &json!({"prompt": "x"}));
    core.next_add();
    core.die();
    assert_eq!(Response::read(client).status, 500);
    server.join().expect_err("the core died");
    nano_trace::finish();

    let file = std::fs::read_dir(dir.path()).expect("directory").next();
    let file = file.expect("a file").expect("a file").path();
    let report = check(&[Source::from(file)], &OpenSlices::None).expect("readable");
    report.assert_clean();
    let timeline = &report.timeline;
    assert_eq!(timeline.dropped, 0);

    let requests: Vec<_> = timeline.slices_of(Event::Request).collect();
    let endings: Vec<_> = requests
        .iter()
        .map(|(_, r)| text(r, "finish_reason"))
        .collect();
    assert_eq!(
        endings,
        ["stop", "length", "error", "abort", "abort", "error"]
    );
    let phases =
        |index: usize| -> Vec<&str> { timeline.children(index).map(|(_, s)| &*s.name).collect() };
    assert_eq!(
        phases(requests[0].0),
        ["preprocess", "waiting", "streaming"]
    );
    assert_eq!(phases(requests[1].0), phases(requests[0].0));
    assert_eq!(phases(requests[2].0), ["preprocess"]);
    assert_eq!(phases(requests[3].0), ["preprocess", "waiting"]);
    assert_eq!(
        phases(requests[4].0),
        ["preprocess", "waiting", "streaming"]
    );
    assert_eq!(phases(requests[5].0), ["preprocess", "waiting"]);
    let first = requests[0].1;
    let number = |name| first.arg(name).and_then(ArgValue::uint);
    assert_eq!(
        number("prompt_tokens"),
        Some(a.prompt_token_ids.len() as u64)
    );
    assert_eq!(number("cached_tokens"), Some(7));
    assert_eq!(number("output_tokens"), Some(2));
    assert_eq!(text(first, "request_id"), "chatcmpl-one");
    assert_eq!(text(first, "traceparent"), PARENT);
    assert_eq!(text(requests[1].1, "request_id"), "chatcmpl-one-1");

    // Every sequence that was submitted has its own way through the process.
    let ways = timeline.flows.values().map(|flow| -> Vec<Event> {
        let events = flow.iter().filter_map(|hop| timeline.hop(hop).0);
        events.collect()
    });
    let (finished, others): (Vec<_>, Vec<_>) =
        ways.partition(|events| events.last() == Some(&Event::Finish));
    assert_eq!(finished.len(), requests.len());
    assert!(finished.iter().all(|events| events[0] == Event::Request));
    // To and from the client that sent a `traceparent`, by both of its sequences.
    let (request, streaming) = (Event::Request, Event::Streaming);
    assert_eq!(others, [[request, request, streaming, streaming]]);
    for (event, count) in [
        (Event::HttpParse, 5),
        (Event::ChatTemplate, 1),
        (Event::Tokenize, 4),
        (Event::EngineSubmit, 5),
        (Event::EngineReceive, 3),
        (Event::Detokenize, 3),
    ] {
        let slices: Vec<_> = timeline.slices_of(event).collect();
        assert_eq!(slices.len(), count, "{event:?}");
        assert!(slices.iter().all(|(_, slice)| slice.end.is_some()));
    }
    // Two roles, two or three parts of text and their ends, one part and no end.
    assert!(timeline.slices_of(Event::SseWrite).count() >= 5);
    let seconds =
        |(_, slice): &(usize, &TimelineSlice)| slice.duration().unwrap_or(0) / 1_000_000_000;
    assert!(requests.iter().all(|r| seconds(r) < PATIENCE.as_secs()));
}

fn text<'a>(slice: &'a TimelineSlice, name: &str) -> &'a str {
    slice.arg(name).and_then(ArgValue::text).unwrap_or_default()
}
