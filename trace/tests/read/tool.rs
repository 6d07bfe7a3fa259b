//! `nano-trace` as a user runs it.

use crate::good_trace::{bytes, good_trace};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, SystemTime},
};

fn nano_trace(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nano-trace"))
        .current_dir(dir)
        .args(args)
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn dir_of_good_trace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let files = good_trace();
    for (role, packets) in [
        ("core", &files.core),
        ("frontend", &files.frontend),
        ("worker-0", &files.worker),
    ] {
        let path = dir.path().join(format!("auto.{role}.k3x9-1.pftrace"));
        fs::write(path, bytes(packets)).unwrap();
    }
    dir
}

#[test]
fn merge_then_check_a_directory() {
    let dir = dir_of_good_trace();
    let merged = nano_trace(dir.path(), &["merge", ".", "-o", "all.pftrace"]);
    assert_eq!(merged.status.code(), Some(0), "{}", err(&merged));
    assert!(out(&merged).contains("all.pftrace: 3 files"));
    for paths in [["."], ["all.pftrace"]] {
        let checked = nano_trace(dir.path(), &[&["check"], &paths[..]].concat());
        assert_eq!(checked.status.code(), Some(0), "{}", out(&checked));
    }
}

#[test]
fn a_dash_is_standard_output_with_nothing_else_in_it() {
    let dir = dir_of_good_trace();
    let file = nano_trace(dir.path(), &["merge", ".", "-o", "all.pftrace"]);
    assert_eq!(file.status.code(), Some(0), "{}", err(&file));
    let whole = fs::read(dir.path().join("all.pftrace")).unwrap();
    let before = fs::read_dir(dir.path()).unwrap().count();
    for output in ["-", "/proc/self/fd/1"] {
        let merged = nano_trace(dir.path(), &["merge", ".", "-o", output]);
        assert_eq!(merged.status.code(), Some(0), "{}", err(&merged));
        assert_eq!(merged.stdout, whole);
        assert!(err(&merged).contains("3 files"), "{}", err(&merged));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before);
    }
}

#[test]
fn a_directory_given_twice_is_checked_once() {
    let dir = dir_of_good_trace();
    let once = nano_trace(dir.path(), &["check", "."]);
    let twice = nano_trace(dir.path(), &["check", ".", "./"]);
    assert_eq!(twice.status.code(), Some(0), "{}", out(&twice));
    assert_eq!(out(&twice), out(&once));
}

#[test]
fn check_fails_and_tells_the_rule() {
    let dir = dir_of_good_trace();
    let path = dir.path().join("auto.core.k3x9-1.pftrace");
    let mut core = fs::read(&path).unwrap();
    core.pop();
    fs::write(&path, core).unwrap();
    let checked = nano_trace(dir.path(), &["check", "."]);
    assert_eq!(checked.status.code(), Some(1));
    let text = out(&checked);
    assert!(text.contains("auto.core.k3x9-1.pftrace: packet"), "{text}");
    assert!(text.contains("tail-cut"), "{text}");
    assert!(text.contains("slice-open"), "{text}");
    assert!(!text.contains("--allow-open"), "not that alone: {text}");
    let killed = nano_trace(dir.path(), &["check", ".", "--killed", "12"]);
    assert_eq!(killed.status.code(), Some(1));
    assert!(!out(&killed).contains("slice-open"), "{}", out(&killed));
}

