//! The header of a GGUF file: configuration, tokenizer, tensor directory.

use super::loading::load;
use std::io::Write;

/// Zeros behind the header, so that tensors which it claims are there.
const DATA_BYTES: u64 = 4 << 20;

/// Loads a model of these bytes: once as they are, once with data behind them.
pub fn run(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("a file is written");
    load(file.path());
    // A hole: it takes no room, and reads as zeros.
    let grown = file.as_file().set_len(bytes.len() as u64 + DATA_BYTES);
    grown.expect("a file grows");
    load(file.path());
}
