//! What clients send, and what they take for success.

use super::support::{
    PATIENCE, all, ask, auto, dir, files, judge, judge_session, manual, raw, start, states, status,
    stop, stop_whole, tiny, wait_idle,
};
use crate::client::{get, long_completion, post};
use crate::server::ServerOptions;
use nano_trace::check::OpenSlices;
use serde_json::json;
use std::fs;
use std::path::Path;

/// A request as bytes.
fn bytes(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    for header in headers {
        head += header;
        head += "\r\n";
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

fn with_length(path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}", body.len());
    let content_type = format!("Content-Type: {content_type}");
    bytes("POST", path, &[&content_type, &length], body)
}

#[test]
fn every_client_gets_what_it_takes_for_success() {
    let dir = dir();
    let server = manual(ServerOptions::mock(1), dir.path()).start();
    // Python's urllib, as MLCommons' benchmark uses it.
    let urllib = |path: &str| {
        let headers = [
            "Accept-Encoding: identity",
            "Content-Type: application/x-www-form-urlencoded",
            "Content-Length: 0",
            "User-Agent: Python-urllib/3.12",
            "Connection: close",
        ];
        bytes("POST", path, &headers, b"")
    };
    // aiohttp, as `vllm bench serve` uses it.
    let aiohttp = |path: &str| {
        let headers = [
            "Accept: */*",
            "Accept-Encoding: gzip, deflate",
            "Content-Length: 0",
            "Content-Type: application/octet-stream",
        ];
        bytes("POST", path, &headers, b"")
    };
    let json = |path: &str, body: &str| with_length(path, "application/json", body.as_bytes());
    let curl = |path: &str| bytes("POST", path, &["Accept: */*"], b"");
    let older_vllm = r#"{"model": "m", "prompt": "hi", "max_tokens": 16, "stream": true,
        "stream_options": {"include_usage": true}, "ignore_eos": true, "temperature": 0.0}"#;
    let sglang = r#"{"output_dir": "/etc/nano", "num_steps": "5", "start_step": null,
        "activities": ["CPU", "GPU"], "profile_by_stage": false, "merge_profiles": false,
        "profile_prefix": null, "profile_id": "1796058303.5", "record_shapes": true, "with_stack": true}"#;
    let vllm = r#"{"profile_prefix": "run.1", "delay_iterations": 0, "max_iterations": 0}"#;
    for (what, begin, end) in [
        ("urllib", urllib("/start_profile"), urllib("/stop_profile")),
        (
            "aiohttp",
            aiohttp("/start_profile"),
            aiohttp("/stop_profile"),
        ),
        (
            "megatron",
            curl("/v1/start_profile"),
            curl("/v1/stop_profile"),
        ),
        ("curl", curl("/start_profile"), curl("/stop_profile")),
        (
            "older vLLM",
            json("/start_profile", older_vllm),
            json("/stop_profile", older_vllm),
        ),
        (
            "SGLang",
            json("/start_profile", sglang),
            curl("/stop_profile"),
        ),
        ("vLLM", json("/start_profile", vllm), curl("/stop_profile")),
    ] {
        for bytes in [begin, end] {
            let (status, body) = raw(&server, &bytes);
            let body = String::from_utf8(body).expect("UTF-8");
            assert_eq!(status, 200, "{what}: {body}");
        }
    }
    let answer = start(&server, json!({"activities": ["Gpu", "samples"]}));
    let notes = answer["notes"].to_string();
    assert!(notes.contains("gpu"), "{notes}");
    for process in answer["processes"].as_array().expect("processes") {
        assert_eq!(process["sample_hz"], 99, "{process}");
    }
    assert!(!Path::new("/etc/nano").exists());
}

#[test]
fn sessions_exclude_each_other_and_a_stop_is_always_right() {
    let dir = dir();
    let server = manual(ServerOptions::mock(1), dir.path()).start();
    assert_eq!(status(&server)["state"], "idle");
    assert_eq!(stop(&server)["state"], "idle", "nothing to end");
    let first = start(&server, json!({"name": "same"}));
    assert_eq!(first["session"], "same");
    assert_eq!(first["state"], "recording");
    assert_eq!(states(&first), all("recording"));
    assert_eq!(first["files"].as_array().expect("files").len(), 3);
    let (code, busy) = ask(&server, "/v1/start_profile", &json!({"name": "other"}));
    assert_eq!(code, 409, "{busy}");
    assert!(busy.to_string().contains("session same"), "{busy}");
    stop(&server);
    stop(&server);
    let second = start(&server, json!({"name": "same"}));
    assert_eq!(second["session"], "same-2");
    stop_whole(&server);
    let third = start(&server, json!({}));
    let name = third["session"].as_str().expect("a name");
    assert!(name.len() == 20 && name.ends_with('Z'), "{name}");
    let last = stop_whole(&server);
    assert_eq!(last["state"], "idle");
    assert_eq!(states(&last), all("finished"));
    for process in last["processes"].as_array().expect("processes") {
        for key in ["pid", "file", "bytes", "events", "drops", "since"] {
            assert!(!process[key].is_null(), "{key}: {process}");
        }
        let path = process["file"].as_str().expect("a path");
        let bytes = fs::metadata(path).expect("the file").len();
        assert_eq!(process["bytes"], bytes, "{process}");
    }
    let earlier = status(&server)["earlier"].to_string();
    assert!(earlier.contains("same-2"), "{earlier}");
    for session in ["same", "same-2", name] {
        assert_eq!(files(dir.path(), session).len(), 3, "{session}");
    }
}

