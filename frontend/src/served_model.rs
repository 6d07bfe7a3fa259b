//! What requests are read for: the model, and the names under which clients ask for it.

use crate::api_error::ApiError;
use crate::fields::Fields;
use crate::text::TextModel;
use nano_ipc::engine_info::EngineInfo;
use std::sync::Arc;

/// What requests are read for. Clones share it.
#[derive(Clone)]
pub struct ServedModel {
    /// What clients may call it.
    pub names: Arc<ServedNames>,
    /// Everything of it that is text.
    pub text: Arc<TextModel>,
    /// Its bounds.
    pub info: Arc<EngineInfo>,
}

/// The names under which clients may ask for the model. The first is the one
/// that answers have.
#[derive(Clone, Debug)]
pub struct ServedNames(Vec<String>);

impl ServedNames {
    /// Takes them in the operator's order.
    pub fn new(names: Vec<String>) -> ServedNames {
        ServedNames(names)
    }

    /// The name under which answers speak of the model.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Checks the field `model`; absent means the one that is served.
    ///
    /// # Errors
    /// 404 for another one.
    pub fn check_field(&self, fields: &Fields<'_>) -> Result<(), ApiError> {
        match fields.get::<String>("model")? {
            Some(asked) => self.check(&asked),
            None => Ok(()),
        }
    }

    /// Checks a name that a client asks for.
    ///
    /// # Errors
    /// 404 for another one.
    pub fn check(&self, asked: &str) -> Result<(), ApiError> {
        match self.iter().any(|name| name == asked) {
            true => Ok(()),
            false => Err(ApiError::unknown_model(asked, &self.0)),
        }
    }
}
