//! The header of a safetensors file, within an otherwise good directory.

use super::loading::load;
use super::model_json::Directory;
use serde_json::Value;

/// A hole of more bytes than this is not made, whatever the header claims.
const MAX_DATA_BYTES: u64 = 4 << 20;

/// Loads a model whose weights are these bytes: once as they are, once with as
/// much data behind the header as it claims.
pub fn run(bytes: &[u8]) {
    let dir = Directory::new("tiny-llama");
    dir.write("model.safetensors", bytes);
    load(dir.path());
    if let Some(len) = claimed_len(bytes) {
        dir.resize("model.safetensors", len);
        load(dir.path());
    }
}

/// Bytes of the file that the header speaks of: 8 of the header's length, the
/// header, and data up to the last tensor's end.
fn claimed_len(bytes: &[u8]) -> Option<u64> {
    let (len, rest) = bytes.split_first_chunk()?;
    let len = u64::from_le_bytes(*len);
    let header = rest.get(..usize::try_from(len).ok()?)?;
    let Ok(Value::Object(tensors)) = serde_json::from_slice(header) else {
        return None;
    };
    let ends = tensors.values();
    let ends = ends.filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    let data = ends.max().filter(|&data| data <= MAX_DATA_BYTES)?;
    Some(8 + len + data)
}
