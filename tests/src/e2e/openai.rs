//! A real client: the `openai` package, in a Python process.

use crate::programs::default_model;
use crate::server::{Server, ServerOptions};
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a script of this folder against the server, and kills the engine when
/// it says so.
fn run(server: &Server, script: &str, args: &[&str]) {
    let python = std::env::var("NANO_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut client = Command::new(&python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script))
        .arg(server.base_url())
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{python}: {error}; scripts/test sets it up"));
    let stdout = BufReader::new(client.stdout.take().expect("piped"));
    for line in stdout.lines().map_while(Result::ok) {
        if line == "kill" {
            server.signal("nano-core", Signal::SIGKILL);
        }
    }
    let mut said = String::new();
    let mut stderr = client.stderr.take().expect("piped");
    stderr.read_to_string(&mut said).expect("text");
    assert!(client.wait().expect("our child").success(), "{said}");
}

#[test]
fn the_default_model_answers_the_package() {
    let server = ServerOptions::real(&default_model())
        .args(&["--served-model-name", "smollm2", "--api-key", "let-me-in"])
        .start();
    run(&server, "openai_client.py", &["smollm2", "let-me-in"]);
}

#[test]
fn the_package_understands_every_failure_and_leaves_nothing_when_it_gives_up() {
    let server = ServerOptions::mock(20)
        .args(&["--max-body-mb", "1", "--served-model-name", "mock"])
        .start();
    run(&server, "openai_failures.py", &["mock"]);
}
