//! Processes that stop or die, disks that fail, servers that end.

use super::support::{
    Load, PATIENCE, ask, auto, dir, files, judge, judge_session, manual, start, states, status,
    stop, stop_whole, tiny, wait_idle,
};
use crate::client::{get, long_completion, post};
use crate::random::Random;
use crate::server::{Server, ServerOptions, wait_for};
use nano_trace::Event;
use nano_trace::check::OpenSlices;
use nix::libc;
use nix::sys::signal::Signal;
use serde_json::json;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn complete(server: &Server) {
    let url = format!("{}/v1/completions", server.base_url());
    let (status, answer) = post(&url, &long_completion(5)).expect("answered");
    assert_eq!(status, 200, "{answer}");
}

fn pairs(states: &[(String, String)]) -> Vec<(&str, &str)> {
    states
        .iter()
        .map(|(process, state)| (process.as_str(), state.as_str()))
        .collect()
}

#[test]
fn a_stopped_worker_is_named_in_time_and_the_session_works_in_the_others() {
    let dir = dir();
    let server = manual(ServerOptions::mock(1), dir.path()).start();
    server.signal("nano-worker", Signal::SIGSTOP);
    let asked = Instant::now();
    let answer = start(&server, json!({"name": "x"}));
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    let silent = [
        ("core", "recording"),
        ("frontend", "recording"),
        ("worker-0", "silent"),
    ];
    assert_eq!(pairs(&states(&answer)), silent);
    let asked = Instant::now();
    let ended = stop(&server);
    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(states(&ended)[2].1, "silent");
    // It obeys when it wakes, and nothing is left behind.
    server.signal("nano-worker", Signal::SIGCONT);
    wait_idle(&server);
    judge_session(dir.path(), "x", 3);
    start(&server, json!({"name": "y"}));
    complete(&server);
    stop_whole(&server);
    judge_session(dir.path(), "y", 3);
}

#[test]
fn an_ordered_end_finishes_what_is_recorded_and_what_is_being_written() {
    for flushing in [false, true] {
        let dir = dir();
        let mut server = auto(tiny(), dir.path()).start();
        let load = Load::start(&server, 4, 1900);
        start(&server, json!({"name": "x"}));
        if flushing {
            std::thread::sleep(Duration::from_millis(100));
            stop(&server);
        }
        let order = Instant::now();
        server.signal("nano-serve", Signal::SIGTERM);
        server.signal("nano-serve", Signal::SIGTERM);
        let exit = server.wait_exit(Duration::from_secs(10));
        assert_eq!(
            exit.code(),
            Some(0),
            "{:?}: {}",
            order.elapsed(),
            server.log()
        );
        drop(load);
        judge_session(dir.path(), "x", 3);
        judge_session(dir.path(), "auto", 3);
    }
}

#[test]
fn a_directory_that_is_removed_stops_no_request_and_is_told_of() {
    let parent = dir();
    let dir = parent.path().join("traces");
    let server = manual(ServerOptions::mock(1), &dir).start();
    start(&server, json!({"name": "x"}));
    complete(&server);
    fs::remove_dir_all(&dir).expect("ours");
    complete(&server);
    stop_whole(&server);
    let (code, _) =
        get(&format!("{}/profile/trace?session=x", server.base_url())).expect("answered");
    assert_eq!(code, 404);
    // The next session makes it anew.
    start(&server, json!({"name": "y"}));
    complete(&server);
    stop_whole(&server);
    judge_session(&dir, "y", 3);
    // Where none can be made, nothing can begin, and the place stays free.
    fs::remove_dir_all(&dir).expect("ours");
    fs::write(&dir, "in the way").expect("ours");
    let (code, answer) = ask(&server, "/start_profile", &json!({"name": "z"}));
    assert_eq!(code, 503, "{answer}");
    let text = answer.to_string();
    assert!(text.contains("no process can record"), "{text}");
    assert_eq!(status(&server)["state"], "idle");
    complete(&server);
}

