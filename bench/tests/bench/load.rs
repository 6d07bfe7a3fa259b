//! What the client itself costs.

use crate::double::{Double, stream};
use crate::{json, turns};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::process::{Command, Stdio};
use std::time::Duration;

const STREAMS: usize = 64;
const TOKENS_PER_SECOND: f64 = 10_000.0;
/// What the double is told to do: its timers are late by a millisecond and more.
const WISHED_PER_SECOND: f64 = 14_000.0;
const SECONDS: f64 = 4.0;

/// CPU seconds of all children that have ended.
fn children_cpu_s() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("always there");
    let sum = usage.user_time() + usage.system_time();
    sum.num_microseconds() as f64 / 1e6
}

#[test]
fn ten_thousand_tokens_a_second_take_less_than_half_a_core() {
    let _turn = turns::alone();
    let dir = tempfile::tempdir().expect("temporary directory");
    let of_stream = (TOKENS_PER_SECOND * SECONDS / STREAMS as f64) as usize;
    let gap = Duration::from_secs_f64(STREAMS as f64 / WISHED_PER_SECOND);
    let double = Double::start(move |_, _| stream(vec![gap; of_stream]));
    let before = children_cpu_s();
    let status = Command::new(env!("CARGO_BIN_EXE_nano-bench"))
        .args(["--base-url", &double.url(), "--model", "m"])
        .args([
            "--concurrency",
            "64",
            "--num-requests",
            "64",
            "--output-dir",
        ])
        .arg(dir.path())
        .env_remove("NANO_PROFILER_DIR")
        .stdout(Stdio::null())
        .status()
        .expect("built");
    assert!(status.success());
    let cpu_s = children_cpu_s() - before;
    let summary = &json(dir.path(), "result_summary.json")["loads"][0];
    let tokens = summary["tokens"]["output"].as_f64().expect("a number");
    assert_eq!(tokens as usize, STREAMS * of_stream);
    let duration_s = summary["duration_s"].as_f64().expect("a number");
    // A busy machine lets the double write more slowly; what a token costs stays.
    let cores = cpu_s / tokens * TOKENS_PER_SECOND;
    println!(
        "{:.0} tokens/s in {STREAMS} streams: {cpu_s:.2} s of CPU in {duration_s:.2} s; at {TOKENS_PER_SECOND} tokens/s {cores:.2} cores",
        tokens / duration_s
    );
    assert!(cores < 0.5, "{cores:.2} cores");
}
