//! Writes small GGUF files, whole or broken.

use tempfile::NamedTempFile;

/// Writes small GGUF files, whole or broken.
#[derive(Clone, Default)]
pub struct GgufBuilder {
    metadata: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl GgufBuilder {
    pub fn string(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &text(value))
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub fn strings(self, key: &str, values: &[&str]) -> Self {
        let mut body = 8u32.to_le_bytes().to_vec();
        body.extend((values.len() as u64).to_le_bytes());
        body.extend(values.iter().flat_map(|value| text(value)));
        self.raw(key, 9, &body)
    }

    /// A value of any type number.
    pub fn raw(mut self, key: &str, value_type: u32, value: &[u8]) -> Self {
        let mut entry = text(key);
        entry.extend(value_type.to_le_bytes());
        entry.extend(value);
        self.metadata.push(entry);
        self
    }

    /// A tensor of zeros, `bytes` of them, in a directory entry as given.
    pub fn tensor(mut self, name: &str, dims: &[u64], number: u32, bytes: usize) -> Self {
        let offset = self.data.len() as u64;
        self.data
            .resize(self.data.len() + bytes.next_multiple_of(32), 0);
        self.tensor_entry(name, dims, number, offset)
    }

    pub fn tensor_entry(mut self, name: &str, dims: &[u64], number: u32, offset: u64) -> Self {
        let mut entry = text(name);
        entry.extend((dims.len() as u32).to_le_bytes());
        entry.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        entry.extend(number.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_claiming(3, self.tensors.len() as u64, self.metadata.len() as u64)
    }

    pub fn bytes_claiming(&self, version: u32, tensors: u64, metadata: u64) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(version.to_le_bytes());
        file.extend(tensors.to_le_bytes());
        file.extend(metadata.to_le_bytes());
        file.extend(self.metadata.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }

    /// What a Llama needs, with an embedding of 4 rows of 16 zeros.
    pub fn llama() -> Self {
        Self::default()
            .string("general.architecture", "llama")
            .u32("llama.block_count", 1)
            .u32("llama.context_length", 16)
            .u32("llama.embedding_length", 16)
            .u32("llama.feed_forward_length", 8)
            .u32("llama.attention.head_count", 2)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .string("tokenizer.ggml.model", "gpt2")
            .strings("tokenizer.ggml.tokens", &["a", "b", "ab"])
            .strings("tokenizer.ggml.merges", &["a b"])
            .tensor("token_embd.weight", &[16, 4], 0, 256)
    }
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// A file with these bytes.
pub fn file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}
