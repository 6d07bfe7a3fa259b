//! What a child process receives from the launcher on its control socket.

use crate::config::Start;
use serde::{Deserialize, Serialize};

/// What a child process receives from the launcher on its control socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToChild {
    /// Once, first.
    Start(Box<Start>),
    /// At any time; answered by `Pong` with the same number.
    Ping(u64),
    /// At any time. A frontend drains its open requests for so many
    /// milliseconds; the others leave their loop. The process then finishes
    /// its trace and exits with 0. Zero milliseconds: end at once, and open
    /// requests get `reason`.
    Shutdown {
        /// How long open requests may go on.
        drain_ms: u64,
        /// What open requests are told when their time is up.
        reason: String,
    },
    /// To a frontend: whether `/health` may say 200. `None`: the engine answers.
    Health(Option<String>),
}