#[test]
fn without_a_directory_the_profiler_is_off() {
    let server = ServerOptions::mock(1).start();
    for (path, is_post) in [
        ("/start_profile", true),
        ("/v1/stop_profile", true),
        ("/profile/trace", false),
    ] {
        let url = format!("{}{path}", server.base_url());
        let (status, text) = match is_post {
            true => post(&url, &json!({})).map(|(status, json)| (status, json.to_string())),
            false => get(&url),
        }
        .expect("answered");
        assert_eq!(status, 404, "{text}");
        assert!(text.contains("NANO_PROFILER_DIR"), "{text}");
    }
    assert_eq!(status(&server)["state"], "off");
}

#[test]
fn keys_guard_what_they_are_for() {
    let dir = dir();
    let server = manual(ServerOptions::mock(1), dir.path())
        .args(&["--api-key", "a", "--profile-api-key", "p"])
        .start();
    for (key, path, expected) in [
        ("p", "/start_profile", 200),
        ("p", "/v1/stop_profile", 200),
        ("a", "/start_profile", 401),
        ("a", "/v1/start_profile", 401),
    ] {
        let key = format!("Authorization: Bearer {key}");
        let request = bytes("POST", path, &[&key, "Content-Length: 0"], b"");
        assert_eq!(raw(&server, &request).0, expected, "{key} {path}");
    }
    // Nobody reads them in a trace.
    let files = files(dir.path(), &newest(dir.path()));
    for (_, path) in files {
        let bytes = fs::read(path).expect("readable");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("--profile-api-key ***"), "its command line");
    }
}

fn newest(dir: &Path) -> String {
    let entry = fs::read_dir(dir).expect("there").next().expect("a file");
    let name = entry.expect("an entry").file_name();
    let name = name.to_str().expect("UTF-8").to_owned();
    let name: nano_trace::TraceFileName = name.parse().expect("a trace");
    name.session
}

#[test]
fn one_download_holds_the_whole_session_while_it_runs_and_afterwards() {
    let dir = dir();
    let server = auto(tiny(), dir.path()).start();
    let download = |query: &str| {
        let address = server.base_url().strip_prefix("http://").expect("a URL");
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        let request =
            format!("GET /profile/trace{query} HTTP/1.0\r\nHost: x\r\nConnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("it reads");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut answer = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut answer).expect("an answer");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.expect("a head");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        (head, answer[end + 4..].to_vec())
    };
    let check = |body: &[u8], open: &OpenSlices| {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), body).expect("written");
        judge(&[file.path().to_owned()], open)
    };
    let complete = || {
        let url = format!("{}/v1/completions", server.base_url());
        let (status, answer) = post(&url, &long_completion(5)).expect("answered");
        assert_eq!(status, 200, "{answer}");
    };
    complete();
    let (head, body) = download("");
    assert!(
        head.contains("200 OK") && head.contains("\"auto.pftrace\""),
        "{head}"
    );
    check(&body, &OpenSlices::Any);

    start(&server, json!({"name": "mine"}));
    complete();
    stop_whole(&server);
    let (head, body) = download("?session=mine");
    assert!(head.contains("200 OK"), "{head}");
    let report = check(&body, &OpenSlices::None);
    let requests = report.timeline.slices_of(nano_trace::Event::Request);
    assert_eq!(requests.count(), 1);
    let all: usize = files(dir.path(), "mine")
        .iter()
        .map(|(_, path)| fs::read(path).expect("readable").len())
        .sum();
    assert_eq!(body.len(), all, "whole files have no tails");
    assert_eq!(download("").1, body, "the newest");
    for (role, path) in files(dir.path(), "mine") {
        fs::remove_file(path).expect("ours");
        let (head, _) = download("");
        match &*role {
            "core" => assert!(head.contains("x-nano-profile-missing: core\r\n"), "{head}"),
            "frontend" => assert!(head.contains("-missing: core, frontend\r\n"), "{head}"),
            _ => assert!(head.contains("404 Not Found"), "{head}"),
        }
    }
    for unknown in ["?session=none", "?session=..%2F..%2Fetc%2Fpasswd"] {
        assert!(download(unknown).0.contains("404"), "{unknown}");
    }
    wait_idle(&server);
}

