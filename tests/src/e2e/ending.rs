//! Ordered ends, and starts that cannot be.

use crate::client::{Stream, StreamEvent, get, long_completion};
use crate::programs::golden;
use crate::server::ServerOptions;
use nix::sys::signal::Signal;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(2);

/// The last line of a server that refused to start.
fn refusal(options: ServerOptions, within: Duration) -> (Option<i32>, String) {
    let mut server = options.spawn();
    let status = server.wait_exit(within);
    server.wait_gone(Instant::now(), SOON);
    let log = server.log();
    (status.code(), log)
}

#[test]
fn sigterm_while_idle_ends_at_once_with_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut server = ServerOptions::mock(0).start();
        let told = server.signal("nano-serve", signal);
        assert_eq!(server.wait_exit(SOON).code(), Some(0), "{}", server.log());
        server.wait_gone(told, SOON);
    }
}

#[test]
fn sigterm_lets_open_requests_finish_and_refuses_new_ones() {
    let mut server = ServerOptions::mock(20).start();
    let stream = Stream::open(server.base_url(), "/v1/completions", long_completion(100));
    stream.wait_started();
    let told = server.signal("nano-serve", Signal::SIGTERM);
    let health = format!("{}/health", server.base_url());
    crate::server::wait_for("an end of health", Duration::from_secs(1), || {
        get(&health)
            .map_or(true, |(status, _)| status == 503)
            .then_some(())
    });
    let events = stream.rest(told + Duration::from_secs(20));
    assert!(events.contains(&StreamEvent::Done), "drained: {events:?}");
    assert_eq!(server.wait_exit(SOON).code(), Some(0), "{}", server.log());
    server.wait_gone(Instant::now(), SOON);
}

#[test]
fn what_is_not_done_by_the_shutdown_timeout_gets_an_error() {
    let mut server = ServerOptions::mock(20)
        .args(&["--shutdown-timeout", "1"])
        .start();
    let stream = Stream::open(server.base_url(), "/v1/completions", long_completion(4000));
    stream.wait_started();
    let told = server.signal("nano-serve", Signal::SIGTERM);
    let events = stream.rest(told + Duration::from_secs(4));
    let error = events.iter().find_map(|event| match event {
        StreamEvent::Data(json) => json["error"]["message"].as_str(),
        _ => None,
    });
    assert!(error.is_some(), "{events:?}");
    assert_eq!(server.wait_exit(SOON).code(), Some(0), "{}", server.log());
    server.wait_gone(Instant::now(), SOON);
}

#[test]
fn a_second_signal_ends_at_once() {
    for second in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = ServerOptions::mock(20).start();
        let stream = Stream::open(server.base_url(), "/v1/completions", long_completion(4000));
        stream.wait_started();
        server.signal("nano-serve", Signal::SIGTERM);
        let health = format!("{}/health", server.base_url());
        crate::server::wait_for("the drain's begin", Duration::from_secs(1), || {
            get(&health)
                .map_or(true, |(status, _)| status == 503)
                .then_some(())
        });
        let told = server.signal("nano-serve", second);
        stream.rest(told + SOON);
        assert_eq!(server.wait_exit(SOON).code(), Some(0), "{}", server.log());
        server.wait_gone(told, SOON);
    }
}

#[test]
fn children_leave_a_group_s_signals_to_the_launcher() {
    let mut server = ServerOptions::mock(20).start();
    let stream = Stream::open(server.base_url(), "/v1/completions", long_completion(100));
    stream.wait_started();
    for program in ["nano-frontend", "nano-core", "nano-worker"] {
        server.signal(program, Signal::SIGINT);
        server.signal(program, Signal::SIGTERM);
    }
    let told = server.signal("nano-serve", Signal::SIGTERM);
    let events = stream.rest(told + Duration::from_secs(20));
    assert!(events.contains(&StreamEvent::Done), "drained: {events:?}");
    assert_eq!(server.wait_exit(SOON).code(), Some(0));
}