#[test]
fn what_only_a_running_process_lacks_is_told_how_to_be_allowed() {
    let dir = dir_of_good_trace();
    let mut core = good_trace().core;
    core.pop();
    fs::write(dir.path().join("auto.core.k3x9-1.pftrace"), bytes(&core)).unwrap();
    let checked = nano_trace(dir.path(), &["check", "."]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(out(&checked).contains("--allow-open"), "{}", out(&checked));
    let allowed = nano_trace(dir.path(), &["check", ".", "--allow-open"]);
    assert_eq!(allowed.status.code(), Some(0), "{}", out(&allowed));
}

#[test]
fn info_tells_what_is_in_a_file() {
    let dir = dir_of_good_trace();
    let info = nano_trace(dir.path(), &["info", "."]);
    assert_eq!(info.status.code(), Some(0), "{}", err(&info));
    let text = out(&info);
    for expected in [
        "role       worker 0",
        "session    auto",
        "run        k3x9",
        "process    11 nano-frontend",
        "interval   0.004 s, from 5.000100 to 5.004010 s after boot",
        "requests   1",
        "drops      0",
        "fact       version = 0.1.0",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
}

#[test]
fn the_newest_session_is_merged_under_its_name() {
    let dir = dir_of_good_trace();
    let core = fs::read(dir.path().join("auto.core.k3x9-1.pftrace")).unwrap();
    fs::write(dir.path().join("load.core.k3x9-1.pftrace"), &core).unwrap();
    let old = SystemTime::now() - Duration::from_secs(60);
    for role in ["core", "frontend", "worker-0"] {
        let path = dir.path().join(format!("auto.{role}.k3x9-1.pftrace"));
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(old).unwrap();
    }
    let merged = nano_trace(dir.path(), &["merge", "."]);
    assert_eq!(merged.status.code(), Some(0), "{}", err(&merged));
    assert_eq!(
        fs::read(dir.path().join("load.perfetto-trace")).unwrap(),
        core
    );
    let said = err(&merged);
    assert!(
        said.contains("took session load of run k3x9 (1 file)"),
        "{said}"
    );
    assert!(
        said.contains("left out auto of run k3x9 (3 files)"),
        "{said}"
    );
    let named = nano_trace(dir.path(), &["merge", ".", "--session", "auto", "-o", "a"]);
    assert!(out(&named).contains("a: 3 files"), "{}", out(&named));
    let all = nano_trace(dir.path(), &["merge", ".", "--all", "-o", "b"]);
    assert!(out(&all).contains("b: 4 files"), "{}", out(&all));
    let none = nano_trace(dir.path(), &["merge", ".", "--session", "../x", "-o", "c"]);
    assert_eq!(none.status.code(), Some(2));
    let info = out(&nano_trace(dir.path(), &["info", "."]));
    assert!(
        info.starts_with("session auto of run k3x9 (3 files): "),
        "{info}"
    );
    assert!(
        info.contains("session load of run k3x9 (1 file): "),
        "{info}"
    );
}

#[test]
fn what_a_client_drove_is_merged_with_it_under_its_own_name() {
    let dir = dir_of_good_trace();
    // Begun before the session ended, and ended after it began: the good trace's
    // clock says how long ago that was.
    let client = fs::read(dir.path().join("auto.core.k3x9-1.pftrace")).unwrap();
    fs::write(dir.path().join("client.bench.c1-2.pftrace"), client).unwrap();
    let merged = nano_trace(dir.path(), &["merge", "."]);
    assert_eq!(merged.status.code(), Some(0), "{}", err(&merged));
    let said = out(&merged);
    assert!(said.contains("auto.perfetto-trace: 4 files"), "{said}");
    let session = ["merge", ".", "--session", "client"];
    let alone = out(&nano_trace(dir.path(), &session));
    assert!(alone.contains("client.perfetto-trace: 1 files"), "{alone}");
}

#[test]
fn open_serves_the_merged_trace_once_to_the_viewer() {
    let dir = dir_of_good_trace();
    nano_trace(dir.path(), &["merge", ".", "-o", "all"]);
    let whole = fs::read(dir.path().join("all")).unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_nano-trace"))
        .current_dir(dir.path())
        .args(["open", ".", "--port", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut link = String::new();
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    lines.read_line(&mut link).unwrap();
    let url = link
        .trim()
        .strip_prefix("https://ui.perfetto.dev/#!/?url=http://");
    let (address, name) = url.unwrap().split_once('/').unwrap();
    assert_eq!(name, "auto.perfetto-trace");
    let ask = |line: &str| {
        let mut connection = TcpStream::connect(address).unwrap();
        write!(
            connection,
            "{line} HTTP/1.1\r\nOrigin: https://ui.perfetto.dev\r\n\r\n"
        )
        .unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        assert!(head.contains("\r\nAccess-Control-Allow-Origin: https://ui.perfetto.dev\r\n"));
        (head, answer[end..].to_vec())
    };
    for wrong in [
        "GET /",
        "GET /../all",
        "POST /auto.perfetto-trace",
        "nonsense",
    ] {
        let (head, body) = ask(wrong);
        assert!(
            head.starts_with("HTTP/1.1 404 ") && body.is_empty(),
            "{wrong}: {head}"
        );
    }
    // One that says nothing harms nobody.
    let _idle = TcpStream::connect(address).unwrap();
    drop(TcpStream::connect(address).unwrap());
    let (head, body) = ask("HEAD /auto.perfetto-trace");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && body.is_empty(),
        "{head}"
    );
    assert!(
        ask("OPTIONS /auto.perfetto-trace")
            .0
            .starts_with("HTTP/1.1 204 ")
    );
    let (head, body) = ask("GET /auto.perfetto-trace");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", whole.len())));
    assert!(body == whole);
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_reader_that_has_enough_ends_the_output_silently() {
    let dir = dir_of_good_trace();
    let mut info = Command::new(env!("CARGO_BIN_EXE_nano-trace"))
        .current_dir(dir.path())
        .args(["info", "."])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(info.stdout.take());
    let output = info.wait_with_output().unwrap();
    assert_eq!(err(&output), "");
}

#[test]
fn timeline_draws_slices_and_arrows() {
    let dir = dir_of_good_trace();
    let drawn = nano_trace(dir.path(), &["timeline", ".", "-o", "way.svg"]);
    assert_eq!(drawn.status.code(), Some(0), "{}", err(&drawn));
    let svg = fs::read_to_string(dir.path().join("way.svg")).unwrap();
    for name in [
        "tokenize",
        "engine.submit",
        "prefill",
        "wait_workers",
        "forward",
        "sse.write",
    ] {
        assert!(svg.contains(&format!(">{name}</text>")), "{name}");
    }
    // From each of the request's eight hops to the next; to the rank and back.
    assert_eq!(svg.matches("url(#request)").count(), 7);
    assert_eq!(svg.matches("url(#step)").count(), 2);
    assert!(!svg.contains("NaN"));

    let drawn = nano_trace(dir.path(), &["timeline", ".", "--whole", "-o", "all.svg"]);
    assert_eq!(drawn.status.code(), Some(0), "{}", err(&drawn));
    let svg = fs::read_to_string(dir.path().join("all.svg")).unwrap();
    assert!(svg.contains("requests: 1, steps: 3"), "{svg}");
    assert_eq!(svg.matches("url(#request)").count(), 7);
    assert_eq!(svg.matches("url(#step)").count(), 6);
    assert!(!svg.contains("NaN"));
}

#[test]
fn what_is_no_trace_is_refused_and_what_is_cut_is_told() {
    let dir = dir_of_good_trace();
    fs::write(dir.path().join("notes.txt"), "no trace").unwrap();
    let core = dir.path().join("auto.core.k3x9-1.pftrace");
    let mut bytes = fs::read(&core).unwrap();
    bytes.pop();
    fs::write(&core, bytes).unwrap();
    for args in [
        &["info", "auto.frontend.k3x9-1.pftrace", "notes.txt"][..],
        &["flame", ".", "notes.txt", "-o", "x.svg"],
        &["timeline", ".", "notes.txt", "-o", "x.svg"],
    ] {
        let output = nano_trace(dir.path(), args);
        let (text, shown) = (err(&output), out(&output));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        assert!(text.contains("notes.txt: not a Perfetto trace"), "{text}");
        // Others are told all the same.
        assert_eq!(shown.contains("requests   1"), args[0] == "info", "{shown}");
        assert!(!dir.path().join("x.svg").exists());
    }
    let drawn = nano_trace(dir.path(), &["timeline", ".", "-o", "x.svg"]);
    assert_eq!(drawn.status.code(), Some(0));
    let text = err(&drawn);
    assert!(
        text.contains("auto.core.k3x9-1.pftrace: cut packet"),
        "{text}"
    );
}

#[test]
fn of_many_sessions_the_newest_are_named() {
    let dir = dir_of_good_trace();
    for session in 0..40 {
        let from = dir.path().join("auto.core.k3x9-1.pftrace");
        let to = format!("s{session}.core.k3x9-1.pftrace");
        fs::copy(from, dir.path().join(to)).unwrap();
    }
    let merged = nano_trace(dir.path(), &["merge", ".", "-o", "m"]);
    let text = err(&merged);
    let left_out = text.lines().find(|line| line.contains("left out")).unwrap();
    assert!(left_out.contains("36 older ones, "), "{text}");
    assert!(left_out.len() < 300, "{text}");
}

#[test]
fn timeline_says_which_requests_there_are() {
    let dir = dir_of_good_trace();
    let drawn = nano_trace(
        dir.path(),
        &["timeline", ".", "--request", "x7", "-o", "way.svg"],
    );
    assert_eq!(drawn.status.code(), Some(2));
    assert!(err(&drawn).contains("\"x7\" in it; there are a request without an id"));
    assert!(!dir.path().join("way.svg").exists());
}

#[test]
fn wrong_use_ends_with_one_line_and_code_2() {
    let dir = dir_of_good_trace();
    for args in [
        &["merge"][..],
        &["merge", ".", "-o", "auto.core.k3x9-1.pftrace"],
        &["merge", ".", "--session", "none"],
        &["open", "nowhere.pftrace"],
        &["check"],
        &["check", "nowhere.pftrace"],
        &["check", ".", "--killed", "me"],
        &["frobnicate"],
        &["info", "--frobnicate", "."],
    ] {
        let output = nano_trace(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = err(&output);
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        assert!(text.starts_with("nano-trace: "), "{args:?}: {text}");
    }
}