/// Everything below a directory.
fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("readable") {
        let path = entry.expect("an entry").path();
        found.push(path.display().to_string());
        if path.is_dir() {
            found.extend(tree(&path));
        }
    }
    found.sort();
    found
}

#[test]
fn hostile_names_bodies_and_headers_do_no_harm() {
    let parent = dir();
    let dir = parent.path().join("traces");
    let server = manual(ServerOptions::mock(1), &dir).start();
    let long = "x".repeat(1 << 20);
    let name = |name: &str| format!("{{\"name\": \"{name}\"}}").into_bytes();
    let bodies: Vec<Vec<u8>> = vec![
        name("../x"),
        name("/etc/passwd"),
        name("a/../../x"),
        name("a\\u0000b"),
        name("a\\nb"),
        name("\\ud800"),
        name(".."),
        name(""),
        name(&long),
        b"{\"name\": \"\xff\xfe\"}".to_vec(),
        b"{\"profile_prefix\": \"../../x\"}".to_vec(),
        b"{\"schedule\": \"\x01\x02\"}".to_vec(),
        format!("{{\"schedule\": \"{long}\"}}").into_bytes(),
        format!("{{\"processes\": [\"{long}\"]}}").into_bytes(),
        format!("{{\"activities\": [\"{long}\"]}}").into_bytes(),
        format!("{{\"num_steps\": \"{long}\"}}").into_bytes(),
        format!("{{\"num_steps\": {}}}", "9".repeat(1 << 20)).into_bytes(),
        format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20)).into_bytes(),
        b"num_steps=5&name=x".to_vec(),
        vec![0; 1000],
        vec![0xff; 1000],
    ];
    for body in &bodies {
        let request = with_length("/start_profile", "application/json", body);
        let (status, answer) = raw(&server, &request);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(status, 400, "{shown}: {answer}");
        assert!(answer.len() < 8192, "{shown}: {} bytes", answer.len());
    }
    for header in [
        format!("x-request-id: {}", "\u{1}".repeat(10)),
        format!("x-request-id: {}", "y".repeat(4000)),
        "x-nano-profile: \u{7f}".to_owned(),
        "x-nano-profile: 1, 1".to_owned(),
        "traceparent: 00-zz".to_owned(),
        "Content-Type: \u{ff}\u{fe}".to_owned(),
    ] {
        let request = bytes(
            "POST",
            "/start_profile",
            &[&header, "Content-Length: 0"],
            b"",
        );
        let (status, _) = raw(&server, &request);
        assert!(
            matches!(status, 200 | 400 | 409 | 431),
            "{header:?}: {status}"
        );
        stop(&server);
    }
    // Requests' own names, while they are recorded.
    start(&server, json!({"name": "ids"}));
    let long = "z".repeat(1 << 20);
    let ids: [&[u8]; 9] = [
        b"../../etc/passwd",
        b"a/b\\c",
        b"\"quoted\"; <script>",
        b"%00%2e%2e",
        b"tab\there",
        b"\xff\xfe\x80",
        b"\x01\x02",
        b"",
        long.as_bytes(),
    ];
    for id in ids {
        for header in [&b"x-request-id: "[..], b"traceparent: "] {
            let body = long_completion(2).to_string();
            let length = format!("Content-Length: {}\r\n", body.len());
            let head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
            let request = [
                head,
                length.as_bytes(),
                header,
                id,
                b"\r\n\r\n",
                body.as_bytes(),
            ]
            .concat();
            let (status, _) = raw(&server, &request);
            let shown = String::from_utf8_lossy(&id[..id.len().min(20)]);
            assert!(matches!(status, 200 | 400 | 431), "{shown}: {status}");
        }
    }
    stop_whole(&server);
    judge_session(&dir, "ids", 3);
    // A name that is one, and tries to look like others.
    for harmless in ["a..b", "x.pftrace", "core.0-1.pftrace", "auto", "-"] {
        let (status, answer) = ask(&server, "/start_profile", &json!({"name": harmless}));
        let expected = if harmless == "-" { 400 } else { 200 };
        assert_eq!(status, expected, "{harmless}: {answer}");
        stop_whole(&server);
    }
    let strays: Vec<String> = tree(parent.path())
        .into_iter()
        .filter(|path| !path.ends_with("/traces") && !path.ends_with(".pftrace"))
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
    let inside = tree(parent.path()).len();
    assert_eq!(inside, tree(&dir).len() + 1, "all in the directory itself");
    assert!(!server.log().contains("panic"), "{}", server.log());
    let (status, _) = get(&format!("{}/health", server.base_url())).expect("answered");
    assert_eq!(status, 200);
}
