//! What is left when a process dies: nobody, and no client that waits.

use crate::client::{Stream, get, long_completion, post};
use crate::moments::{Moment, assert_told};
use crate::programs::golden;
use crate::rows::check_all;
use crate::server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(2);
const PROGRAMS: [&str; 4] = ["nano-serve", "nano-frontend", "nano-core", "nano-worker"];

/// Longer than any test waits.
const FOR_EVER: Duration = Duration::from_secs(60);

/// As many servers at once leave a slow machine its two seconds.
const AT_ONCE: usize = 3;

/// Kills one process; nobody is left two seconds later, and the exit code says so.
fn kill_and_bury(server: &mut Server, program: &str) -> Instant {
    let killed = server.signal(program, Signal::SIGKILL);
    server.wait_gone(killed, WITHIN);
    let status = server.wait_exit(Duration::from_secs(1));
    if program == "nano-serve" {
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    } else {
        assert_eq!(status.code(), Some(1), "{}", server.log());
        let died = match program {
            "nano-frontend" => "frontend was killed by SIGKILL",
            "nano-core" => "core was killed by SIGKILL",
            _ => "worker-0 was killed by SIGKILL",
        };
        let log = server.log();
        assert!(log.contains(died), "the root cause is named: {log}");
    }
    killed
}

#[test]
fn kill_9_of_any_process_at_any_moment_answers_its_clients_and_leaves_nobody() {
    let each = |moment| PROGRAMS.map(|program| (program, moment));
    let rows = Moment::ALL.map(each).concat();
    check_all(&rows, AT_ONCE, |&(program, moment)| {
        let (mut server, stream) = moment.reach(ServerOptions::mock(0), FOR_EVER);
        let killed = kill_and_bury(&mut server, program);
        if let Some(stream) = stream {
            assert_told(&stream, killed + WITHIN, program == "nano-frontend");
        }
    });
}

#[test]
fn kill_9_answers_clients_that_wait_for_a_whole_response_too() {
    let rows = ["nano-core", "nano-worker", "nano-serve"];
    check_all(&rows, AT_ONCE, |program| {
        let mut server = ServerOptions::mock(20).start();
        let url = format!("{}/v1/completions", server.base_url());
        let witness = Stream::open(server.base_url(), "/v1/completions", long_completion(4000));
        let client = std::thread::spawn(move || post(&url, &long_completion(4000)));
        witness.wait_started();
        kill_and_bury(&mut server, program);
        let answer = client.join().expect("no panic");
        // A request that had not been read yet when the process died finds nobody.
        if let Ok((status, body)) = answer {
            assert!((500..=503).contains(&status), "{status}: {body}");
            assert!(body["error"]["message"].is_string(), "{body}");
        }
    });
}

#[test]
fn a_panic_in_an_operation_is_named_and_every_client_answered() {
    let mut server = ServerOptions::faulty().start();
    let open = |_| {
        let path = "/v1/completions";
        Stream::open(server.base_url(), path, long_completion(2000))
    };
    let streams: Vec<Stream> = (0..3).map(open).collect();
    streams.iter().for_each(Stream::wait_started);
    let mut fatal = long_completion(1);
    fatal["prompt"] = serde_json::json!([1, 700]);
    let sent = Instant::now();
    let (status, body) =
        post(&format!("{}/v1/completions", server.base_url()), &fatal).expect("an answer");
    assert_eq!(status, 500, "{body}");
    assert!(body["error"]["message"].is_string(), "{body}");
    for stream in &streams {
        assert_told(stream, sent + 2 * WITHIN, false);
    }
    server.wait_gone(sent, 2 * WITHIN);
    let status = server.wait_exit(Duration::from_secs(1));
    let log = server.log();
    assert_eq!(status.code(), Some(1), "{log}");
    let named = |line: &str| {
        let of_worker = line.starts_with("nano-serve: worker-0: step ");
        of_worker && line.ends_with(" panicked: a bug at token 700")
    };
    let cause = log.lines().any(named);
    assert!(cause, "the root cause is named in one line: {log}");
}

#[test]
fn health_tells_of_a_death_within_a_tenth_of_a_second() {
    let each = |moment| ["nano-core", "nano-worker"].map(|program| (program, moment));
    // One after the other: others would take the time that is measured.
    for (program, moment) in [Moment::Idle, Moment::Prefill, Moment::MidStream]
        .map(each)
        .concat()
    {
        let (server, _stream) = moment.reach(ServerOptions::mock(0), FOR_EVER);
        let url = format!("{}/health", server.base_url());
        assert_eq!(get(&url).expect("healthy").0, 200);
        let killed = server.signal(program, Signal::SIGKILL);
        loop {
            let asked = Instant::now();
            match get(&url) {
                Ok((200, _)) => assert!(
                    asked - killed < Duration::from_millis(100),
                    "still healthy {:?} after {program}'s death ({moment:?})",
                    asked - killed
                ),
                Ok((status, _)) => {
                    assert_eq!(status, 503);
                    break;
                }
                // The frontend has ended already.
                Err(_) => break,
            }
        }
        server.wait_gone(killed, WITHIN);
    }
}

#[test]
fn kill_9_of_the_launcher_ends_a_worker_that_loads_a_real_model() {
    let mut server = ServerOptions::real(&golden("models/tiny-llama")).spawn();
    server.process("nano-worker");
    kill_and_bury(&mut server, "nano-serve");
}

#[test]
fn stopped_processes_do_not_outlive_the_launcher() {
    let each = |moment| PROGRAMS[1..].iter().map(move |program| (*program, moment));
    let rows: Vec<_> = Moment::ALL.into_iter().flat_map(each).collect();
    check_all(&rows, AT_ONCE, |&(program, moment)| {
        let (server, _stream) = moment.reach(ServerOptions::mock(0), FOR_EVER);
        server.signal(program, Signal::SIGSTOP);
        let killed = server.signal("nano-serve", Signal::SIGKILL);
        server.wait_gone(killed, WITHIN);
    });
}
