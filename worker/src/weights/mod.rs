//! Weights as the model's files have them: mapped, checked against the file's
//! bounds, and found by role.

mod gguf;
mod mapped_file;
mod role;
mod safetensors;
mod tensor;

pub use mapped_file::MappedFile;
pub use role::WeightRole;
pub use tensor::WeightTensor;

use nano_model::gguf::GgmlType;
use nano_model::{ModelError, ModelSource};
use std::collections::HashMap;
use std::path::PathBuf;

/// Which of the two layouts the files have; names and the order of rows follow
/// from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// Hugging Face layout.
    Safetensors,
    /// One GGUF file.
    Gguf,
}

/// Every tensor of a model's files, by name.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    format: WeightFormat,
    tensors: HashMap<String, WeightTensor>,
    file_bytes: u64,
}

impl Weights {
    /// Maps the files of a model and reads their headers.
    ///
    /// # Errors
    /// When a file is missing or broken, or a tensor leaves its file.
    pub fn open(source: &ModelSource) -> Result<Weights, ModelError> {
        match source {
            ModelSource::Gguf(file) => gguf::open(file),
            ModelSource::Directory(dir) => safetensors::open(dir),
        }
    }

    /// The layout of the files.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The type of most weights, for logs.
    pub fn main_dtype(&self) -> GgmlType {
        let bytes_of = |dtype: GgmlType| -> usize {
            let tensors = self.tensors.values().filter(|t| t.dtype() == dtype);
            tensors.map(|tensor| tensor.bytes().len()).sum()
        };
        GgmlType::ALL
            .into_iter()
            .max_by_key(|&dtype| bytes_of(dtype))
            .unwrap_or(GgmlType::F32)
    }

    /// The tensor of a role, where the files have one.
    pub fn find(&self, role: WeightRole) -> Option<&WeightTensor> {
        self.tensors.get(&role.name(self.format))
    }

    /// The tensor of a role, which must have this shape.
    ///
    /// # Errors
    /// When the files have none, or it has another shape.
    pub fn get(&self, role: WeightRole, shape: &[usize]) -> Result<WeightTensor, ModelError> {
        let name = role.name(self.format);
        let Some(tensor) = self.tensors.get(&name) else {
            return Err(ModelError::field(
                &self.path,
                name,
                "this tensor is missing",
            ));
        };
        if tensor.shape() == shape {
            Ok(tensor.clone())
        } else {
            Err(ModelError::field(
                &self.path,
                name,
                format_args!(
                    "has shape {:?}, the configuration asks for {shape:?}",
                    tensor.shape()
                ),
            ))
        }
    }
}
