//! Processes that are stopped: they may recover, and nobody waits for ever.

use crate::client::{Stream, get, long_completion};
use crate::moments::{Moment, assert_done, assert_told};
use crate::rows::check_all;
use crate::server::{Server, ServerOptions, wait_for};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Stopped processes cost nothing: all rows at once.
const AT_ONCE: usize = 16;

/// What a server has to do when it goes on.
const REST: Duration = Duration::from_secs(4);

fn wait_for_health(server: &Server, status: u16, within: Duration) {
    let url = format!("{}/health", server.base_url());
    wait_for(&format!("health {status}"), within, || {
        get(&url)
            .is_ok_and(|answer| answer.0 == status)
            .then_some(())
    });
}

fn wait_for_log(server: &Server, text: &str, within: Duration) {
    wait_for(&format!("{text:?} in the log"), within, || {
        server.log().contains(text).then_some(())
    });
}

#[test]
fn a_stopped_process_is_unhealthy_after_five_seconds_and_goes_on_where_it_was() {
    let each =
        |moment| ["nano-frontend", "nano-core", "nano-worker"].map(|program| (program, moment));
    let rows = Moment::ALL.map(each).concat();
    check_all(&rows, AT_ONCE, |&(program, moment)| {
        let (mut server, stream) = moment.reach(ServerOptions::mock(0), REST);
        let stopped = server.signal(program, Signal::SIGSTOP);
        // Five seconds of silence, and the time between pings.
        let soon = Duration::from_secs(9);
        if program == "nano-frontend" || moment == Moment::Loading {
            // It cannot say so, or has no address yet: the launcher does.
            wait_for_log(&server, "unhealthy: ", soon);
        } else {
            wait_for_health(&server, 503, soon);
        }
        assert!(stopped.elapsed() >= Duration::from_secs(4), "not at once");
        server.signal(program, Signal::SIGCONT);
        wait_for_log(&server, "healthy again", Duration::from_secs(5));
        if moment == Moment::Loading {
            server.wait_ready();
        }
        wait_for_health(&server, 200, Duration::from_secs(5));
        if let Some(stream) = stream {
            assert_done(&stream, REST * 5);
        }
    });
}

#[test]
fn a_stopped_launcher_is_missed_by_nobody() {
    check_all(&Moment::ALL, AT_ONCE, |moment| {
        let (mut server, stream) = moment.reach(ServerOptions::mock(0), REST);
        server.signal("nano-serve", Signal::SIGSTOP);
        if let Some(stream) = stream {
            assert_done(&stream, REST * 5);
        }
        if *moment != Moment::Loading {
            wait_for_health(&server, 200, Duration::from_secs(5));
        }
        server.signal("nano-serve", Signal::SIGCONT);
        if *moment == Moment::Loading {
            server.wait_ready();
        }
        let told = server.signal("nano-serve", Signal::SIGTERM);
        let status = server.wait_exit(Duration::from_secs(5));
        assert_eq!(status.code(), Some(0), "{}", server.log());
        server.wait_gone(told, Duration::from_secs(5));
    });
}

#[test]
fn a_process_that_stays_stopped_ends_the_server() {
    let each =
        |moment| ["nano-frontend", "nano-core", "nano-worker"].map(|program| (program, moment));
    let rows = Moment::ALL.map(each).concat();
    check_all(&rows, AT_ONCE, |&(program, moment)| {
        let options = ServerOptions::mock(0).args(&["--stall-timeout", "2"]);
        let (mut server, stream) = moment.reach(options, REST * 5);
        let stopped = server.signal(program, Signal::SIGSTOP);
        let status = server.wait_exit(Duration::from_secs(10));
        assert_eq!(status.code(), Some(1), "{}", server.log());
        let role = program.trim_start_matches("nano-");
        let log = server.log();
        let named = log
            .lines()
            .last()
            .is_some_and(|line| line.contains(role) && line.contains("does not answer"));
        assert!(named, "the root cause is named last: {log}");
        server.wait_gone(stopped, Duration::from_secs(10));
        if let Some(stream) = stream {
            // A stopped frontend is woken to answer its clients.
            assert_told(&stream, Instant::now() + Duration::from_secs(1), false);
        }
    });
}

#[test]
fn a_step_that_does_not_end_ends_the_server() {
    let options = ServerOptions::mock(60_000).args(&["--stall-timeout", "1"]);
    let mut server = options.start();
    let body = long_completion(1);
    let stream = Stream::open(server.base_url(), "/v1/completions", body);
    let status = server.wait_exit(Duration::from_secs(10));
    assert_eq!(status.code(), Some(1), "{}", server.log());
    let log = server.log();
    assert!(log.contains("is at step "), "{log}");
    assert_told(&stream, Instant::now() + Duration::from_secs(1), false);
    server.wait_gone(Instant::now(), Duration::from_secs(2));
}
