//! What README.md says to type, typed.

use crate::client::{Stream, StreamEvent};
use crate::programs::{built_programs, default_model};
use crate::server::ServerOptions;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

const README: &str = include_str!("../../../README.md");

/// Flags of cargo, of its tests and of benches.
const OTHERS: [&str; 7] = [
    "--release",
    "--workspace",
    "--bench",
    "--test",
    "--nocapture",
    "--flight",
    "--samples",
];

/// The text between two marks, the first such.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let begin = text.find(from).unwrap_or_else(|| panic!("no {from}")) + from.len();
    let end = text[begin..]
        .find(to)
        .unwrap_or_else(|| panic!("no {to} after {from}"));
    &text[begin..begin + end]
}

#[test]
fn its_first_request_is_answered_by_the_default_model() {
    let curl = between(README, "curl http://127.0.0.1:8000", "```");
    let path = curl.split_whitespace().next().expect("a path");
    let body: Value = serde_json::from_str(between(curl, "-d '", "'")).expect("JSON");
    let server = ServerOptions::real(&default_model()).start();
    let events =
        Stream::open(server.base_url(), path, body).rest(Instant::now() + Duration::from_secs(300));
    let text: String = events
        .iter()
        .filter_map(|event| match event {
            StreamEvent::Data(chunk) => chunk["choices"][0]["delta"]["content"].as_str(),
            _ => None,
        })
        .collect();
    assert!(!text.is_empty(), "{events:?}");
    assert!(events.contains(&StreamEvent::Done), "{events:?}");
}

#[test]
fn the_flags_and_variables_that_it_names_exist() {
    let help: String = [
        &["nano-serve", "--help"][..],
        &["nano-trace", "merge", "--help"],
        &["nano-trace", "check", "--help"],
        &["nano-trace", "timeline", "--help"],
        &["nano-trace", "flame", "--help"],
        &["nano-bench", "--help"],
    ]
    .map(|words| {
        let program = built_programs().join(words[0]);
        let output = Command::new(program).args(&words[1..]).output();
        String::from_utf8(output.expect("it runs").stdout).expect("UTF-8")
    })
    .concat();
    let named: Vec<&str> = README
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
        .filter(|word| {
            let flag = word.strip_prefix("--");
            flag.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
                || word.starts_with("NANO_")
        })
        .filter(|word| !OTHERS.contains(word))
        .collect();
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        assert!(help.contains(name), "`{name}` is not in --help");
    }
}
