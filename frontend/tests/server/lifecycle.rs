//! Loading, dying, draining.

use crate::support::{
    PATIENCE, Response, Server, client_send, config, engine_info, get, model_path, post,
};
use nano_frontend::FrontendError;
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::to_frontend::ToFrontend;
use nano_ipc::to_launcher::ToLauncher;
use serde_json::json;
use std::time::{Duration, Instant};

const PATH: &str = "/v1/completions";

#[test]
fn while_the_model_loads_health_is_503_with_the_reason_and_requests_are_refused() {
    let (server, core) = Server::loading(config());
    let health = get(server.addr, "/health");
    assert_eq!(health.status, 503);
    let reason = health.json();
    let reason = reason["error"]["message"].as_str().expect("text");
    assert!(reason.contains("loading"), "{reason}");
    let refused = post(server.addr, PATH, &json!({"prompt": "x"}));
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    core.ready(engine_info());
    let report = server.reports.recv_timeout(PATIENCE).expect("a report");
    assert_eq!(report, ToLauncher::Ready(engine_info()));
    assert_eq!(get(server.addr, "/health").status, 200);
    assert!(server.reports.try_recv().is_err(), "reported once");
}

#[test]
fn what_the_launcher_says_is_what_health_says() {
    let (server, _core) = Server::start(config());
    let stalled = "the core has not answered for 5 s";
    server.lifecycle.set_unhealthy(Some(stalled.to_owned()));
    let health = get(server.addr, "/health");
    assert_eq!(health.status, 503);
    assert_eq!(health.json()["error"]["message"], stalled);
    server.lifecycle.set_unhealthy(None);
    assert_eq!(get(server.addr, "/health").status, 200);
}

#[test]
fn the_cores_death_answers_every_open_request_and_ends_the_frontend() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let streaming = client_send(addr, PATH, &json!({"prompt": "x", "stream": true}));
    core.tokens(core.next_add().id, &[40, 41], None);
    let mut streaming = Response::read(streaming);
    streaming.event_json();
    let waiting = client_send(addr, PATH, &json!({"prompt": "x"}));
    core.next_add();
    let begun = Instant::now();
    core.die();
    let error = streaming.event_json();
    let reason = error["error"]["message"].as_str().expect("text").to_owned();
    assert!(reason.contains("the engine is gone"), "{reason}");
    assert_eq!(streaming.event(), None);
    let answer = Response::read(waiting);
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["error"]["message"], reason.as_str());
    let health = get(addr, "/health");
    assert_eq!(health.status, 503);
    assert_eq!(health.json()["error"]["message"], reason.as_str());
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(post(addr, PATH, &json!({"prompt": "x"})).status, 503);
    let ended = server.join();
    assert!(
        matches!(&ended, Err(FrontendError::EngineLost(said)) if *said == reason),
        "{ended:?}"
    );
}

#[test]
fn the_cores_last_words_reach_the_clients() {
    let (server, core) = Server::start(config());
    let waiting = client_send(server.addr, PATH, &json!({"prompt": "x"}));
    core.next_add();
    core.send(&ToFrontend::Fatal("worker-0 died".to_owned()));
    let answer = Response::read(waiting).json();
    let reason = answer["error"]["message"].as_str().expect("text");
    assert!(reason.contains("worker-0 died"), "{reason}");
}

#[test]
fn a_shutdown_drains_and_refuses_and_ends() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let mut stream = Response::read({
        let stream = client_send(addr, PATH, &json!({"prompt": "x", "stream": true}));
        core.tokens(core.next_add().id, &[40], None);
        stream
    });
    stream.event_json();
    server.shut_down(PATIENCE, "the server shuts down");
    let health = get(addr, "/health");
    assert_eq!(health.status, 503);
    assert_eq!(health.json()["error"]["message"], "the server shuts down");
    let refused = post(addr, PATH, &json!({"prompt": "x"}));
    assert_eq!(refused.status, 503);
    core.tokens(
        nano_ipc::engine_core_request::RequestId(1),
        &[41],
        Some(FinishReason::Length),
    );
    let events = stream.events_to_done();
    let last = events.last().expect("events");
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(server.join().is_ok());
}

#[test]
fn when_the_time_is_up_open_requests_get_the_reason() {
    let (server, core) = Server::start(config());
    let waiting = client_send(server.addr, PATH, &json!({"prompt": "x"}));
    let id = core.next_add().id;
    server.shut_down(PATIENCE, "later");
    // Overtakes the first order.
    server.shut_down(Duration::ZERO, "the server ends now");
    assert_eq!(core.next_abort(), id);
    let answer = Response::read(waiting);
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["error"]["message"], "the server ends now");
    assert!(server.join().is_ok());
}

#[test]
fn a_broken_model_is_named() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for file in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        std::fs::copy(model_path().join(file), dir.path().join(file)).expect("copy");
    }
    std::fs::write(dir.path().join("tokenizer.json"), "{}").expect("write");
    let mut config = config();
    config.model = dir.path().to_owned();
    let (server, _core) = Server::loading(config);
    let error = server.join().expect_err("no tokenizer").to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}
