//! Where a model comes from: one GGUF file or a directory.

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::generation_config::GenerationConfig;
use crate::gguf::GgufFile;
use crate::model_dir::ModelDir;
use crate::tokenizer_config::TokenizerConfig;
use std::path::Path;

/// A model on the local disk.
#[derive(Debug)]
pub enum ModelSource {
    /// One GGUF file, with tokenizer and chat template inside.
    Gguf(GgufFile),
    /// A directory in Hugging Face layout.
    Directory(ModelDir),
}

impl ModelSource {
    /// Opens a .gguf file, or a directory in Hugging Face layout.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let kind = std::fs::metadata(path).map_err(|error| ModelError::file(path, error))?;
        if kind.is_dir() {
            ModelDir::open(path).map(ModelSource::Directory)
        } else if kind.is_file() {
            GgufFile::open(path).map(ModelSource::Gguf)
        } else {
            Err(ModelError::file(path, "is neither a file nor a directory"))
        }
    }

    /// The path as it was opened.
    pub fn path(&self) -> &Path {
        match self {
            ModelSource::Gguf(gguf) => gguf.path(),
            ModelSource::Directory(dir) => dir.path(),
        }
    }

    /// Dimensions and kind of the model.
    pub fn config(&self) -> Result<ModelConfig, ModelError> {
        match self {
            ModelSource::Gguf(gguf) => ModelConfig::from_gguf(gguf),
            ModelSource::Directory(dir) => ModelConfig::from_json(&dir.config),
        }
    }

    /// How its makers want the model sampled and stopped.
    pub fn generation_config(&self) -> Result<GenerationConfig, ModelError> {
        let vocab_size = self.config()?.vocab_size;
        match self {
            ModelSource::Gguf(gguf) => GenerationConfig::from_gguf(gguf, vocab_size),
            ModelSource::Directory(dir) => {
                let generation_config = dir.generation_config()?;
                GenerationConfig::from_json(&dir.config, generation_config.as_ref(), vocab_size)
            }
        }
    }

    /// Chat template and texts of special tokens.
    pub fn tokenizer_config(&self) -> Result<TokenizerConfig, ModelError> {
        match self {
            ModelSource::Gguf(gguf) => TokenizerConfig::from_gguf(gguf),
            ModelSource::Directory(dir) => TokenizerConfig::from_dir(dir.path()),
        }
    }

    /// Reads everything that this layer reads, so that whoever starts a server
    /// learns of a broken model before any process does.
    pub fn validate(&self) -> Result<ModelConfig, ModelError> {
        self.generation_config()?;
        self.tokenizer_config()?;
        if let ModelSource::Directory(dir) = self {
            dir.tokenizer_file()?;
        }
        self.config()
    }
}
