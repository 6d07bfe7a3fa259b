//! Models by name, from a hub that is a thread of the test.

use nano_serve::hub::{Hub, HubError, HubModel};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub has, how it misbehaves, and what it was asked.
#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// Answer everything with this status.
    refuse: Option<u16>,
    /// The next bodies of more than a few bytes end halfway.
    cuts: u32,
    /// Path and Authorization of each request.
    requests: Vec<(String, Option<String>)>,
    /// Progress that was reported.
    lines: Vec<String>,
}

/// Speaks what a hub speaks: the list of a model's files, and ranges of them.
struct TestHub {
    endpoint: String,
    state: Arc<Mutex<State>>,
    home: TempDir,
}

impl TestHub {
    fn start(files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State {
            files,
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &shared);
            }
        });
        let home = tempfile::tempdir().unwrap();
        Self {
            endpoint,
            state,
            home,
        }
    }

    fn tiny_llama() -> Self {
        Self::start(golden_files("tiny-llama"))
    }

    fn hub(&self, token: Option<&str>) -> Hub {
        self.hub_at(token, self.home.path())
    }

    /// Where its files are kept, and lines of progress with the others.
    fn hub_at(&self, token: Option<&str>, home: &Path) -> Hub {
        let state = Arc::clone(&self.state);
        let variable = |name: &str| match name {
            "HF_ENDPOINT" => Some(format!("{}/", self.endpoint)),
            "HF_HOME" => Some(home.display().to_string()),
            "HF_TOKEN" => token.map(str::to_owned),
            other => panic!("{other}"),
        };
        let report = move |line: &str| state.lock().unwrap().lines.push(line.to_owned());
        Hub::from_env(variable, report).unwrap()
    }

    fn fetch(&self, name: &str) -> Result<PathBuf, HubError> {
        self.hub(None).fetch(&HubModel::parse(name).unwrap())
    }

    #[track_caller]
    fn check_error(&self, name: &str, want: &str) {
        let error = self.fetch(name).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        let got = error
            .replace(&self.endpoint, "HUB")
            .replace(&self.home.path().display().to_string(), "HOME");
        assert_eq!(got, want);
    }

    /// Requests since the last call.
    fn requests(&self) -> Vec<(String, Option<String>)> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

fn golden_files(model: &str) -> BTreeMap<String, Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
    std::fs::read_dir(dir.join(model))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

