//! GGUF files: a header of metadata and a tensor directory, then tensor data.
//!
//! Layout: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Versions
//! 2 and 3, little-endian, one file a model.

mod file;
mod ggml_type;
mod header;
mod reader;
mod tokenizer;
mod value;

pub use file::GgufFile;
pub use ggml_type::GgmlType;
pub use header::TensorInfo;
pub use tokenizer::{GgufTokenizer, TokenType, TokenizerModel};
pub use value::{Array, Value};
