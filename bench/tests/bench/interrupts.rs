//! Ctrl+C, on the real program.

use crate::double::{Double, Step, ms, stream};
use crate::{json, records, turns, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Twelve quick answers, and then endless ones.
fn server(stop: Vec<Step>) -> Double {
    Double::start(move |path, number| match path {
        "/start_profile" => vec![Step::Whole(200, "{}")],
        "/stop_profile" => stop.clone(),
        _ if number < 12 => stream([ms(1), ms(1)]),
        _ => vec![Step::StreamHead, Step::Token, Step::Hang],
    })
}

fn spawn(double: &Double, dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_nano-bench"))
        .args([
            "--base-url",
            &double.url(),
            "--model",
            "m",
            "--concurrency",
            "3",
        ])
        .args([
            "--num-requests",
            "1000",
            "--profile",
            "nano",
            "--output-dir",
        ])
        .arg(dir)
        .env_remove("NANO_PROFILER_DIR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("built")
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it lives");
}

/// What must be there after the end; the stop that was noted.
fn check_results(child: Child, dir: &Path) -> serde_json::Value {
    let output = child.wait_with_output().expect("our child");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    let summary = json(dir, "result_summary.json");
    assert_eq!(summary["aborted"], true);
    let requests = &summary["loads"][0]["requests"];
    assert_eq!(requests["complete"], 12);
    assert_eq!(requests["aborted"], 3);
    assert_eq!(requests["failed"], 0);
    assert_eq!(records(dir).len(), 15);
    let text = std::fs::read_to_string(dir.join("report.txt")).expect("written");
    assert!(text.contains("INTERRUPTED"), "{text}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains(&text), "what is written is shown: {shown}");
    let profiling = json(dir, "profiling.json");
    let [stop] = profiling["stops"].as_array().expect("a list").as_slice() else {
        panic!("one stop: {profiling}");
    };
    assert_eq!(stop["stop_reason"], "abort");
    stop.clone()
}

#[test]
fn the_first_ctrl_c_ends_the_load_and_stops_the_profiler() {
    let _turn = turns::with_others();
    let dir = tempfile::tempdir().expect("temporary directory");
    let double = server(vec![Step::Whole(200, "{}")]);
    let child = spawn(&double, dir.path());
    wait_for("endless answers", || {
        double.served_at("/v1/chat/completions").len() == 15
    });
    interrupt(&child);
    let stop = check_results(child, dir.path());
    assert_eq!(stop["status"], 200);
    assert_eq!(double.served_at("/stop_profile").len(), 1);
}

#[test]
fn the_second_ctrl_c_waits_for_nobody_and_loses_nothing() {
    let _turn = turns::with_others();
    let dir = tempfile::tempdir().expect("temporary directory");
    let double = server(vec![Step::Hang]);
    let child = spawn(&double, dir.path());
    wait_for("endless answers", || {
        double.served_at("/v1/chat/completions").len() == 15
    });
    interrupt(&child);
    wait_for("stop", || double.served_at("/stop_profile").len() == 1);
    interrupt(&child);
    let stop = check_results(child, dir.path());
    let error = stop["error"].as_str().expect("an error");
    assert!(
        error.contains("interrupted again"),
        "not by its own time-out: {error}"
    );
}

#[test]
fn two_at_once_still_stop_the_profiler() {
    let _turn = turns::with_others();
    let dir = tempfile::tempdir().expect("temporary directory");
    let double = server(vec![Step::Whole(200, "{}")]);
    let child = spawn(&double, dir.path());
    wait_for("endless answers", || {
        double.served_at("/v1/chat/completions").len() == 15
    });
    // Stopped in between, it sees the two signals in one moment.
    let pid = Pid::from_raw(child.id() as i32);
    kill(pid, Signal::SIGSTOP).expect("it lives");
    interrupt(&child);
    kill(pid, Signal::SIGTERM).expect("it lives");
    kill(pid, Signal::SIGCONT).expect("it lives");
    check_results(child, dir.path());
    assert_eq!(double.served_at("/stop_profile").len(), 1);
}