fn answer(stream: TcpStream, state: &Mutex<State>) {
    let mut lines = BufReader::new(&stream).lines();
    let Some(Ok(request)) = lines.next() else {
        return;
    };
    let path = request.split(' ').nth(1).unwrap().to_owned();
    let headers: BTreeMap<String, String> = lines
        .map_while(|line| line.ok().filter(|line| !line.is_empty()))
        .filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_ascii_lowercase(), value.to_owned()))
        })
        .collect();
    let mut state = state.lock().unwrap();
    let authorization = headers.get("authorization").cloned();
    state.requests.push((path.clone(), authorization));

    let mut out = &stream;
    let head = |status: &str, more: &str, len: usize| {
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len}\r\n{more}\r\n")
    };
    let files = &state.files;
    let (head, body) = if let Some(status) = state.refuse {
        (head(&format!("{status} No"), "", 0), Vec::new())
    } else if path == "/api/models/org/name/revision/main" {
        let siblings: Vec<String> = files
            .keys()
            .map(|name| format!(r#"{{"rfilename": "{name}"}}"#))
            .collect();
        let siblings = siblings.join(", ");
        let body = format!(r#"{{"sha": "{SHA}", "siblings": [{siblings}]}}"#);
        let kind = "Content-Type: application/json\r\n";
        (head("200 OK", kind, body.len()), body.into_bytes())
    } else if let Some((name, file)) = path
        .strip_prefix(&format!("/org/name/resolve/{SHA}/"))
        .and_then(|name| files.get_key_value(name))
    {
        let range = headers["range"].strip_prefix("bytes=").unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let start: usize = start.parse().unwrap();
        let end = end.parse::<usize>().map_or(file.len(), |end| end + 1);
        let end = end.min(file.len()).max(start);
        let more = format!(
            "ETag: \"etag-of-{name}\"\r\nX-Repo-Commit: {SHA}\r\n\
             Content-Range: bytes {start}-{}/{}\r\n",
            end.saturating_sub(1),
            file.len()
        );
        let body = file[start..end].to_vec();
        (head("206 Partial Content", &more, body.len()), body)
    } else {
        (head("404 Not Found", "", 0), Vec::new())
    };
    let cut = body.len() > 100_000 && state.cuts > 0;
    state.cuts -= u32::from(cut);
    let end = if cut { body.len() / 2 } else { body.len() };
    // Whoever reads may report progress meanwhile, which needs the state.
    drop(state);
    // A client may go before it has read everything.
    let written = out.write_all(head.as_bytes());
    written.and_then(|()| out.write_all(&body[..end])).ok();
}

#[test]
fn names() {
    let parse = |text: &str| HubModel::parse(text).map(|model| model.to_string());
    for name in [
        "org/name",
        "org/name@v1.0",
        "org/name:Q4_K_M",
        "a/b@refs/pr/1:x.gguf",
    ] {
        assert_eq!(parse(name).as_deref(), Some(name));
    }
    assert_eq!(parse("org/name@main").as_deref(), Some("org/name"));
    for no in [
        "name", "/a/b", "../b", "a/..", "a/b/c", "a/b@", "a/b:", "a/b:../x", "a/b@../x", "a b/c",
        "",
    ] {
        assert_eq!(parse(no), None, "{no}");
    }
}

#[test]
fn a_directory_of_what_serving_reads_then_the_cache_alone() {
    let test = TestHub::tiny_llama();
    let hub = test.hub(Some("secret"));
    let model = HubModel::parse("org/name").unwrap();
    let dir = hub.fetch(&model).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    let state = test.state.lock().unwrap();
    for name in names {
        assert_eq!(std::fs::read(dir.join(&name)).unwrap(), state.files[&name]);
    }
    let last = state.lines.last().unwrap();
    assert_eq!(last, "fetching model.safetensors: 0.7 of 0.7 MB");
    drop(state);
    let requests = test.requests();
    assert!(requests.len() >= 6);
    for (path, authorization) in requests {
        assert_eq!(authorization.as_deref(), Some("Bearer secret"), "{path}");
    }

    // The cache has it whole: the hub is not asked, and may be gone.
    test.state.lock().unwrap().refuse = Some(500);
    assert_eq!(test.fetch("org/name").unwrap(), dir);
    assert_eq!(test.requests(), []);
}

#[test]
fn shards() {
    let test = TestHub::start(golden_files("tiny-llama-sharded"));
    let dir = test.fetch("org/name").unwrap();
    assert!(dir.join("model-00002-of-00002.safetensors").exists());
    assert!(!dir.join("golden.json").exists());
    assert!(
        test.requests()
            .iter()
            .all(|(_, authorization)| authorization.is_none())
    );
}

#[test]
fn one_gguf_file() {
    let file = |name: &str| (name.to_owned(), name.as_bytes().to_vec());
    let files = ["README.md", "m.Q4_K_M.gguf", "m.Q8_0.gguf"].map(file);
    let test = TestHub::start(BTreeMap::from(files));
    for name in ["org/name:Q8_0", "org/name:q8", "org/name:m.Q8_0.gguf"] {
        let path = test.fetch(name).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"m.Q8_0.gguf");
    }
    test.requests();
    test.fetch("org/name:m.Q8_0.gguf").unwrap();
    assert_eq!(test.requests(), []);
    test.check_error(
        "org/name",
        "org/name: several GGUF files, choose one by org/name:FILE: m.Q4_K_M.gguf, m.Q8_0.gguf",
    );
    test.check_error(
        "org/name:Q2",
        "org/name:Q2: has no such GGUF file; it has: m.Q4_K_M.gguf, m.Q8_0.gguf",
    );
}

#[test]
fn errors_are_one_line_each() {
    let test = TestHub::tiny_llama();
    let refuse = |status| test.state.lock().unwrap().refuse = Some(status);
    refuse(401);
    test.check_error(
        "org/name",
        "org/name: HUB refuses access (401): the name is wrong, or the model needs a key in HF_TOKEN",
    );
    refuse(403);
    test.check_error(
        "org/name",
        "org/name: HUB refuses access (403): its terms must be accepted at HUB/org/name by the \
         owner of the key in HF_TOKEN",
    );
    refuse(404);
    test.check_error("org/name", "org/name: not found at HUB (404)");
    refuse(500);
    test.check_error("org/name", "org/name: HUB answers with status 500");
    test.state.lock().unwrap().refuse = None;
    test.check_error("org/other", "org/other: not found at HUB (404)");
    test.check_error("org/name@v2", "org/name@v2: not found at HUB (404)");
    test.state.lock().unwrap().files.remove("model.safetensors");
    test.check_error(
        "org/name",
        "org/name: has neither safetensors nor GGUF files",
    );
}

#[test]
fn no_hub() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let home = tempfile::tempdir().unwrap();
    let variable = |name: &str| match name {
        "HF_ENDPOINT" => Some(endpoint.clone()),
        "HF_HOME" => Some(home.path().display().to_string()),
        _ => None,
    };
    let hub = Hub::from_env(variable, |_| {}).unwrap();
    let error = hub
        .fetch(&HubModel::parse("org/name").unwrap())
        .unwrap_err();
    let error = error.to_string();
    let want = format!("org/name: cannot reach {endpoint}: ");
    assert!(error.starts_with(&want), "{error}");
}

#[test]
fn a_cache_that_cannot_be_written() {
    let test = TestHub::tiny_llama();
    // A file where the cache's directory should be.
    let home = test.home.path().join("file");
    std::fs::write(&home, "").unwrap();
    let hub = test.hub_at(None, &home);
    let error = hub
        .fetch(&HubModel::parse("org/name").unwrap())
        .unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("org/name: cannot write to "), "{error}");
}

#[test]
fn a_cut_body_is_noticed_and_the_next_start_goes_on() {
    let test = TestHub::tiny_llama();
    test.state.lock().unwrap().cuts = 1;
    let error = test.fetch("org/name").unwrap_err().to_string();
    let want = "org/name: the download broke off: ";
    assert!(error.starts_with(want), "{error}");
    test.requests();

    let dir = test.fetch("org/name").unwrap();
    let weights = std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(weights == test.state.lock().unwrap().files["model.safetensors"]);
    // What came whole before is not asked for again.
    let again = test.requests();
    assert!(
        !again.iter().any(|(path, _)| path.ends_with("/config.json")),
        "{again:?}"
    );
}