#[test]
fn a_port_in_use_is_one_line_and_exit_code_2() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let options = ServerOptions::mock(0).args(&["--port", &port]);
    let (code, log) = refusal(options, SOON);
    assert_eq!(code, Some(2), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains(&port) && log.contains("in use"), "{log}");
}

#[test]
fn the_port_is_free_again_after_a_crash() {
    let mut first = ServerOptions::mock(20).start();
    let stream = Stream::open(first.base_url(), "/v1/completions", long_completion(4000));
    stream.wait_started();
    let (_, port) = first.base_url().rsplit_once(':').expect("a port");
    let options = ServerOptions::mock(0).args(&["--port", port]);
    let killed = first.signal("nano-frontend", Signal::SIGKILL);
    first.wait_gone(killed, SOON);
    first.wait_exit(SOON);
    let second = options.start();
    let (status, _) = get(&format!("{}/health", second.base_url())).expect("answered");
    assert_eq!(status, 200);
}

#[test]
fn what_is_wrong_with_the_command_line_is_one_line_and_exit_code_2() {
    let unwritable = "/proc/no-such-place";
    for (args, named) in [
        (&["--no-such-flag"][..], "--no-such-flag"),
        (&["--max-num-seqs", "0"], "--max-num-seqs"),
        (&["--api-key", ""], "--api-key"),
        (&["--api-key", "two words"], "--api-key"),
        (&["--host", "no.such.host.invalid"], "--host"),
        (&["--chat-template", "/no/such/file"], "--chat-template"),
        (&["--profiler-dir", unwritable], unwritable),
    ] {
        let (code, log) = refusal(ServerOptions::mock(0).args(args), Duration::from_secs(20));
        assert_eq!(code, Some(2), "{args:?}: {log}");
        assert_eq!(log.lines().count(), 1, "{args:?}: {log}");
        assert!(log.contains(named), "{args:?}: {log}");
    }
    let neither = ServerOptions::mock(0).env("NANO_ENABLE_MULTIPROCESSING", "maybe");
    let (code, log) = refusal(neither, Duration::from_secs(20));
    assert_eq!(code, Some(2), "{log}");
    assert!(
        log.contains("NANO_ENABLE_MULTIPROCESSING=\"maybe\""),
        "{log}"
    );
}

#[test]
fn a_log_that_is_full_changes_no_exit_code() {
    let mut server = ServerOptions::real(Path::new("/no/such/model"))
        .spawn_by_shell(r#"exec "$0" "$@" 2> /dev/full"#);
    let exit = server.wait_exit(Duration::from_secs(20));
    assert_eq!(exit.code(), Some(2));
}

#[test]
fn a_wrong_model_is_one_line_that_names_the_file_and_exit_code_2() {
    let broken = tempfile::tempdir().expect("temporary directory");
    let copy = |name: &str| {
        let to = broken.path().join(name);
        std::fs::copy(golden("models/tiny-llama").join(name), &to).expect("copied");
        to
    };
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ] {
        copy(name);
    }
    let weights = copy("model.safetensors");
    let whole = std::fs::metadata(&weights).expect("copied").len();
    let file = std::fs::File::options()
        .write(true)
        .open(&weights)
        .expect("ours");
    file.set_len(whole / 2).expect("cut");
    let models = [
        (Path::new("/no/such/model").to_owned(), "/no/such/model"),
        (golden("templates.json"), "templates.json"),
        (broken.path().to_owned(), "model.safetensors"),
    ];
    for (model, named) in models {
        let (code, log) = refusal(ServerOptions::real(&model), Duration::from_secs(20));
        assert_eq!(code, Some(2), "{log}");
        assert!(log.contains(named), "{log}");
        let last = log.lines().last().unwrap_or_default();
        assert!(last.starts_with("nano-serve: "), "{log}");
    }
}

#[test]
fn the_children_say_that_they_are_not_to_be_started_by_hand() {
    let installed = crate::programs::install(crate::programs::WorkerProgram::Mock);
    for program in ["nano-frontend", "nano-core", "nano-worker"] {
        let output = std::process::Command::new(installed.path().join(program))
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("nano-serve"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
