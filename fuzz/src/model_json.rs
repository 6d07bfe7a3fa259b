//! The JSON files of a model directory, each in turn, the others being good.

use super::loading::load;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Loads a model one of whose files has these bytes.
pub fn run(bytes: &[u8]) {
    let dir = Directory::new("tiny-llama-sharded");
    for file in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
    ] {
        dir.write(file, bytes);
        load(dir.path());
        dir.restore(file);
    }
}

/// A copy of a golden model's directory; its files are links until they are
/// written.
pub(crate) struct Directory {
    golden: PathBuf,
    dir: TempDir,
}

impl Directory {
    pub fn new(model: &str) -> Directory {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        let root = root.expect("in the repository");
        let directory = Directory {
            golden: root.join("tests/golden/models").join(model),
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        for entry in fs::read_dir(&directory.golden).expect("a golden model") {
            let name = entry.expect("a file").file_name();
            directory.link(name.to_str().expect("a plain name"));
        }
        directory
    }

    fn link(&self, file: &str) {
        let linked = symlink(self.golden.join(file), self.file(file));
        linked.expect("a link");
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn write(&self, file: &str, bytes: &[u8]) {
        let path = self.file(file);
        // Never through the link into the golden data.
        fs::remove_file(&path).expect("a golden file");
        fs::write(path, bytes).expect("a file is written");
    }

    /// Puts the golden file in a written one's place.
    pub fn restore(&self, file: &str) {
        fs::remove_file(self.file(file)).expect("a written file");
        self.link(file);
    }

    /// Cuts a written file, or adds zeros that take no room.
    pub fn resize(&self, file: &str, len: u64) {
        let file = fs::File::options().write(true).open(self.file(file));
        let resized = file.and_then(|file| file.set_len(len));
        resized.expect("a file is resized");
    }

    fn file(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }
}
