//! The project's own shape, as ARCHITECTURE.md states it: which crate may name
//! which, what stays in one place, how long files are, and which tests hold off
//! which failures.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("in the workspace").to_owned()
}

/// Crates of ours by folder, with those that each may depend on. `tests` names
/// all, and nobody depends on it but as a development dependency.
const ARROWS: [(&str, &[&str]); 8] = [
    ("trace", &[]),
    ("model", &[]),
    ("ipc", &["nano-trace"]),
    ("bench", &["nano-trace"]),
    ("frontend", &["nano-ipc", "nano-model", "nano-trace"]),
    ("core", &["nano-ipc", "nano-trace"]),
    ("worker", &["nano-ipc", "nano-model", "nano-trace"]),
    (
        "launcher",
        &[
            "nano-core",
            "nano-frontend",
            "nano-ipc",
            "nano-model",
            "nano-trace",
            "nano-worker",
        ],
    ),
];

/// Names in the `[dependencies]` of a crate.
fn dependencies(folder: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("manifest");
    let section = manifest
        .split("\n[")
        .find_map(|section| section.strip_prefix("dependencies]"))
        .expect("a section of dependencies");
    section
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Every Rust file below `folder`, with its text.
fn sources(folder: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                found.insert(path, text);
            }
        }
    }
    assert!(!found.is_empty(), "no sources below {folder}");
    found
}

/// What is compiled into the product: no tests, and no comments.
fn code(text: &str) -> String {
    let without_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = without_tests.lines();
    let code: Vec<&str> = lines
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    code.join("\n")
}

#[test]
fn no_process_names_another_and_arrows_point_one_way() {
    for (folder, allowed) in ARROWS {
        let ours: Vec<String> = dependencies(folder)
            .into_iter()
            .filter(|name| name.starts_with("nano-"))
            .collect();
        assert_eq!(ours, allowed, "{folder}/Cargo.toml");
    }
}

#[test]
fn the_launcher_links_no_role_but_into_the_single_process() {
    for (path, text) in sources("launcher") {
        let single = path.ends_with("nano-serve-single.rs");
        for role in ["nano_core", "nano_frontend", "nano_worker"] {
            assert_eq!(
                code(&text).contains(role),
                single,
                "{}: {role}",
                path.display()
            );
        }
    }
}

#[test]
fn what_belongs_to_one_layer_is_named_by_no_other() {
    for (library, owners) in [
        ("tokenizers", &["frontend"][..]),
        ("axum", &["frontend"]),
        // A server's side, and a client's.
        ("hyper", &["bench", "frontend"]),
        ("minijinja", &["frontend"]),
        ("candle-core", &["worker"]),
        ("safetensors", &["worker"]),
        ("hf-hub", &["launcher"]),
        ("prost", &["trace"]),
        ("bincode", &["ipc"]),
    ] {
        for (folder, _) in ARROWS {
            let names_it = dependencies(folder).iter().any(|name| name == library);
            let may = owners.contains(&folder);
            assert_eq!(names_it, may, "{folder}/Cargo.toml: {library}");
        }
    }
}

#[test]
fn one_file_names_the_serializer() {
    for (path, text) in sources("ipc") {
        let names_it = code(&text).contains("bincode");
        assert_eq!(names_it, path.ends_with("codec.rs"), "{}", path.display());
    }
}

#[test]
fn scheduler_and_kv_cache_do_no_io_and_read_no_clock() {
    let pure = |path: &Path| {
        let inside = path.strip_prefix(root().join("core/src")).ok();
        inside.is_some_and(|path| path.starts_with("scheduler") || path.starts_with("kv_cache"))
            || path.ends_with("core/src/scheduler.rs")
            || path.ends_with("core/src/kv_cache.rs")
    };
    let files: Vec<_> = sources("core")
        .into_iter()
        // The simulation is a test, and is told by its environment how long to run.
        .filter(|(path, _)| pure(path) && !path.ends_with("simulation.rs"))
        .collect();
    assert!(files.len() > 4, "they were found: {files:?}");
    for (path, text) in files {
        for impure in [
            "std::time",
            "std::io",
            "std::fs",
            "std::net",
            "std::env",
            "std::thread",
            "nix::",
            "log::",
            "Instant",
            "SystemTime",
            "nano_trace",
        ] {
            assert!(
                !code(&text).contains(impure),
                "{}: {impure}",
                path.display()
            );
        }
    }
}

#[test]
fn files_are_short() {
    let mut lengths: Vec<(usize, PathBuf)> = Vec::new();
    for (folder, _) in ARROWS {
        for (path, text) in sources(folder) {
            lengths.push((text.lines().count(), path));
        }
    }
    lengths.sort();
    let at = |share: f64| lengths[(lengths.len() as f64 * share) as usize].0;
    assert!(at(0.5) <= 150, "median of {} lines", at(0.5));
    assert!(at(0.9) <= 400, "nine tenths within {} lines", at(0.9));
    let (longest, path) = lengths.last().expect("files");
    assert!(*longest <= 700, "{} has {longest} lines", path.display());
}

#[test]
fn every_layer_says_what_it_knows_and_what_it_must_not_know() {
    for (folder, _) in ARROWS {
        let lib = root().join(folder).join("src/lib.rs");
        let text = fs::read_to_string(&lib).expect("lib.rs");
        let head: String = text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect();
        let head = head.replace("//!", "");
        assert!(
            head.contains("must not") || head.contains("must never"),
            "{}",
            lib.display()
        );
        assert!(head.contains("know"), "{}", lib.display());
    }
}

#[test]
fn every_failure_is_held_off_by_tests_that_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("readable");
    let (_, table) = text
        .split_once("## Failures that tests hold off")
        .expect("a section");
    let table = table.split("\n## ").next().unwrap_or_default();
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let tests = row.rsplit('|').nth(1).expect("two columns");
        for test in tests.split(',') {
            let test = test.trim().trim_matches('`');
            let (file, name) = test.split_once("::").expect(row);
            let source = fs::read_to_string(root().join(file)).expect(file);
            let before = source.split_once(&format!("fn {name}("));
            let there = before.is_some_and(|(before, _)| {
                let before = before.trim_end().trim_end_matches("async").trim_end();
                before.ends_with("#[test]") || before.ends_with("#[tokio::test]")
            });
            assert!(there, "{file} has no test {name}");
            named += 1;
        }
    }
    assert!(named > 0, "the table is empty");
}
