//! What the launcher receives from its children on their control sockets.

use crate::engine_info::EngineInfo;
use crate::flight::RuleFired;
use crate::profile::{ProfileCommand, RecorderReport, SessionSwitch};
use nano_trace::SessionStatus;
use serde::{Deserialize, Serialize};

/// What the launcher receives from its children on their control sockets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// Answer to `Ping`.
    Pong {
        /// The ping's number.
        number: u64,
        /// Last step begun, 0 before the first.
        step_id: u64,
        /// CLOCK_BOOTTIME in ns since when the process's loop has been at
        /// its current piece of work; 0 when it waits for input.
        busy_since_ns: u64,
    },
    /// Once, from a frontend: the engine is ready and requests are accepted.
    Ready(EngineInfo),
    /// Last message of a process that ends because of an error: one line for
    /// the operator.
    Failed(String),
    /// From a frontend, at any time: a client's wish; answered by
    /// `ProfileAnswer` with the same number.
    Profile {
        /// The frontend's number for it.
        id: u64,
        /// What the client wants.
        command: ProfileCommand,
    },
    /// Answer to `Profile`.
    ProfileReport {
        /// The order's number.
        number: u64,
        /// How the recorder stands.
        report: RecorderReport,
    },
    /// From the core, which has obeyed it already.
    ProfileSwitch(SessionSwitch),
    /// A session has ended by itself in this process: its time or bytes are
    /// used up, or its file cannot be written.
    ProfileEnded(SessionStatus),
    /// Something was slower than a rule allows.
    RuleFired(RuleFired),
    /// A thread has panicked: what it said, in one line.
    Panicked(String),
}
