//! Weights of a directory in Hugging Face layout.

use super::{MappedFile, WeightFormat, WeightTensor, Weights};
use ::safetensors::tensor::{Dtype, SafeTensors};
use nano_model::gguf::GgmlType;
use nano_model::{ModelDir, ModelError};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Maps every file of the directory's weights.
pub(super) fn open(dir: &ModelDir) -> Result<Weights, ModelError> {
    let mut tensors = HashMap::new();
    let mut file_bytes = 0;
    for path in dir.weight_files() {
        let file = Arc::new(MappedFile::open(path)?);
        file_bytes += file.bytes().len() as u64;
        add_file(path, &file, &mut tensors)?;
    }
    Ok(Weights {
        path: dir.path().to_owned(),
        format: WeightFormat::Safetensors,
        tensors,
        file_bytes,
    })
}

fn add_file(
    path: &Path,
    file: &Arc<MappedFile>,
    tensors: &mut HashMap<String, WeightTensor>,
) -> Result<(), ModelError> {
    let (header_bytes, metadata) = SafeTensors::read_metadata(file.bytes())
        .map_err(|error| ModelError::file(path, format_args!("not a safetensors file: {error}")))?;
    let data = 8 + header_bytes;
    for (name, info) in metadata.tensors() {
        // Tensors of other types (integer buffers) play no role in any model.
        let Some(dtype) = dtype(info.dtype) else {
            continue;
        };
        let (start, end) = info.data_offsets;
        let tensor = WeightTensor::mapped(
            name.clone(),
            dtype,
            info.shape.clone(),
            file,
            data + start..data + end,
        )
        .map_err(|reason| ModelError::field(path, &name, reason))?;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(ModelError::field(path, name, "is in two files"));
        }
    }
    Ok(())
}

fn dtype(dtype: Dtype) -> Option<GgmlType> {
    match dtype {
        Dtype::F32 => Some(GgmlType::F32),
        Dtype::F16 => Some(GgmlType::F16),
        Dtype::BF16 => Some(GgmlType::BF16),
        _ => None,
    }
}
