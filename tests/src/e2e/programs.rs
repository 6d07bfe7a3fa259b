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
}

/// A directory with the server's programs side by side, as an installation has them.
///
/// The launcher finds its children beside itself; hard links let a test choose
/// the worker without the launcher knowing of tests.
pub fn install(worker: WorkerProgram) -> TempDir {
    let built = built_programs();
    let dir = tempfile::Builder::new()
        .prefix("installed-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("the target directory is writable");
    let link = |from: &str, to: &str| {
        let from = built.join(from);
        assert!(
            from.exists(),
            "{} is missing: `cargo build --release --workspace --bins`, or run scripts/test",
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
    }
    dir
}

/// The directory above that of this test's own binary.
fn built_programs() -> PathBuf {
    let test = env::current_exe().expect("/proc");
    let deps = test.parent().and_then(Path::parent);
    deps.expect("target/<profile>/deps").to_owned()
}

/// A file or directory below `tests/golden`.
pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(path)
}
