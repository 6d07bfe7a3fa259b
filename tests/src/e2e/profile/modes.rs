//! When recording begins: modes, the signal, one process instead of four.

use super::support::{
    PATIENCE, all, auto, dir, files, judge_session, manual, start, states, status, stop_whole,
    tiny, wait_idle,
};
use crate::client::{long_completion, post};
use crate::server::{Server, ServerOptions, wait_for};
use nano_trace::Event;
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::Duration;

fn complete(server: &Server) {
    let url = format!("{}/v1/completions", server.base_url());
    let (status, answer) = post(&url, &long_completion(5)).expect("answered");
    assert_eq!(status, 200, "{answer}");
}

fn wait_recording(server: &Server) -> String {
    wait_for("recording", PATIENCE, || {
        let status = status(server);
        let session = status["session"].as_str()?.to_owned();
        (status["state"] == "recording").then_some(session)
    })
}

#[test]
fn the_signal_begins_and_ends_a_session() {
    let dir = dir();
    let server = manual(ServerOptions::mock(1), dir.path()).start();
    wait_for("line that says why nothing is recorded", PATIENCE, || {
        server
            .log()
            .contains("waits for POST /start_profile")
            .then_some(())
    });
    for _ in 0..2 {
        server.signal("nano-serve", Signal::SIGUSR1);
        let session = wait_recording(&server);
        complete(&server);
        server.signal("nano-serve", Signal::SIGUSR1);
        wait_idle(&server);
        let report = judge_session(dir.path(), &session, 3);
        assert_eq!(report.timeline.slices_of(Event::Request).count(), 1);
    }
}

#[test]
fn an_empty_variable_is_an_unset_one() {
    let mut options = ServerOptions::mock(1);
    for name in ["DIR", "MODE", "SCHEDULE", "MAX_MB", "SAMPLE_HZ", "TRIGGER"] {
        options = options.env(&format!("NANO_PROFILER_{name}"), "");
    }
    let server = options.start();
    let url = format!("{}/start_profile", server.base_url());
    assert_eq!(post(&url, &json!({})).expect("answered").0, 404);
    complete(&server);
}

#[test]
fn auto_records_from_the_start_and_does_not_resume() {
    let dir = dir();
    let server = auto(ServerOptions::mock(1), dir.path()).start();
    let before = status(&server);
    assert_eq!(
        (before["session"].as_str(), before["state"].as_str()),
        (Some("auto"), Some("recording"))
    );
    complete(&server);
    start(&server, json!({"name": "mine"}));
    complete(&server);
    stop_whole(&server);
    complete(&server);
    wait_idle(&server);
    for session in ["auto", "mine"] {
        let report = judge_session(dir.path(), session, 3);
        assert_eq!(
            report.timeline.slices_of(Event::Request).count(),
            1,
            "{session}"
        );
    }
}

#[test]
fn one_process_lists_its_roles_with_one_file() {
    let dir = dir();
    let mut server = manual(tiny(), dir.path())
        .env("NANO_ENABLE_MULTIPROCESSING", "0")
        .start();
    let answer = start(&server, json!({"name": "x", "num_steps": 3}));
    assert_eq!(states(&answer), all("armed"));
    assert_eq!(answer["files"].as_array().expect("files").len(), 1);
    complete(&server);
    let ended = wait_idle(&server);
    assert_eq!(states(&ended), all("finished"));
    let report = judge_session(dir.path(), "x", 1);
    let steps = super::support::step_ids(&report, Event::WorkerStep);
    // Its core may have the last result before its worker's step has ended.
    assert!((2..=4).contains(&steps.len()), "{steps:?}");
    server.signal("nano-serve-single", Signal::SIGUSR1);
    let session = wait_recording(&server);
    complete(&server);
    server.signal("nano-serve-single", Signal::SIGTERM);
    let status = server.wait_exit(Duration::from_secs(5));
    assert_eq!(status.code(), Some(0), "{}", server.log());
    let report = judge_session(dir.path(), &session, 1);
    assert_eq!(report.timeline.dropped, 0);
    // The request's tracks of two layers are two, also in one process.
    let only = |event| {
        let mut slices = report.timeline.slices_of(event).map(|(_, slice)| slice);
        let slice = slices.next().expect("one");
        assert!(slices.next().is_none());
        slice
    };
    let (decode, streaming) = (only(Event::Decode), only(Event::Streaming));
    assert_ne!(decode.track, streaming.track);
    // What comes with its own END.
    assert_eq!(super::support::uint(decode, "output_tokens"), Some(5));
}

#[test]
fn wrong_modes_and_schedules_end_the_start_with_one_line() {
    let dir = dir();
    for (name, value, word) in [
        ("NANO_PROFILER_MODE", "fly", "manual"),
        (
            "NANO_PROFILER_TRIGGER",
            "step_ms>1",
            "--profiler-mode flight",
        ),
        ("NANO_PROFILER_SCHEDULE", "active", "the number of active"),
        (
            "NANO_PROFILER_SCHEDULE",
            "wait=1,active=x",
            "the number of active",
        ),
        ("NANO_PROFILER_SCHEDULE", "1,1,3", "is none of these"),
        ("NANO_PROFILER_SAMPLE_HZ", "0", "must be 1 to 1000"),
        (
            "NANO_PROFILER_FLIGHT_SECONDS",
            "5",
            "--profiler-mode flight",
        ),
        (
            "NANO_PROFILER_FLIGHT_SECONDS",
            "abc",
            "(NANO_PROFILER_FLIGHT_SECONDS): must be from 1 to 300",
        ),
        (
            "NANO_PROFILER_MAX_MB",
            "0",
            "(NANO_PROFILER_MAX_MB): must be from",
        ),
    ] {
        let mut server = auto(ServerOptions::mock(1), dir.path())
            .env(name, value)
            .spawn();
        let exit = server.wait_exit(Duration::from_secs(10));
        let log = server.log();
        assert_eq!(exit.code(), Some(2), "{log}");
        assert!(log.lines().count() == 1 && log.contains(word), "{log}");
    }
    assert!(files(dir.path(), "auto").is_empty());
}

#[test]
fn what_needs_a_directory_is_refused_without_one() {
    for (name, value, flag) in [
        ("NANO_PROFILER_MODE", "flight", "--profiler-mode"),
        ("NANO_PROFILER_TRIGGER", "step_ms>1", "--profiler-trigger"),
        (
            "NANO_PROFILER_FLIGHT_SECONDS",
            "5",
            "--profiler-flight-seconds",
        ),
        ("NANO_PROFILER_SCHEDULE", "active=1", "--profiler-schedule"),
        ("NANO_PROFILER_SAMPLE_HZ", "9", "--profiler-sample-hz"),
    ] {
        let mut server = ServerOptions::mock(1).env(name, value).spawn();
        let exit = server.wait_exit(Duration::from_secs(10));
        let log = server.log();
        assert_eq!(exit.code(), Some(2), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");
        let expected = format!("{flag} ({name}) needs --profiler-dir (NANO_PROFILER_DIR)");
        assert!(log.contains(&expected), "{log}");
    }
    // When to record, if there is a directory; there need be none.
    drop(
        ServerOptions::mock(1)
            .env("NANO_PROFILER_MODE", "manual")
            .start(),
    );
}
