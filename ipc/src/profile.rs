//! What a client asks of the profiler, and what it is told.

use crate::flight::FlightState;
use crate::role::Role;
use crate::step_bounds::StepBounds;
use nano_trace::{Detail, SampleRate, SessionName, SessionSpec, SessionStatus};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What a client asks of the profiler; validated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProfileCommand {
    /// Records a new session. Ends `auto`; is refused while another one records.
    Start(Box<StartProfile>),
    /// Ends whatever records; does nothing where nothing does.
    Stop {
        /// Answer when all files are whole.
        wait: bool,
    },
    /// Writes what the processes kept of their last seconds.
    Dump {
        /// The time, if there is none.
        name: Option<SessionName>,
        /// How far back; as far as is kept, if nothing is said.
        reach: Option<Duration>,
        /// Fields that mean nothing here.
        ignored: Vec<String>,
    },
    /// Tells how things stand.
    Status,
    /// Tells where the files of a session or a dump are; of the newest one, if none is
    /// named.
    Files(Option<SessionName>),
}

/// A session that a client wants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StartProfile {
    /// The time, if there is none.
    pub name: Option<SessionName>,
    /// Which steps; all from now on, if there is none.
    pub steps: Option<StepBounds>,
    /// How long at most.
    pub duration: Option<Duration>,
    /// Bytes of one process's file at most; the operator's bound holds too.
    pub max_bytes: Option<u64>,
    /// Only requests whose client marked them.
    pub marked_only: bool,
    /// How much is shown.
    pub detail: Detail,
    /// Which processes; empty: all.
    pub processes: Vec<ProcessFilter>,
    /// Wishes beyond what is always recorded.
    pub activities: Activities,
    /// A directory was named, which is the operator's alone to choose.
    pub names_directory: bool,
    /// Fields that mean nothing here.
    pub ignored: Vec<String>,
}

/// Wishes beyond the processes' own events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activities {
    /// Kernels and copies of a GPU.
    pub gpu: bool,
    /// Samples of call stacks, so often.
    pub samples: Option<SampleRate>,
    /// What other profilers record.
    pub foreign: bool,
}

/// Names processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessFilter {
    /// The process of this role.
    Role(Role),
    /// Every worker.
    Workers,
}

impl ProcessFilter {
    /// Whether it means this one.
    pub fn means(self, role: Role) -> bool {
        match self {
            ProcessFilter::Role(meant) => meant == role,
            ProcessFilter::Workers => matches!(role, Role::Worker { .. }),
        }
    }
}

/// A word that names no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("processes are `frontend`, `core`, `worker` (all of them) and `worker-0`, `worker-1` ...")]
pub struct NoProcess;

impl FromStr for ProcessFilter {
    type Err = NoProcess;

    fn from_str(word: &str) -> Result<ProcessFilter, NoProcess> {
        let word = word.to_ascii_lowercase();
        match word.as_str() {
            "frontend" => Ok(ProcessFilter::Role(Role::Frontend)),
            "core" => Ok(ProcessFilter::Role(Role::Core)),
            "worker" => Ok(ProcessFilter::Workers),
            _ => word
                .strip_prefix("worker-")
                .filter(|rank| rank.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|rank| rank.parse().ok())
                .map(|rank| ProcessFilter::Role(Role::Worker { rank }))
                .ok_or(NoProcess),
        }
    }
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProfileAnswer {
    /// What was asked was done.
    Done(ProfileState),
    /// No profiler directory was given to the server: nothing can be recorded.
    Off,
    /// Another session, which a client or the operator began, records.
    Busy(SessionName),
    /// The processes keep nothing that could be dumped.
    NoFlight,
    /// So many dumps wait to be made that no more are taken.
    DumpsWait(usize),
    /// No process of the server is meant.
    NoProcess,
    /// No process could begin, for this reason.
    Failed(String),
    /// There was no such session in the server's run.
    UnknownSession,
    /// Where a session's files are.
    Files {
        /// The operator's directory.
        dir: PathBuf,
        /// The server's run, as files name it.
        run: String,
        /// Which one.
        session: SessionName,
        /// Whose files there should be: roles, as files name them.
        roles: Vec<String>,
    },
}

/// How the profiler stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileState {
    /// Of the server as a whole.
    pub phase: ProfilePhase,
    /// The session that records, or the newest, then earlier ones that
    /// processes still know, newest first.
    pub sessions: Vec<SessionOfServer>,
    /// What a client should know of how it was understood.
    pub notes: Vec<String>,
    /// `None`: the processes keep nothing.
    pub flight: Option<FlightState>,
}

/// Of the server as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProfilePhase {
    /// No session has the place.
    Idle,
    /// One has.
    Recording,
    /// None has, and files are being finished.
    Flushing,
}

/// A session, process by process: every one is named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionOfServer {
    /// Its name.
    pub name: SessionName,
    /// In order of their start.
    pub processes: Vec<SessionOfProcess>,
}

/// A session in one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionOfProcess {
    /// Which process.
    pub role: Role,
    /// Its number.
    pub pid: u32,
    /// What it said.
    pub part: Part,
}

/// What is known of a session in one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// It has told.
    Told(SessionStatus),
    /// It could not begin, for this reason.
    Refused(String),
    /// It does not answer.
    Silent,
    /// It is dead.
    Gone,
    /// It takes no part in the session.
    None,
}

/// What a process is to do with its recorder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RecorderOrder {
    /// Ends a session at a time, if one is named, and begins another.
    Begin {
        /// CLOCK_BOOTTIME in ns.
        ends: Option<(SessionName, u64)>,
        /// What begins.
        spec: SessionSpec,
    },
    /// Ends a session.
    End {
        /// Which.
        session: SessionName,
        /// CLOCK_BOOTTIME in ns.
        at_ns: u64,
    },
    /// Only tells.
    Report,
}

/// How a process's recorder stands after an order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecorderReport {
    /// Sessions that it knows: those alive, and the last ones that ended.
    pub sessions: Vec<SessionStatus>,
    /// Why it could not obey.
    pub refused: Option<String>,
}

/// Turns the recording of a session on or off, at a time that is past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSwitch {
    /// Which session.
    pub session: SessionName,
    /// CLOCK_BOOTTIME in ns.
    pub at_ns: u64,
    /// On or off.
    pub on: bool,
    /// None follows.
    pub last: bool,
}

/// Steps that the core is to count, for which session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepsToCount {
    /// Whose switches they yield.
    pub session: SessionName,
    /// Which steps.
    pub bounds: StepBounds,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_in_any_case() {
        let worker = |rank| ProcessFilter::Role(Role::Worker { rank });
        for (word, expected) in [
            ("frontend", Ok(ProcessFilter::Role(Role::Frontend))),
            ("Core", Ok(ProcessFilter::Role(Role::Core))),
            ("WORKER", Ok(ProcessFilter::Workers)),
            ("worker-12", Ok(worker(12))),
            ("worker-", Err(NoProcess)),
            ("worker-+1", Err(NoProcess)),
            ("worker-99999999999", Err(NoProcess)),
            ("launcher", Err(NoProcess)),
            ("", Err(NoProcess)),
        ] {
            assert_eq!(word.parse(), expected, "{word:?}");
        }
        assert!(ProcessFilter::Workers.means(Role::Worker { rank: 3 }));
        assert!(!ProcessFilter::Workers.means(Role::Core));
        assert!(!worker(1).means(Role::Worker { rank: 2 }));
    }
}
