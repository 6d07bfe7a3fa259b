//! What a child process receives from the launcher on its control socket.

use crate::config::Start;
use crate::flight::FlightCounts;
use crate::profile::{ProfileAnswer, RecorderOrder, SessionSwitch, StepsToCount};
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
    /// To a process that records; answered by `ProfileReport` with the same
    /// number, in milliseconds.
    Profile {
        /// The report's number.
        number: u64,
        /// What to do.
        order: RecorderOrder,
    },
    /// To a process that records, after the session's begin.
    ProfileSwitch(SessionSwitch),
    /// To the core: which steps to count from now on; `None`: none.
    CountSteps(Option<StepsToCount>),
    /// To a frontend, whenever they change: for `/metrics`.
    FlightCounts(FlightCounts),
    /// To a frontend, once for each `Profile` of its own.
    ProfileAnswer {
        /// The question's number.
        id: u64,
        /// What the client is told.
        answer: Box<ProfileAnswer>,
    },
}
