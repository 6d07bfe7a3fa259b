//! A model directory in Hugging Face layout.

use crate::error::ModelError;
use crate::files::file_exists;
use crate::json::JsonObject;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
/// All weights in one file.
pub const SINGLE_WEIGHTS: &str = "model.safetensors";
/// Which of several files holds which tensor.
pub const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// A model directory in Hugging Face layout.
///
/// Holds: `config.json` was read, and every weight file was there when it was opened.
#[derive(Clone, Debug)]
pub struct ModelDir {
    path: PathBuf,
    pub(crate) config: JsonObject,
    weight_files: Vec<PathBuf>,
}

impl ModelDir {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let config = path.join(CONFIG);
        if !file_exists(&config)? {
            return Err(ModelError::file(path, no_config(path)));
        }
        Ok(Self {
            path: path.to_owned(),
            config: JsonObject::read(&config)?,
            weight_files: weight_files(path)?,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The safetensors files that together hold the weights, sorted by name.
    pub fn weight_files(&self) -> &[PathBuf] {
        &self.weight_files
    }

    /// `tokenizer.json`.
    pub fn tokenizer_file(&self) -> Result<PathBuf, ModelError> {
        let file = self.path.join("tokenizer.json");
        if file_exists(&file)? {
            return Ok(file);
        }
        Err(ModelError::file(
            &self.path,
            "no tokenizer.json in this directory (tokenizer.model alone is not supported)",
        ))
    }

    pub(crate) fn generation_config(&self) -> Result<Option<JsonObject>, ModelError> {
        JsonObject::read_if_exists(&self.path.join("generation_config.json"))
    }
}

/// Somebody who points at a directory of GGUF files means one of them.
fn no_config(path: &Path) -> String {
    let gguf = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.ends_with(".gguf"));
    match gguf {
        Some(name) => format!("no {CONFIG} in this directory; to serve {name}, name that file"),
        None => format!("no {CONFIG} in this directory"),
    }
}

fn weight_files(path: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let single = path.join(SINGLE_WEIGHTS);
    if file_exists(&single)? {
        return Ok(vec![single]);
    }
    let index = path.join(WEIGHTS_INDEX);
    if !file_exists(&index)? {
        let reason = format!("neither {SINGLE_WEIGHTS} nor {WEIGHTS_INDEX} in this directory");
        return Err(ModelError::file(path, reason));
    }
    shard_names(&index)?
        .into_iter()
        .map(|name| {
            let file = path.join(&name);
            if file_exists(&file)? {
                return Ok(file);
            }
            let reason = format!("{name} is missing on disk");
            Err(ModelError::field(&index, "weight_map", reason))
        })
        .collect()
}

/// The files that a `model.safetensors.index.json` names, sorted; at least one.
/// Each is a plain file name: one with a path in it could point anywhere.
pub fn shard_names(index: &Path) -> Result<Vec<String>, ModelError> {
    let index = JsonObject::read(index)?;
    let map = index
        .object("weight_map")?
        .ok_or_else(|| index.error("weight_map", "missing"))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map.entries() {
        let name = file.as_str().filter(|name| !name.contains(['/', '\\']));
        names.insert(name.ok_or_else(|| map.error(tensor, "is no plain file name"))?);
    }
    if names.is_empty() {
        return Err(index.error("weight_map", "is empty"));
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}
