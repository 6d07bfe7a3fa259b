//! Who starts a server, and what lies in its way.

use crate::client::{get, long_completion, post};
use crate::programs::golden;
use crate::rows::check_all;
use crate::server::{Server, ServerOptions, wait_for};
use nano_trace::check::{OpenSlices, check};
use nano_trace::read::Source;
use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(2);

fn assert_serves(server: &Server) {
    let url = format!("{}/v1/completions", server.base_url());
    let (status, answer) = post(&url, &long_completion(3)).expect("answered");
    assert_eq!(status, 200, "{answer}");
}

#[track_caller]
fn assert_ends(server: &mut Server, signal: Signal) {
    let told = server.signal("nano-serve", signal);
    assert_eq!(server.wait_exit(SOON).code(), Some(0), "{}", server.log());
    server.wait_gone(told, SOON);
}

/// A directory for the server's own files, as its environment names it.
fn in_dir(dir: &Path) -> ServerOptions {
    ServerOptions::mock(0).env("TMPDIR", dir.to_str().expect("UTF-8"))
}

#[test]
fn what_lies_beside_its_socket_is_left_alone() {
    let temp = tempfile::tempdir().expect("temporary directory");
    let place = |name: &str| {
        let dir = temp.path().join(format!("nano-serve-{name}"));
        fs::create_dir(&dir).expect("a fresh place");
        dir.join("engine.sock")
    };
    // A socket that a server has left behind, and what is none at all.
    let stale = place("stale");
    drop(UnixListener::bind(&stale).expect("a fresh path"));
    let file = place("file");
    fs::write(&file, "mine").expect("written");
    let link = place("link");
    symlink(&file, &link).expect("linked");

    let elsewhere = temp.path().join("by another name");
    symlink(temp.path(), &elsewhere).expect("linked");
    for dir in [temp.path(), &elsewhere] {
        let mut server = in_dir(dir).start();
        assert_serves(&server);
        assert_ends(&mut server, Signal::SIGTERM);
    }
    let entries = fs::read_dir(temp.path()).expect("ours").count();
    assert_eq!(entries, 4, "its own is gone");
    for left in [&stale, &file, &link] {
        assert!(left.symlink_metadata().is_ok(), "{}", left.display());
    }
    assert_eq!(fs::read_to_string(&link).expect("readable"), "mine");
}

#[test]
fn a_place_where_no_socket_can_be_is_one_line_and_exit_code_2() {
    let temp = tempfile::tempdir().expect("temporary directory");
    let file = temp.path().join("file");
    fs::write(&file, "").expect("written");
    let long = temp.path().join("x".repeat(100));
    fs::create_dir(&long).expect("made");
    let missing = temp.path().join("missing");
    check_all(&[file, long, missing], 3, |dir| {
        let mut server = in_dir(dir).spawn();
        assert_eq!(server.wait_exit(SOON * 5).code(), Some(2));
        server.wait_gone(Instant::now(), SOON);
        let log = server.log();
        assert_eq!(log.lines().count(), 1, "{log}");
        let named = dir.to_str().expect("UTF-8");
        assert!(log.contains(named) && log.contains("TMPDIR"), "{log}");
    });
    let left = fs::read_dir(temp.path()).expect("ours").count();
    assert_eq!(left, 2, "nothing new is left");
}

#[test]
fn two_servers_in_one_profiler_directory_write_whole_traces_side_by_side() {
    let temp = tempfile::tempdir().expect("temporary directory");
    let dir = temp.path().to_str().expect("UTF-8");
    let options = ServerOptions::real(&golden("models/tiny-llama")).env("NANO_PROFILER_DIR", dir);
    let mut servers = [options.clone().start(), options.start()];
    servers.iter().for_each(assert_serves);
    for server in &mut servers {
        assert_ends(server, Signal::SIGTERM);
    }
    let entries = fs::read_dir(temp.path()).expect("ours");
    let files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(files.len(), 6, "{files:?}");
    let sources: Vec<_> = files.into_iter().map(Source::File).collect();
    check(&sources, &OpenSlices::None)
        .expect("readable")
        .assert_clean();
}

#[test]
fn a_shell_without_job_control_changes_nothing() {
    // Such a shell has SIGINT ignored in what it runs in the background.
    let mut server = ServerOptions::mock(0).spawn_by_shell("\"$0\" \"$@\" & wait $!");
    server.wait_ready();
    assert_ends(&mut server, Signal::SIGINT);
}

#[test]
fn it_runs_under_timeout_and_ends_in_time() {
    let mut server = ServerOptions::mock(0).spawn_under(&["timeout", "60"]);
    server.wait_ready();
    assert_serves(&server);
    // `timeout` passes on what it is told.
    let told = server.signal("timeout", Signal::SIGTERM);
    assert_eq!(server.wait_exit(SOON).code(), Some(0), "{}", server.log());
    server.wait_gone(told, SOON);

    // Its time may come while the server still starts.
    for seconds in ["0.05", "0.2", "1"] {
        let mut server = ServerOptions::mock(0).spawn_under(&["timeout", seconds]);
        let timed_out = Some(124);
        assert_eq!(
            server.wait_exit(SOON * 3).code(),
            timed_out,
            "{}",
            server.log()
        );
        server.wait_gone(Instant::now(), SOON);
    }
}

#[test]
fn strangers_among_its_children_are_reaped_and_mean_nothing() {
    // The shell becomes the server, and what it had begun becomes its child.
    let script = "sleep 0.3 & exec \"$0\" \"$@\"";
    let mut server = ServerOptions::mock(0).spawn_by_shell(script);
    server.wait_ready();
    let launcher = server.process("nano-serve").pid.as_raw();
    wait_for("end of the stranger", Duration::from_secs(10), || {
        let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
        let children = children.expect("it lives").split_whitespace().count();
        (children == 3).then_some(())
    });
    assert_serves(&server);
    assert_ends(&mut server, Signal::SIGTERM);
}

/// What makes a program process 1 of a new namespace, where that is permitted.
fn as_process_1() -> Option<&'static [&'static str]> {
    const WAYS: [&[&str]; 2] = [
        &["unshare", "--pid", "--fork", "--mount-proc"],
        &[
            "unshare",
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount-proc",
        ],
    ];
    WAYS.into_iter().find(|way| {
        let tried = Command::new(way[0]).args(&way[1..]).arg("true").output();
        tried.is_ok_and(|output| output.status.success())
    })
}

#[test]
fn it_works_as_process_1() {
    let Some(words) = as_process_1() else {
        eprintln!("not permitted here: what is tested of it is how strangers are reaped");
        return;
    };
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = ServerOptions::mock(0).spawn_under(words);
        server.wait_ready();
        assert_serves(&server);
        assert_ends(&mut server, signal);
    }
    let mut server = ServerOptions::mock(0).spawn_under(words);
    server.wait_ready();
    let killed = server.signal("nano-core", Signal::SIGKILL);
    server.wait_gone(killed, SOON);
    assert_eq!(server.wait_exit(SOON).code(), Some(1), "{}", server.log());
}

#[test]
fn two_servers_do_not_touch_each_other() {
    let first = ServerOptions::mock(0).start();
    let mut second = ServerOptions::mock(0).start();
    let told = second.signal("nano-core", Signal::SIGKILL);
    second.wait_gone(told, SOON);
    second.wait_exit(SOON);
    let health = get(&format!("{}/health", first.base_url())).expect("answered");
    assert_eq!(health.0, 200, "the other one serves on");
}
