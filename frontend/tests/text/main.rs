//! The layer of text against golden data and libraries of others.

mod byte_streams;
mod chat_templates;
mod hostile;
mod stop_strings;
mod tokenizers_golden;

use nano_frontend::text::TextModel;
use nano_model::ModelSource;
use serde::de::DeserializeOwned;
use std::path::PathBuf;

/// A file or directory of the golden data.
fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(name)
}

fn golden<T: DeserializeOwned>(name: &str) -> T {
    let path = golden_path(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The default model: `NANO_TEST_MODEL`, or where fetching puts it.
fn default_model() -> ModelSource {
    let path = std::env::var_os("NANO_TEST_MODEL")
        .map(PathBuf::from)
        .or_else(nano_model::default_model_path)
        .expect("NANO_TEST_MODEL or HOME must be set");
    ModelSource::open(&path).unwrap_or_else(|error| {
        panic!("{error}\nrun scripts/fetch, or set NANO_TEST_MODEL to the default model's file")
    })
}

fn load(source: &ModelSource) -> TextModel {
    TextModel::load(source, None).unwrap()
}

fn load_golden(name: &str) -> TextModel {
    load(&ModelSource::open(&golden_path(name)).unwrap())
}
