//! Where the built programs lie, and a place from which they run together.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Which program stands behind the name `nano-worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerProgram {
    /// The one that computes.
    Real,
    /// `nano-mock-worker`: the real protocols, no model.
    Mock,
    /// `nano-faulty-worker`: the real one, around a model with a bug.
    Faulty,
}

/// A directory with the server's programs side by side, as an installation has them.
///
/// The launcher finds its children beside itself; hard links let a test choose
/// the worker without the launcher knowing of tests.
pub fn install(worker: WorkerProgram) -> TempDir {
    let built = built_programs();
    let dir = tempfile::Builder::new()
        .prefix("installed-")
        .tempdir_in(&built)
        .expect("the target directory is writable");
    let link = |from: &str, to: &str| {
        let from = built.join(from);
        assert!(
            from.exists(),
            "{} is missing: `cargo build --release --workspace --all-targets`, or run scripts/test",
            from.display()
        );
        let to = dir.path().join(to);
        fs::hard_link(&from, &to)
            .or_else(|_| fs::copy(&from, &to).map(drop))
            .expect("a link or a copy");
    };
    for program in ["nano-serve", "nano-core", "nano-frontend"] {
        link(program, program);
    }
    match worker {
        WorkerProgram::Real => {
            link("nano-worker", "nano-worker");
            link("nano-serve-single", "nano-serve-single");
        }
        WorkerProgram::Mock => link("nano-mock-worker", "nano-worker"),
        WorkerProgram::Faulty => link("examples/nano-faulty-worker", "nano-worker"),
    }
    dir
}

/// `target/<profile>`: there or in its `deps` lies the program that runs now.
pub fn built_programs() -> PathBuf {
    let program = env::current_exe().expect("/proc");
    let dir = program.parent().expect("it lies in a directory");
    let above = dir.ends_with("deps").then(|| dir.parent()).flatten();
    above.unwrap_or(dir).to_owned()
}

/// The default model's file. scripts/test fetches it.
pub fn default_model() -> PathBuf {
    let path = env::var_os("NANO_TEST_MODEL").map_or_else(
        || {
            let home = env::var_os("HOME").expect("HOME");
            Path::new(&home).join(".cache/nano-serve/SmolLM2-135M-Instruct.Q4_1.gguf")
        },
        PathBuf::from,
    );
    assert!(path.exists(), "{}: run scripts/fetch-model", path.display());
    path
}

/// A file or directory below `tests/golden`.
pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(path)
}
