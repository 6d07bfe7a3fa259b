//! Asks a server's profiler, and judges what it writes.

use crate::client::{get, post};
use crate::programs::golden;
use crate::server::{Server, ServerOptions, wait_for};
use nano_trace::check::{OpenSlices, Report, check};
use nano_trace::read::Source;
use nano_trace::timeline::TimelineSlice;
use nano_trace::{Event, TraceFileName};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than anything here takes on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn dir() -> TempDir {
    tempfile::tempdir().expect("temporary directory")
}

/// Records when it is told to.
pub fn manual(options: ServerOptions, dir: &Path) -> ServerOptions {
    auto(options, dir).env("NANO_PROFILER_MODE", "manual")
}

/// Records from its start on.
pub fn auto(options: ServerOptions, dir: &Path) -> ServerOptions {
    options.env("NANO_PROFILER_DIR", dir.to_str().expect("UTF-8"))
}

pub fn tiny() -> ServerOptions {
    ServerOptions::real(&golden("models/tiny-llama"))
}

/// Status and body of a POST to a profiler's path.
pub fn ask(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    post(&format!("{}{path}", server.base_url()), body).expect("answered")
}

#[track_caller]
pub fn start(server: &Server, body: Value) -> Value {
    let (status, answer) = ask(server, "/start_profile", &body);
    assert_eq!(status, 200, "{answer}");
    answer
}

#[track_caller]
pub fn stop(server: &Server) -> Value {
    let (status, answer) = ask(server, "/stop_profile", &json!({}));
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Ends the session, and waits for its files.
#[track_caller]
pub fn stop_whole(server: &Server) -> Value {
    let (status, answer) = ask(server, "/stop_profile?wait=true", &json!({}));
    assert_eq!(status, 200, "{answer}");
    answer
}

#[track_caller]
pub fn status(server: &Server) -> Value {
    let (code, text) = get(&format!("{}/profile/status", server.base_url())).expect("answered");
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Waits until nothing is recorded nor written.
#[track_caller]
pub fn wait_idle(server: &Server) -> Value {
    wait_for("idle profiler", PATIENCE, || {
        let status = status(server);
        (status["state"] == "idle").then_some(status)
    })
}

/// Name and state of each process in an answer's session.
pub fn states(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let processes = answer["processes"].as_array().expect("processes");
    let mut states: Vec<(String, String)> = processes
        .iter()
        .map(|process| (text(&process["process"]), text(&process["state"])))
        .collect();
    states.sort();
    states
}

/// Every process in this state.
pub fn all(state: &str) -> Vec<(String, String)> {
    ["core", "frontend", "worker-0"]
        .map(|process| (process.to_owned(), state.to_owned()))
        .to_vec()
}

/// Files of a session, by role.
pub fn files(dir: &Path, session: &str) -> Vec<(String, PathBuf)> {
    let mut files: Vec<(String, PathBuf)> = std::fs::read_dir(dir)
        .expect("the directory")
        .filter_map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            let name: TraceFileName = name.parse().expect("a trace file's name");
            (name.session == session).then_some((name.role, path))
        })
        .collect();
    files.sort();
    files
}

/// Judges traces together.
#[track_caller]
pub fn judge(paths: &[PathBuf], open: &OpenSlices) -> Report {
    let sources: Vec<Source> = paths.iter().cloned().map(Source::File).collect();
    let report = check(&sources, open).expect("files can be read");
    report.assert_clean();
    report
}

/// Judges each file of a session by itself, and all together.
#[track_caller]
pub fn judge_session(dir: &Path, session: &str, num_files: usize) -> Report {
    let files = files(dir, session);
    assert_eq!(files.len(), num_files, "{files:?}");
    let paths: Vec<PathBuf> = files.into_iter().map(|(_, path)| path).collect();
    for path in &paths {
        judge(std::slice::from_ref(path), &OpenSlices::None);
    }
    judge(&paths, &OpenSlices::None)
}

pub fn uint(slice: &TimelineSlice, arg: &str) -> Option<u64> {
    slice.arg(arg)?.uint()
}

/// Numbers of the steps whose slices are whole, in order. A step's number comes
/// with the end of its slice, so one that was clipped has none.
pub fn step_ids(report: &Report, event: Event) -> Vec<u64> {
    let slices = report.timeline.slices_of(event);
    let mut ids: Vec<u64> = slices
        .filter_map(|(_, slice)| uint(slice, "step_id"))
        .collect();
    ids.sort_unstable();
    ids
}

/// Sends bytes, and reads status and body of the answer.
pub fn raw(server: &Server, bytes: &[u8]) -> (u16, Vec<u8>) {
    let address = server.base_url().strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    // A server may answer, and close, before it has read all.
    let _ = stream.write_all(bytes);
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status line");
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a header");
        if line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    (status.unwrap_or_else(|| panic!("no status: {line}")), body)
}

/// Streams that run until they are dropped, and the times of their tokens.
pub struct Load {
    ends: Vec<TcpStream>,
    readers: Vec<thread::JoinHandle<Vec<Instant>>>,
}

impl Load {
    /// Opens so many streams and waits until each has begun.
    pub fn start(server: &Server, streams: usize, max_tokens: u32) -> Load {
        let address = server.base_url().strip_prefix("http://").expect("a URL");
        let (begun, begins) = mpsc::channel();
        let (mut ends, mut readers) = (Vec::new(), Vec::new());
        for number in 0..streams {
            let body = json!({
                "prompt": [1 + number, 2, 3], "max_tokens": max_tokens, "ignore_eos": true,
                "temperature": 0, "stream": true, "skip_special_tokens": false,
            })
            .to_string();
            let mut stream = TcpStream::connect(address).expect("it listens");
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).expect("it reads");
            ends.push(stream.try_clone().expect("a descriptor"));
            let begun = begun.clone();
            readers.push(thread::spawn(move || {
                let mut times = Vec::new();
                let lines = BufReader::new(stream).lines().map_while(Result::ok);
                // The connection would stay open.
                for line in lines.take_while(|line| line != "data: [DONE]") {
                    if line.starts_with("data: {") {
                        times.push(Instant::now());
                        if times.len() == 1 {
                            // The test may have failed.
                            let _ = begun.send(());
                        }
                    }
                }
                times
            }));
        }
        for _ in 0..streams {
            begins.recv_timeout(PATIENCE).expect("a stream begins");
        }
        Load { ends, readers }
    }

    /// Waits until the streams end by themselves: the times of each one's tokens.
    pub fn finish(mut self) -> Vec<Vec<Instant>> {
        self.join()
    }

    /// Ends the streams: the times of each one's tokens.
    pub fn end(mut self) -> Vec<Vec<Instant>> {
        self.hang_up();
        self.join()
    }

    fn join(&mut self) -> Vec<Vec<Instant>> {
        let readers = std::mem::take(&mut self.readers);
        let ends = readers.into_iter().map(thread::JoinHandle::join);
        ends.map(|times| times.expect("no panic")).collect()
    }

    fn hang_up(&self) {
        for end in &self.ends {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.hang_up();
    }
}
