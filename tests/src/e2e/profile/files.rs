//! What a session's files hold: the steps, requests and bytes that were asked
//! for, and no more.

use super::support::{
    Load, all, ask, auto, dir, files, judge, judge_session, manual, start, states, status,
    step_ids, stop_whole, tiny, uint, wait_idle,
};
use crate::client::{Stream, StreamEvent, long_completion, post};
use crate::server::{Server, ServerOptions};
use nano_trace::Event;
use nano_trace::check::{OpenSlices, Report};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The number of the first step, from which on so many follow each other.
#[track_caller]
fn consecutive(ids: &[u64], count: usize) -> u64 {
    let first = *ids.first().expect("steps");
    let expected: Vec<u64> = (first..).take(count).collect();
    assert_eq!(ids, expected);
    first
}

/// The same whole steps in core and worker.
#[track_caller]
fn steps_of_all(report: &Report) -> Vec<u64> {
    let ids = step_ids(report, Event::CoreStep);
    assert_eq!(ids, step_ids(report, Event::WorkerStep));
    ids
}

#[test]
fn so_many_steps_are_in_the_file_of_every_process() {
    let dir = dir();
    let server = manual(ServerOptions::mock(10), dir.path()).start();
    let load = Load::start(&server, 4, 2000);
    for (number, body) in [
        json!({"num_steps": 5}),
        json!({"num_steps": "3", "delay_steps": 4}),
        json!({"max_iterations": 1, "delay_iterations": 1}),
        json!({"num_steps": 2, "stage": "decode"}),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("s{number}");
        let count = ["num_steps", "max_iterations"].map(|key| body[key].clone());
        let count = count.iter().find(|count| !count.is_null()).expect("one");
        let count = count
            .as_str()
            .map_or_else(|| count.as_u64(), |text| text.parse().ok());
        let mut body = body;
        body["name"] = json!(name);
        let answer = start(&server, body);
        assert_eq!(answer["state"], "recording");
        let ended = wait_idle(&server);
        assert_eq!(states(&ended), all("finished"));
        for process in ended["processes"].as_array().expect("processes") {
            assert_eq!(process["late_records"], 0, "{process}");
        }
        let report = judge_session(dir.path(), &name, 3);
        consecutive(&steps_of_all(&report), count.expect("a number") as usize);
        // The streams that were under way are shown, and clipped.
        let requests = report.timeline.slices_of(Event::Request);
        assert_eq!(requests.count(), 4, "{name}");
    }
    drop(load);
}

#[test]
fn a_session_of_steps_waits_for_them_and_does_not_count_what_was_before() {
    let dir = dir();
    let server = manual(ServerOptions::mock(5), dir.path()).start();
    let complete = |max_tokens| {
        let url = format!("{}/v1/completions", server.base_url());
        let (status, answer) = post(&url, &long_completion(max_tokens)).expect("answered");
        assert_eq!(status, 200, "{answer}");
    };
    complete(20);
    let answer = start(
        &server,
        json!({"num_steps": 4, "name": "x", "start_step": "30"}),
    );
    assert_eq!(states(&answer), all("armed"));
    assert_eq!(status(&server)["state"], "recording", "its place is taken");
    complete(40);
    wait_idle(&server);
    let report = judge_session(dir.path(), "x", 3);
    assert_eq!(consecutive(&steps_of_all(&report), 4), 30);
}

#[test]
fn a_stage_is_recorded_without_the_other() {
    let dir = dir();
    let server = manual(ServerOptions::mock(10), dir.path()).start();
    let load = Load::start(&server, 1, 2000);
    start(
        &server,
        json!({"stage": "prefill", "num_steps": 3, "name": "p"}),
    );
    for number in 0..3 {
        let body = json!({"prompt": vec![9 + number; 30], "max_tokens": 5, "ignore_eos": true});
        let url = format!("{}/v1/completions", server.base_url());
        let (status, answer) = post(&url, &body).expect("answered");
        assert_eq!(status, 200, "{answer}");
    }
    wait_idle(&server);
    let report = judge_session(dir.path(), "p", 3);
    assert_eq!(steps_of_all(&report).len(), 3);
    let core: Vec<_> = report.timeline.slices_of(Event::CoreStep).collect();
    for (_, slice) in core {
        let prefill = uint(slice, "prefill_tokens");
        assert!(prefill.is_none_or(|tokens| tokens > 0), "{slice:?}");
    }
    drop(load);
}

