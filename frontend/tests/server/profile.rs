//! The profiler's paths, with the test in the launcher's place.

use crate::support::{PATIENCE, Server, config, request};
use nano_ipc::profile::{
    Part, ProfileAnswer, ProfileCommand, ProfilePhase, ProfileState, SessionOfProcess,
    SessionOfServer, StartProfile,
};
use nano_ipc::role::Role;
use nano_ipc::to_launcher::ToLauncher;
use nano_trace::{SessionState, SessionStatus};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

struct Answer {
    status: u16,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("JSON")
    }
}

fn answered(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let response = request(addr, method, path, headers, body);
    Answer {
        status: response.status,
        text: response.text(),
    }
}

/// Sends a request, answers the question that it becomes, if it becomes one.
fn asked(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    answer: ProfileAnswer,
) -> (Answer, Option<ProfileCommand>) {
    let addr: SocketAddr = server.addr;
    thread::scope(|scope| {
        let client = scope.spawn(|| answered(addr, method, path, headers, body));
        loop {
            if client.is_finished() {
                return (client.join().expect("no panic"), None);
            }
            let report = server
                .reports
                .recv_timeout(std::time::Duration::from_millis(5));
            if let Ok(ToLauncher::Profile { id, command }) = report {
                server.lifecycle.profile().answer(id, answer);
                return (client.join().expect("no panic"), Some(command));
            }
        }
    })
}

fn state() -> ProfileAnswer {
    let process = |role, part| SessionOfProcess { role, pid: 7, part };
    let status = SessionStatus {
        name: "x".parse().expect("a name"),
        file: "/traces/x".into(),
        state: SessionState::Failed("disk full".to_owned()),
        bytes: 1,
        events: 2,
        drops: 3,
        late_records: 0,
        lost_samples: 0,
        unsampled_threads: 0,
        samples: Some(Err("forbidden".to_owned())),
        since: SystemTime::UNIX_EPOCH,
    };
    let session = SessionOfServer {
        name: "x".parse().expect("a name"),
        processes: vec![
            process(Role::Core, Part::Told(status)),
            process(Role::Worker { rank: 0 }, Part::Silent),
        ],
    };
    ProfileAnswer::Done(ProfileState {
        phase: ProfilePhase::Recording,
        sessions: vec![session.clone(), session],
        notes: vec!["a note".to_owned()],
        flight: None,
    })
}

#[test]
fn no_body_an_empty_form_and_json_of_any_type_begin_a_session() {
    let (server, _core) = Server::start(config());
    let form = ("content-type", "application/x-www-form-urlencoded");
    let typed = ("content-type", "application/json");
    for (headers, body) in [
        (&[][..], &b""[..]),
        (&[form], b""),
        (&[typed], b""),
        (&[typed], b" \r\n"),
        (&[typed], b"null"),
        (&[form], b"{}"),
        (&[("content-type", "text/plain")], b"{\"unknown\": 1}"),
    ] {
        for path in ["/start_profile", "/v1/start_profile"] {
            let (response, command) = asked(&server, "POST", path, headers, body, state());
            assert_eq!(response.status, 200, "{}", response.text);
            let ignored = match body {
                b"{\"unknown\": 1}" => vec!["unknown".to_owned()],
                _ => Vec::new(),
            };
            let start = StartProfile {
                ignored,
                ..StartProfile::default()
            };
            assert_eq!(command, Some(ProfileCommand::Start(Box::new(start))));
        }
    }
}

#[test]
fn bodies_that_are_wrong_do_not_reach_the_launcher() {
    let (server, _core) = Server::start(config());
    let long = format!("{{\"name\": \"{}\"}}", "x".repeat(1 << 19));
    for body in [
        &b"num_steps=5"[..],
        b"[]",
        b"{\"num_steps\": 0}",
        b"{\"name\": \"\xff\"}",
        b"{\"name\": \"a\\u0000b\"}",
        b"{\"name\": \"\\ud800\"}",
        long.as_bytes(),
    ] {
        let (response, command) = asked(&server, "POST", "/start_profile", &[], body, state());
        let text = &response.text;
        assert_eq!((response.status, command), (400, None), "{text}");
        assert!(text.len() < 4096, "{}", text.len());
    }
}