#[test]
fn a_directory_that_is_made_read_only_ends_no_session_and_lets_none_begin() {
    let dir = dir();
    let options = manual(ServerOptions::mock(1), dir.path());
    // The superuser would write there all the same.
    let owner = fs::metadata(dir.path()).expect("ours").uid();
    let mut server = match owner == 0 {
        true => options.spawn_under(&["setpriv", "--bounding-set=-dac_override"]),
        false => options.spawn(),
    };
    server.wait_ready();
    start(&server, json!({"name": "x"}));
    complete(&server);
    let permit = |mode| {
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).expect("ours");
    };
    permit(0o555);
    complete(&server);
    // Its files are open.
    stop_whole(&server);
    let report = judge_session(dir.path(), "x", 3);
    assert_eq!(report.timeline.slices_of(Event::Request).count(), 2);
    let (code, answer) = ask(&server, "/start_profile", &json!({"name": "y"}));
    assert_eq!(code, 503, "{answer}");
    let text = answer.to_string();
    assert!(text.contains("Permission denied"), "{text}");
    wait_for("the log to tell it", PATIENCE, || {
        server.log().contains("Permission denied").then_some(())
    });
    complete(&server);
    permit(0o755);
    start(&server, json!({"name": "z"}));
    complete(&server);
    stop_whole(&server);
    judge_session(dir.path(), "z", 3);
}

/// Lets a process write no file beyond so many bytes: the error is another one
/// than a full disk's, and all that differs.
pub(super) fn limit_files(pid: i32, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: reads `limit`, writes nothing back, and the process is ours.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_full_disk_ends_the_session_and_stops_no_request() {
    let dir = dir();
    let server = manual(ServerOptions::mock(0), dir.path()).start();
    for program in ["nano-frontend", "nano-core", "nano-worker"] {
        limit_files(server.process(program).pid.as_raw(), 100 << 10);
    }
    let load = Load::start(&server, 16, 8000);
    start(&server, json!({"name": "x"}));
    let failed = wait_for("a write that fails", PATIENCE, || {
        let status = status(&server);
        let failed = states(&status).iter().any(|(_, state)| state == "failed");
        failed.then_some(status)
    });
    let text = failed.to_string();
    assert!(text.contains("File too large"), "{text}");
    assert!(server.log().contains("File too large"), "{}", server.log());
    complete(&server);
    stop_whole(&server);
    drop(load);
    for (_, path) in files(dir.path(), "x") {
        judge(&[path], &OpenSlices::Any);
    }
}

/// Kills so many servers' processes at random moments of a recording.
fn number_of_kills() -> u64 {
    let number = std::env::var("NANO_PROFILE_KILLS").ok();
    number.map_or(4, |text| text.parse().expect("a number"))
}

#[test]
fn after_kill_9_at_any_moment_every_file_loads_to_its_last_packet() {
    const PROGRAMS: [&str; 4] = ["nano-worker", "nano-core", "nano-frontend", "nano-serve"];
    for round in 0..number_of_kills() {
        let mut random = Random::new(round);
        let program = PROGRAMS[round as usize % PROGRAMS.len()];
        let dir = dir();
        let mut server = auto(ServerOptions::mock(1), dir.path()).start();
        let load = Load::start(&server, 4, 8000);
        let named = random.within(0..3) > 0;
        if named {
            start(&server, json!({"name": "x"}));
        }
        if random.within(0..3) == 0 {
            stop(&server);
        }
        std::thread::sleep(Duration::from_millis(random.within(0..500)));
        let pid = server.process(program).pid.as_raw();
        let killed = server.signal(program, Signal::SIGKILL);
        server.wait_gone(killed, Duration::from_secs(4));
        server.wait_exit(Duration::from_secs(4));
        drop(load);
        let open = OpenSlices::Of(vec![pid]);
        for session in ["auto", "x"] {
            let files = files(dir.path(), session);
            let expected = if session == "auto" || named { 3 } else { 0 };
            assert_eq!(files.len(), expected, "round {round}: {program}: {session}");
            let paths: Vec<PathBuf> = files.into_iter().map(|(_, path)| path).collect();
            for path in &paths {
                judge(std::slice::from_ref(path), &open);
            }
            judge(&paths, &open);
        }
    }
}
