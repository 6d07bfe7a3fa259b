//! The JSON files of a model directory, each in turn, the others being good.

use super::loading::load;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Loads a model one of whose files has these bytes.
pub fn run(bytes: &[u8]) {
    for file in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
    ] {
        let dir = Directory::new("tiny-llama-sharded");
        dir.write(file, bytes);
        load(dir.path());
    }
}

/// A copy of a golden model's directory; its files are links until they are
/// written.
pub(crate) struct Directory {
    dir: TempDir,
}

impl Directory {
    pub fn new(model: &str) -> Directory {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        let from = root.expect("in the repository").join("tests/golden/models");
        let dir = tempfile::tempdir().expect("a temporary directory");
        for entry in fs::read_dir(from.join(model)).expect("golden models") {
            let file = entry.expect("a file").path();
            let link = dir.path().join(file.file_name().expect("a name"));
            std::os::unix::fs::symlink(&file, link).expect("a link");
        }
        Directory { dir }
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
