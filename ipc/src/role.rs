//! What a process is.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a process of the server is, and for a worker which rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// HTTP, text and tokenizers.
    Frontend,
    /// Scheduler and KV-cache accounting.
    Core,
    /// Model runner of one tensor-parallel rank.
    Worker {
        /// Tensor-parallel rank, `0..world_size`.
        rank: u32,
    },
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Frontend => f.write_str("frontend"),
            Role::Core => f.write_str("core"),
            Role::Worker { rank } => write!(f, "worker-{rank}"),
        }
    }
}
