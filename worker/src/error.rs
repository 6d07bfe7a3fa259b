//! Why a worker ends.

use crate::ops::OpError;
use crate::sequence::PlanError;
use nano_ipc::connection::ConnectionError;
use nano_model::ModelError;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its files.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The backend.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The configuration cannot be met.
    #[error("{0}")]
    Config(String),
    /// The process was told to end meanwhile.
    #[error("told to end while loading")]
    Shutdown,
}

/// Why a worker ends before it is told to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The model could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The core's plan breaks a rule.
    #[error("plan of step {step_id}: {error}")]
    Plan {
        /// The plan's step.
        step_id: u64,
        /// Which rule.
        error: PlanError,
    },
    /// The core sent a message that is not legal now.
    #[error("the core sent {0}")]
    Protocol(&'static str),
    /// The backend failed in a step.
    #[error("step {step_id}: {error}")]
    Step {
        /// The step.
        step_id: u64,
        /// What the backend said.
        error: OpError,
    },
    /// A bug: something panicked.
    #[error("step {step_id} panicked: {message}")]
    Panic {
        /// The step; 0 before the first one.
        step_id: u64,
        /// The panic's message.
        message: String,
    },
    /// The core cannot be understood or reached.
    #[error("connection to the core: {0}")]
    Connection(#[from] ConnectionError),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
}
