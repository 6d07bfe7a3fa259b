//! What the system or an operator imposes on a server.

use crate::client::get;
use crate::programs::golden;
use crate::server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use std::net::TcpStream;
use std::time::Duration;

fn assert_healthy(server: &Server) {
    let health = get(&format!("{}/health", server.base_url()));
    assert_eq!(health.expect("answered").0, 200, "{}", server.log());
}

#[test]
fn signals_without_a_meaning_do_no_harm() {
    let server = ServerOptions::mock(0).start();
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        server.signal("nano-serve", signal);
    }
    // Signals are taken in order: once this one is obeyed, those were read.
    assert_healthy(&server);
    let mut server = server;
    server.signal("nano-serve", Signal::SIGTERM);
    let status = server.wait_exit(Duration::from_secs(3));
    assert_eq!(status.code(), Some(0), "{}", server.log());
}

#[test]
fn more_connections_than_the_soft_limit_of_descriptors_do_not_hide_the_server() {
    let mut server = ServerOptions::mock(0).spawn_by_shell("ulimit -Sn 100; exec \"$0\" \"$@\"");
    server.wait_ready();
    let address = server.base_url().trim_start_matches("http://").to_owned();
    let idle: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(&address).expect("accepted"))
        .collect();
    assert_healthy(&server);
    drop(idle);
}

#[test]
fn a_file_size_limit_is_an_error_and_no_death() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut server = ServerOptions::mock(0)
        .env("NANO_PROFILER_DIR", &dir.path().to_string_lossy())
        .spawn_by_shell("ulimit -f 2; exec \"$0\" \"$@\"");
    let status = server.wait_exit(Duration::from_secs(20));
    assert_eq!(status.code(), Some(2), "{}", server.log());
    assert_eq!(server.log().lines().count(), 1, "{}", server.log());
    assert!(server.log().contains("File too large"), "{}", server.log());
}

#[test]
fn a_cache_that_no_machine_has_is_one_line_and_exit_code_2() {
    for (flag, value) in [
        ("--num-kv-blocks", "4294967295"),
        ("--kv-cache-memory-bytes", "18446744073709551615"),
    ] {
        let mut server = ServerOptions::real(&golden("models/tiny-llama"))
            .args(&[flag, value])
            .spawn();
        let status = server.wait_exit(Duration::from_secs(20));
        let log = server.log();
        assert_eq!(status.code(), Some(2), "{log}");
        let last = log.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("nano-serve: ") && last.contains(flag),
            "{log}"
        );
    }
}
