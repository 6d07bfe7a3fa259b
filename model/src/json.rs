//! JSON objects that know which file and which field they are.

use crate::error::ModelError;
use crate::files::{file_exists, read_text};
use serde_json::{Map, Value};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// A JSON object with the file and the field it came from, so that whatever is
/// wrong inside can be named. A missing key and `null` are the same.
#[derive(Clone, Debug)]
pub(crate) struct JsonObject {
    path: PathBuf,
    /// Where in the file, with a dot behind; empty for the whole file.
    prefix: String,
    map: Map<String, Value>,
}

impl JsonObject {
    /// Reads a file whose top level must be an object.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let text = read_text(path)?;
        match serde_json::from_str(&text) {
            Ok(Value::Object(map)) => Ok(Self {
                path: path.to_owned(),
                prefix: String::new(),
                map,
            }),
            Ok(_) => Err(ModelError::file(path, "the top level is no JSON object")),
            Err(error) => Err(ModelError::file(
                path,
                format_args!("invalid JSON: {error}"),
            )),
        }
    }

    /// As [`read`](Self::read), or `None` where there is no such file.
    pub fn read_if_exists(path: &Path) -> Result<Option<Self>, ModelError> {
        match file_exists(path)? {
            false => Ok(None),
            true => Self::read(path).map(Some),
        }
    }

    pub fn error(&self, field: &str, reason: impl Display) -> ModelError {
        ModelError::field(&self.path, format_args!("{}{field}", self.prefix), reason)
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn typed<'a, T>(
        &'a self,
        field: &str,
        wanted: &str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => get(value)
                .map(Some)
                .ok_or_else(|| self.error(field, format_args!("{value} is not {wanted}"))),
        }
    }

    pub fn object(&self, field: &str) -> Result<Option<JsonObject>, ModelError> {
        let map = self.typed(field, "an object", Value::as_object)?;
        Ok(map.map(|map| JsonObject {
            path: self.path.clone(),
            prefix: format!("{}{field}.", self.prefix),
            map: map.clone(),
        }))
    }

    pub fn str(&self, field: &str) -> Result<Option<&str>, ModelError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub fn bool(&self, field: &str) -> Result<Option<bool>, ModelError> {
        self.typed(field, "a boolean", Value::as_bool)
    }

    pub fn f64(&self, field: &str) -> Result<Option<f64>, ModelError> {
        self.typed(field, "a number", Value::as_f64)
    }

    pub fn u32(&self, field: &str) -> Result<Option<u32>, ModelError> {
        self.typed(field, "an integer from 0 to 4294967295", as_u32)
    }

    /// Token ids: one number, a list of them, or nothing. Negative ones, which
    /// some files use for "none", are left out.
    pub fn token_ids(&self, field: &str) -> Result<Vec<u32>, ModelError> {
        let ids = self.typed(
            field,
            "a token id or a list of token ids",
            |value| match value {
                Value::Array(list) => list.iter().map(token_id).collect(),
                single => token_id(single).map(|id| vec![id]),
            },
        )?;
        Ok(ids.into_iter().flatten().flatten().collect())
    }

    /// Names of the fields, in the file's order or sorted.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.map.iter().map(|(key, value)| (key.as_str(), value))
    }
}

fn as_u32(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|value| value.try_into().ok())
}

/// `Some(None)` for a negative number, `None` for what is no id at all.
fn token_id(value: &Value) -> Option<Option<u32>> {
    match value.as_i64() {
        Some(negative) if negative < 0 => Some(None),
        _ => as_u32(value).map(Some),
    }
}