#[test]
fn a_schedule_counts_from_the_first_step() {
    let dir = dir();
    let mut server = auto(ServerOptions::mock(5), dir.path())
        .env(
            "NANO_PROFILER_SCHEDULE",
            "wait=2,warmup=1,active=3,repeat=2",
        )
        .start();
    assert_eq!(status(&server)["state"], "recording");
    let stream = Stream::open(server.base_url(), "/v1/completions", long_completion(60));
    let events = stream.rest(Instant::now() + Duration::from_secs(60));
    assert!(events.contains(&StreamEvent::Done), "{events:?}");
    wait_idle(&server);
    let report = judge_session(dir.path(), "schedule", 3);
    assert_eq!(steps_of_all(&report), [4, 5, 6, 10, 11, 12]);
    assert_eq!(report.timeline.slices_of(Event::Load).count(), 0);
    crate::traces::end(&mut server);
}

#[test]
fn time_ends_a_session_and_a_client_that_vanishes_cannot_keep_it() {
    let dir = dir();
    let server = manual(ServerOptions::mock(5), dir.path()).start();
    let load = Load::start(&server, 2, 4000);
    start(&server, json!({"duration_ms": 300, "name": "x"}));
    let ended = wait_idle(&server);
    assert_eq!(states(&ended), all("timed out"));
    let report = judge_session(dir.path(), "x", 3);
    let slices = report.timeline.slices.iter();
    let end = slices.clone().filter_map(|slice| slice.end).max();
    let begin = slices.map(|slice| slice.begin).min();
    let length = end.zip(begin).map(|(end, begin)| (end - begin) / 1_000_000);
    assert!(
        (200..=301).contains(&length.expect("slices")),
        "{length:?} ms"
    );
    start(&server, json!({"name": "y"}));
    stop_whole(&server);
    drop(load);
}

#[test]
fn a_cap_of_bytes_ends_the_session_where_it_is_reached() {
    let dir = dir();
    let server = manual(ServerOptions::mock(0), dir.path()).start();
    let load = Load::start(&server, 16, 8000);
    start(&server, json!({"max_mb": 1, "name": "x"}));
    let capped = |answer: &Value| {
        let states = states(answer);
        states.iter().any(|(_, state)| state == "capped")
    };
    crate::server::wait_for("a process at its cap", super::support::PATIENCE, || {
        capped(&status(&server)).then_some(())
    });
    let ended = stop_whole(&server);
    assert!(capped(&ended), "{ended}");
    drop(load);
    judge_session(dir.path(), "x", 3);
    for (role, path) in files(dir.path(), "x") {
        let bytes = std::fs::metadata(path).expect("the file").len();
        assert!(bytes <= 1 << 20, "{role}: {bytes} bytes");
    }
}