#[test]
fn the_answer_names_every_process() {
    let (server, _core) = Server::start(config());
    let (response, _) = asked(&server, "GET", "/profile/status", &[], b"", state());
    let view = response.json();
    assert_eq!(view["state"], "recording");
    assert_eq!(view["session"], "x");
    assert_eq!(view["files"], json!(["/traces/x"]));
    assert_eq!(view["notes"][0], "a note");
    assert_eq!(view["earlier"][0]["session"], "x");
    let expected = json!([
        {
            "process": "core", "pid": 7, "file": "/traces/x", "bytes": 1, "events": 2,
            "drops": 3, "late_records": 0, "since": "1970-01-01T00:00:00.000Z",
            "state": "failed", "reason": "disk full", "no_samples": "forbidden",
        },
        {"process": "worker-0", "pid": 7, "state": "silent"},
    ]);
    assert_eq!(view["processes"], expected);
}

#[test]
fn what_the_launcher_refuses_has_its_status() {
    let (server, _core) = Server::start(config());
    let busy = ProfileAnswer::Busy("x".parse().expect("a name"));
    for (answer, status, word) in [
        (ProfileAnswer::Off, 404, "NANO_PROFILER_DIR"),
        (busy, 409, "session x"),
        (ProfileAnswer::NoProcess, 400, "processes"),
        (
            ProfileAnswer::Failed("disk full".to_owned()),
            503,
            "disk full",
        ),
    ] {
        let (response, _) = asked(&server, "POST", "/start_profile", &[], b"", answer);
        let text = &response.text;
        assert_eq!(response.status, status, "{text}");
        assert!(text.contains(word), "{text}");
    }
    let failed = ProfileAnswer::Failed("disk full".to_owned());
    let (response, _) = asked(&server, "POST", "/profile/dump", &[], b"", failed);
    let text = &response.text;
    assert_eq!(response.status, 503, "{text}");
    let word = "the dump was not written: disk full";
    assert!(text.contains(word), "{text}");
    let (response, _) = asked(
        &server,
        "POST",
        "/stop_profile",
        &[],
        b"",
        ProfileAnswer::Off,
    );
    assert_eq!(response.status, 404);
    let (response, _) = asked(
        &server,
        "GET",
        "/profile/status",
        &[],
        b"",
        ProfileAnswer::Off,
    );
    assert_eq!(response.status, 200);
    assert_eq!(response.json()["state"], "off");
}

#[test]
fn only_who_asks_waits_for_whole_files() {
    let (server, _core) = Server::start(config());
    for (query, wait) in [
        ("", false),
        ("?wait=false", false),
        ("?wait=0&other=1", false),
        ("?wait=true", true),
        ("?wait=1", true),
        ("?wait", true),
    ] {
        let path = format!("/stop_profile{query}");
        let (response, command) = asked(&server, "POST", &path, &[], b"", state());
        assert_eq!(response.status, 200, "{path}: {}", response.text);
        assert_eq!(command, Some(ProfileCommand::Stop { wait }), "{path}");
    }
    for query in ["?wait=perhaps", "?wait=1&wait=2"] {
        let path = format!("/stop_profile{query}");
        let (response, command) = asked(&server, "POST", &path, &[], b"", state());
        assert_eq!((response.status, command), (400, None), "{path}");
    }
}

#[test]
fn a_session_s_name_is_no_path() {
    let (server, _core) = Server::start(config());
    for name in [
        "..%2Fx",
        "%2Fetc%2Fpasswd",
        "%00",
        "%ff",
        "a%0Ab",
        "",
        "x/../y",
    ] {
        let path = format!("/profile/trace?session={name}");
        let (response, command) = asked(&server, "GET", &path, &[], b"", state());
        assert!(
            matches!(response.status, 400 | 404),
            "{name}: {}",
            response.text
        );
        assert_eq!(command, None, "{name}");
    }
}

