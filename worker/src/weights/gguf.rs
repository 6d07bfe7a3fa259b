//! Weights of a GGUF file.

use super::{MappedFile, WeightFormat, WeightTensor, Weights};
use nano_model::ModelError;
use nano_model::gguf::GgufFile;
use std::collections::HashMap;
use std::sync::Arc;

/// Maps the file behind a header that was read.
pub(super) fn open(gguf: &GgufFile) -> Result<Weights, ModelError> {
    let file = Arc::new(MappedFile::open(gguf.path())?);
    let mut tensors = HashMap::new();
    for info in gguf.tensors() {
        let start = info.offset as usize;
        let tensor = WeightTensor::mapped(
            info.name.clone(),
            info.ggml_type,
            info.shape(),
            &file,
            start..start + info.bytes as usize,
        )
        // The header was checked, but against the file that lay there then.
        .map_err(|reason| ModelError::field(gguf.path(), &info.name, reason))?;
        tensors.insert(info.name.clone(), tensor);
    }
    Ok(Weights {
        path: gguf.path().to_owned(),
        format: WeightFormat::Gguf,
        tensors,
        file_bytes: file.bytes().len() as u64,
    })
}