/// A request with headers, and its answer's headers.
fn complete_with(server: &Server, headers: &str) -> String {
    let body = long_completion(8).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let address = server.base_url().strip_prefix("http://").expect("a URL");
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    std::io::Write::write_all(&mut stream, request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
    assert!(answer.contains("200 OK"), "{answer}");
    answer
}

#[test]
fn only_marked_requests_are_shown_in_a_session_of_marked_ones() {
    let dir = dir();
    let server = manual(tiny(), dir.path()).start();
    start(&server, json!({"requests": "marked", "name": "x"}));
    for (id, mark) in [("one", "0"), ("two", "1"), ("three", "true"), ("four", "1")] {
        complete_with(
            &server,
            &format!("x-request-id: {id}\r\nx-nano-profile: {mark}\r\n"),
        );
    }
    complete_with(&server, "");
    stop_whole(&server);
    let report = judge_session(dir.path(), "x", 3);
    let ids = |event| -> Vec<String> {
        let slices = report.timeline.slices_of(event);
        let ids = slices.filter_map(|(_, slice)| Some(slice.arg("request_id")?.to_string()));
        ids.collect()
    };
    assert_eq!(ids(Event::Request), ["cmpl-two", "cmpl-four"]);
    assert_eq!(ids(Event::Queued), ["cmpl-two", "cmpl-four"]);
    // Steps are nobody's alone.
    assert!(step_ids(&report, Event::WorkerStep).len() >= 5 * 8);
}

#[test]
fn trace_context_and_request_id_are_arguments_of_the_track_and_answered() {
    let dir = dir();
    let server = manual(tiny(), dir.path()).start();
    start(&server, json!({"name": "x"}));
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = format!("x-request-id: mine\r\ntraceparent: {parent}\r\n");
    let answer = complete_with(&server, &headers).to_lowercase();
    assert!(answer.contains("x-request-id: mine\r\n"), "{answer}");
    assert!(
        answer.contains(&format!("traceparent: {parent}\r\n")),
        "{answer}"
    );
    stop_whole(&server);
    let report = judge_session(dir.path(), "x", 3);
    let (_, request) = report
        .timeline
        .slices_of(Event::Request)
        .next()
        .expect("one");
    let arg = |name: &str| request.arg(name).map(ToString::to_string);
    assert_eq!(arg("traceparent").as_deref(), Some(parent));
    assert_eq!(arg("x_request_id").as_deref(), Some("mine"));
    assert_eq!(arg("request_id").as_deref(), Some("cmpl-mine"));
}

#[test]
fn layers_and_ops_are_shown_at_detail_2_only_and_processes_can_be_chosen() {
    let dir = dir();
    let server = manual(tiny(), dir.path()).start();
    for (name, body, expected) in [
        ("one", json!({}), 3),
        ("two", json!({"detail": 2}), 3),
        (
            "three",
            json!({"processes": ["worker-0"], "detail": "2"}),
            1,
        ),
    ] {
        let mut body = body;
        body["name"] = json!(name);
        let answer = start(&server, body);
        let recording = states(&answer)
            .iter()
            .filter(|(_, state)| state == "recording")
            .count();
        assert_eq!(recording, expected, "{answer}");
        complete_with(&server, "");
        stop_whole(&server);
        let report = judge_session(dir.path(), name, expected);
        let steps = step_ids(&report, Event::WorkerStep).len();
        let count = |event| report.timeline.slices_of(event).count();
        // The last token leaves before the end of its step, which may be clipped.
        assert!(steps >= 7, "{name}: {steps} steps");
        let layers = count(Event::Layer);
        let products = count(Event::Linear);
        if name == "one" {
            assert_eq!((layers, products), (0, 0));
        } else {
            // Four products a layer, and the logits'.
            let forwards = count(Event::Forward);
            assert!(
                layers >= forwards && layers % forwards == 0,
                "{layers} {forwards}"
            );
            assert_eq!(products, layers * 4 + forwards, "{name}");
        }
    }
    let (code, answer) = ask(
        &server,
        "/start_profile",
        &json!({"processes": ["worker-1"]}),
    );
    assert_eq!(code, 400, "{answer}");
}

#[test]
fn a_session_begins_while_the_one_before_is_written_and_shows_what_is_under_way() {
    let dir = dir();
    let server = auto(tiny(), dir.path()).start();
    let load = Load::start(&server, 4, 1900);
    for number in 0..5 {
        start(&server, json!({"name": format!("n{number}")}));
        std::thread::sleep(Duration::from_millis(30));
        super::support::stop(&server);
    }
    drop(load);
    wait_idle(&server);
    let mut all = files(dir.path(), "auto");
    for number in 0..5 {
        judge_session(dir.path(), &format!("n{number}"), 3);
        all.extend(files(dir.path(), &format!("n{number}")));
    }
    // Sessions of one process have the same tracks, and do not collide.
    let paths: Vec<_> = all.into_iter().map(|(_, path)| path).collect();
    assert_eq!(paths.len(), 18);
    let report = judge(&paths, &OpenSlices::None);
    crate::perfetto::assert_shows(&paths, &report);
}