/// Sends the head of a request for a trace, and waits for the answer's first byte.
fn begin_to_fetch(server: &Server, dir: &Path) -> TcpStream {
    let mut client = TcpStream::connect(server.addr).expect("it listens");
    let head = b"GET /profile/trace HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    client.write_all(head).expect("it reads");
    let report = server.reports.recv_timeout(PATIENCE);
    let Ok(ToLauncher::Profile { id, .. }) = report else {
        panic!("{report:?}");
    };
    let answer = ProfileAnswer::Files {
        dir: dir.to_owned(),
        run: "0000000000000abc".to_owned(),
        session: "x".parse().expect("a name"),
        roles: vec!["core".to_owned()],
    };
    server.lifecycle.profile().answer(id, answer);
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    client.peek(&mut [0]).expect("an answer");
    client
}

#[test]
fn clients_that_fetch_nothing_lose_their_places() {
    let dir = tempfile::tempdir().expect("temporary directory");
    // Empty packets: more than sockets hold.
    let file = dir.path().join("x.core.0000000000000abc-1.pftrace");
    std::fs::write(file, [0x0a, 0].repeat(16 << 20)).expect("written");
    let (server, _core) = Server::start(config());
    let fetch = || {
        let mut client = begin_to_fetch(&server, dir.path());
        let mut line = String::new();
        let mut reader = BufReader::new(&mut client);
        reader.read_line(&mut line).expect("a status line");
        (line.split(' ').nth(1).map(str::to_owned), client)
    };
    let idle: Vec<_> = (0..4).map(|_| fetch()).collect();
    assert!(
        idle.iter()
            .all(|(status, _)| status.as_deref() == Some("200"))
    );
    assert_eq!(fetch().0.as_deref(), Some("429"));
    let begun = Instant::now();
    while fetch().0.as_deref() == Some("429") {
        assert!(begun.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(100));
    }
    drop(idle);
}

#[test]
fn the_profiler_has_a_key_of_its_own_under_v1_too() {
    let key = |key: &str| Some(key.to_owned());
    for (api_key, profile_key) in [(None, key("p")), (key("a"), None), (key("a"), key("p"))] {
        let mut config = config();
        config.api_key = api_key;
        config.profile_api_key = profile_key.clone();
        let (server, _core) = Server::start(config);
        for path in ["/profile/status", "/v1/profile/status"] {
            for given in [None, Some("Bearer a"), Some("Bearer p")] {
                let header = given.map(|given| ("authorization", given));
                let headers = header.as_slice();
                let (response, _) = asked(&server, "GET", path, headers, b"", state());
                let right = profile_key.is_none() || given == Some("Bearer p");
                let expected = if right { 200 } else { 401 };
                assert_eq!(
                    response.status, expected,
                    "{path} {given:?} {profile_key:?}"
                );
            }
        }
    }
}

#[test]
fn a_launcher_that_does_not_answer_is_a_503_and_questions_are_bounded() {
    let (server, _core) = Server::start(config());
    let begun = std::time::Instant::now();
    let response = answered(server.addr, "GET", "/profile/status", &[], b"");
    assert_eq!(response.status, 503, "{}", response.text);
    assert!(begun.elapsed() < PATIENCE);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let ask = || request(server.addr, "GET", "/profile/status", &[], b"").status;
        let clients: Vec<_> = (0..63).map(|_| scope.spawn(ask)).collect();
        let ends = clients.into_iter().map(|client| client.join());
        ends.map(|status| status.expect("no panic")).collect()
    });
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    let response = answered(server.addr, "GET", "/profile/status", &[], b"");
    assert_eq!(response.status, 429, "{}", response.text);
}
