//! A mapped GGUF file with its validated header.

use super::header::{Header, TensorInfo};
use super::value::Value;
use crate::error::ModelError;
use memmap2::Mmap;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A mapped GGUF file. Holds: the header is valid, tensor names are unique, and
/// each tensor's bytes lie within the mapping.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    map: Mmap,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    tensor_index: HashMap<String, usize>,
}

impl GgufFile {
    /// Maps the file and validates its header.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let fail = |error: std::io::Error| ModelError::file(path, error);
        let file = File::open(path).map_err(fail)?;
        // SAFETY: the map is read-only. Model files are not written to while
        // they are served; who truncates one then ends the process by SIGBUS,
        // and the supervisor reports that, but no memory is corrupted: only
        // plain bytes are read through the map, and the header is copied out.
        let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
        let header = Header::parse(&map)
            .map_err(|error| ModelError::field(path, error.field, error.reason))?;
        let mut tensor_index = HashMap::with_capacity(header.tensors.len());
        for (index, tensor) in header.tensors.iter().enumerate() {
            if tensor_index.insert(tensor.name.clone(), index).is_some() {
                return Err(ModelError::field(
                    path,
                    format_args!("tensor {}", tensor.name),
                    "this name appears twice",
                ));
            }
        }
        let gguf = Self {
            path: path.to_owned(),
            map,
            metadata: header.metadata,
            tensors: header.tensors,
            tensor_index,
        };
        match gguf.u32("split.count")? {
            None | Some(0 | 1) => Ok(gguf),
            Some(count) => Err(gguf.error(
                "split.count",
                format_args!("one of {count} parts; join the parts into one file first"),
            )),
        }
    }

    /// The file's path as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index
            .get(name)
            .and_then(|&index| self.tensors.get(index))
    }

    /// The bytes of the tensor of this name, `info.bytes` of them.
    pub fn tensor_data(&self, name: &str) -> Option<&[u8]> {
        let info = self.tensor(name)?;
        let start = info.offset as usize;
        self.map.get(start..start + info.bytes as usize)
    }

    /// The value of a metadata key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// An integer, if the key is there.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, ModelError> {
        self.typed(key, Value::as_u32, "an integer of 32 bits")
    }

    /// A float, if the key is there.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.typed(key, Value::as_f64, "a float")
    }

    /// A boolean, if the key is there.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, Value::as_bool, "a boolean")
    }

    /// Text, if the key is there.
    pub fn str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.typed(key, Value::as_str, "a string")
    }

    pub(super) fn typed<'a, T>(
        &'a self,
        key: &str,
        get: impl FnOnce(&'a Value) -> Option<T>,
        wanted: &str,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        match get(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.error(
                key,
                format_args!("is {}, but must be {wanted}", value.kind()),
            )),
        }
    }

    pub(crate) fn error(&self, field: impl Display, reason: impl Display) -> ModelError {
        ModelError::field(&self.path, field, reason)
    }
}
