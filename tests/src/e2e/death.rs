//! What is left when a process dies: nobody, and no client that waits.

use crate::client::{Stream, StreamEvent, get, long_completion, post};
use crate::programs::golden;
use crate::server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(2);
const PROGRAMS: [&str; 4] = ["nano-serve", "nano-frontend", "nano-core", "nano-worker"];

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

/// How the client of a stream was answered.
fn assert_answered(events: &[StreamEvent], program: &str) {
    let has_error = events.iter().any(
        |event| matches!(event, StreamEvent::Data(json) if json["error"]["message"].is_string()),
    );
    let Some(StreamEvent::End { whole }) = events.last() else {
        panic!("no end")
    };
    if program == "nano-frontend" {
        assert!(!whole, "a cut response does not look like a whole one");
    } else {
        assert!(has_error, "{program}: an error to parse: {events:?}");
        assert!(whole, "{program}: the response ends as HTTP demands");
    }
    assert!(!events.contains(&StreamEvent::Done), "it was not done");
}

#[test]
fn kill_9_while_idle_leaves_nobody() {
    for program in PROGRAMS {
        let mut server = ServerOptions::mock(0).start();
        kill_and_bury(&mut server, program);
    }
}

#[test]
fn kill_9_in_mid_stream_answers_every_client_and_leaves_nobody() {
    for program in PROGRAMS {
        let mut server = ServerOptions::mock(20).start();
        let open = |_| {
            let path = "/v1/completions";
            Stream::open(server.base_url(), path, long_completion(4000))
        };
        let streams: Vec<Stream> = (0..4).map(open).collect();
        streams.iter().for_each(Stream::wait_started);
        let killed = kill_and_bury(&mut server, program);
        for stream in &streams {
            assert_answered(&stream.rest(killed + WITHIN), program);
        }
    }
}

#[test]
fn kill_9_answers_clients_that_wait_for_a_whole_response_too() {
    for program in ["nano-core", "nano-worker", "nano-serve"] {
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
    }
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
        assert_answered(&stream.rest(sent + 2 * WITHIN), "nano-worker");
    }
    server.wait_gone(sent, 2 * WITHIN);
    let status = server.wait_exit(Duration::from_secs(1));
    let log = server.log();
    assert_eq!(status.code(), Some(1), "{log}");
    let cause = log
        .lines()
        .any(|line| line.contains("launcher") && line.contains("panicked: a bug at token 700"));
    assert!(cause, "the root cause is named in one line: {log}");
}

#[test]
fn health_tells_of_a_death_within_a_tenth_of_a_second() {
    for program in ["nano-core", "nano-worker"] {
        let server = ServerOptions::mock(20).start();
        // A client that keeps the frontend busy saying goodbye.
        let stream = Stream::open(server.base_url(), "/v1/completions", long_completion(4000));
        stream.wait_started();
        let url = format!("{}/health", server.base_url());
        assert_eq!(get(&url).expect("healthy").0, 200);
        let killed = server.signal(program, Signal::SIGKILL);
        loop {
            let asked = Instant::now();
            match get(&url) {
                Ok((200, _)) => assert!(
                    asked - killed < Duration::from_millis(100),
                    "still healthy {:?} after {program}'s death",
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
fn kill_9_of_the_launcher_ends_a_worker_that_loads_its_model() {
    let mut server = ServerOptions::real(&golden("models/tiny-llama")).spawn();
    server.process("nano-worker");
    let killed = server.signal("nano-serve", Signal::SIGKILL);
    server.wait_gone(killed, WITHIN);
    server.wait_exit(Duration::from_secs(1));
}

#[test]
fn stopped_processes_do_not_outlive_the_launcher() {
    for program in ["nano-frontend", "nano-core", "nano-worker"] {
        let server = ServerOptions::mock(0).start();
        server.signal(program, Signal::SIGSTOP);
        let killed = server.signal("nano-serve", Signal::SIGKILL);
        server.wait_gone(killed, WITHIN);
    }
}

#[test]
fn a_stopped_process_is_unhealthy_after_five_seconds_and_may_recover() {
    for program in ["nano-core", "nano-worker"] {
        let server = ServerOptions::mock(0).start();
        let url = format!("{}/health", server.base_url());
        let stopped = server.signal(program, Signal::SIGSTOP);
        let unhealthy = |within| {
            crate::server::wait_for("503", within, || {
                get(&url)
                    .is_ok_and(|(status, _)| status == 503)
                    .then_some(())
            });
        };
        unhealthy(Duration::from_secs(8));
        assert!(stopped.elapsed() >= Duration::from_secs(4), "not at once");
        server.signal(program, Signal::SIGCONT);
        crate::server::wait_for("200 again", Duration::from_secs(3), || {
            get(&url)
                .is_ok_and(|(status, _)| status == 200)
                .then_some(())
        });
    }
}

#[test]
fn a_process_that_stays_stopped_ends_the_server() {
    for program in ["nano-frontend", "nano-core", "nano-worker"] {
        let mut server = ServerOptions::mock(0)
            .args(&["--stall-timeout", "1"])
            .start();
        let stopped = server.signal(program, Signal::SIGSTOP);
        let status = server.wait_exit(Duration::from_secs(5));
        assert_eq!(status.code(), Some(1), "{}", server.log());
        assert!(server.log().contains("does not answer"), "{}", server.log());
        server.wait_gone(stopped, Duration::from_secs(5));
    }
}
