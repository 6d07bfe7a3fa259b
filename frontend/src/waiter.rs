//! Whether anybody still waits for work that is done on another thread.

use crate::api_error::ApiError;
use std::sync::{Arc, Weak};

/// Tells work whether anybody still waits for it.
#[derive(Debug)]
pub struct Waiter(Weak<()>);

/// Kept by whoever waits, for as long as they do.
#[derive(Debug)]
pub struct Waiting(Arc<()>);

impl Waiting {
    /// Somebody waits from now on.
    pub fn begin() -> Waiting {
        Waiting(Arc::default())
    }

    /// What the work looks at.
    pub fn waiter(&self) -> Waiter {
        Waiter(Arc::downgrade(&self.0))
    }
}

impl Waiter {
    /// Ends work that nobody waits for.
    ///
    /// # Errors
    /// When it is so; nobody reads the error.
    pub fn check(&self) -> Result<(), ApiError> {
        match self.0.strong_count() {
            0 => Err(ApiError::internal("the client has gone")),
            _ => Ok(()),
        }
    }
}
