//! From what `--model` says to files on disk, and the names that clients use.

use crate::hub::{Hub, HubError, HubModel};
use nano_model::{DEFAULT_MODEL_FILE, ModelError, ModelSource, default_model_path};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A model that is there and whose files, tensors aside, were read once.
#[derive(Clone, Debug)]
pub struct Model {
    /// Absolute.
    pub path: PathBuf,
    /// Names under which clients may ask for it. Not empty.
    pub names: Vec<String>,
}

/// Why no model can be served.
#[derive(Debug, thiserror::Error)]
pub enum NoModel {
    /// No `--model`, and the default one is not in the cache.
    #[error(
        "the default model {DEFAULT_MODEL_FILE} was not fetched: run `scripts/fetch-model`, or name another one by --model"
    )]
    NotFetched,
    /// Looks like a path, and nothing is there.
    #[error("--model {0}: no such file or directory")]
    NoSuchPath(String),
    /// The hub did not give it.
    #[error("--model {0}")]
    NotFetchedFromHub(#[from] HubError),
    /// Its files say what cannot be served.
    #[error("--model {0}")]
    Broken(#[from] ModelError),
}

/// Finds the model and reads all but its tensors, so that a broken one ends here.
///
/// # Errors
/// One line that names the file, and the field where one is wrong.
pub fn resolve(model: Option<&str>, served_names: &[String]) -> Result<Model, NoModel> {
    let path = match model {
        Some(model) => local_path(model)?,
        None => default_model_path()
            .filter(|path| path.exists())
            .ok_or(NoModel::NotFetched)?,
    };
    ModelSource::open(&path)?.validate()?;
    let path = std::path::absolute(&path).unwrap_or(path);
    let names = match (served_names, model) {
        // The cache names a model's directory by its commit.
        ([], Some(name)) if !Path::new(name).exists() => vec![name.to_owned()],
        ([], _) => default_names(model, &path),
        (given, _) => given.to_vec(),
    };
    Ok(Model { path, names })
}

/// A path, or the cache's path of a model that the hub knows by this name.
fn local_path(model: &str) -> Result<PathBuf, NoModel> {
    let path = PathBuf::from(model);
    if path.exists() {
        return Ok(path);
    }
    let Some(name) = HubModel::parse(model) else {
        return Err(NoModel::NoSuchPath(model.to_owned()));
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    // A download does not end because nobody can be told of it.
    let report = |line: &str| {
        let _ = writeln!(io::stderr(), "nano-serve: {line}");
    };
    Ok(Hub::from_env(variable, report)?.fetch(&name)?)
}

/// The file's or directory's own name, and the flag's value as other servers have it.
fn default_names(model: Option<&str>, path: &Path) -> Vec<String> {
    let own = if path.extension().is_some_and(|e| e == "gguf") {
        path.file_stem()
    } else {
        path.file_name()
    };
    let own = own.map_or_else(
        || "model".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let mut names = vec![own];
    names.extend(
        model
            .filter(|model| *model != names[0])
            .map(ToOwned::to_owned),
    );
    names
}
