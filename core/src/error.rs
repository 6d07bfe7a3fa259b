//! Why the core ends on its own.

use crate::scheduler::WorkerMistake;
use nano_ipc::connection::ConnectionError;
use nix::errno::Errno;

/// Why the core ends on its own. Every open request fails with this text.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// A number of the configuration, or one that the workers found, is unusable.
    #[error("{0}")]
    Config(String),
    /// Listening or waiting failed.
    #[error("sockets of the core: {0}")]
    System(#[from] Errno),
    /// A worker's connection ended; most likely the worker died.
    #[error("worker {rank} is gone: {source}")]
    WorkerGone {
        /// Its tensor-parallel rank.
        rank: u32,
        /// What the connection says.
        source: ConnectionError,
    },
    /// A worker says that it cannot go on.
    #[error("worker {rank} failed: {reason}")]
    WorkerFailed {
        /// Its tensor-parallel rank.
        rank: u32,
        /// In its own words.
        reason: String,
    },
    /// A worker said what it must not say now.
    #[error("worker {rank} broke the protocol: {what}")]
    WorkerProtocol {
        /// Its tensor-parallel rank.
        rank: u32,
        /// What it did.
        what: String,
    },
    /// A worker's result does not answer its plan.
    #[error("the workers' result is wrong: {0}")]
    WorkerMistake(#[from] WorkerMistake),
    /// Binaries of different versions were started together.
    #[error(
        "{role} speaks protocol version {theirs}, this nano-core {ours}: all binaries must be of one build"
    )]
    ProtocolVersion {
        /// Who connected.
        role: nano_ipc::role::Role,
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// A bug of ours.
    #[error("the core panicked: {0}")]
    Panicked(String),
}
