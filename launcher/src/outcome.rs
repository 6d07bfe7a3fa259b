//! How a server ended, as its operator learns it.

use crate::EXIT_USAGE;
use nano_ipc::logging;
use nano_ipc::role::Role;
use std::io::{self, Write};
use std::process::ExitCode;

/// How the server ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it was ordered to.
    Ordered,
    /// It could not begin as it was told to.
    CannotStart(String),
    /// A part of it died, failed or stalled.
    Failed(String),
}

impl Outcome {
    /// Prints the one line that says what was wrong, if something was.
    pub fn exit_code(self) -> ExitCode {
        let (code, line) = match self {
            Outcome::Ordered => return ExitCode::SUCCESS,
            Outcome::Failed(line) => (1, line),
            Outcome::CannotStart(line) => (EXIT_USAGE, line),
        };
        // Where nobody can be told any more, the code still says it.
        let _ = writeln!(io::stderr(), "nano-serve: {}", logging::one_line(&line));
        ExitCode::from(code)
    }
}

/// Why a server ends that was not told to. The least is the root: losing a peer
/// makes others fail, too, and failures run from the worker to the frontend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    rank: u8,
    text: String,
    pid: Option<u32>,
}

impl Cause {
    /// A process ended without a word, or moves no more: nothing else explains that.
    pub fn death(text: String) -> Cause {
        Cause {
            rank: 0,
            text,
            pid: None,
        }
    }

    /// A role ended as if it had been told to: whom it served is gone.
    pub fn desertion(role: Role) -> Cause {
        Cause {
            rank: 4,
            text: format!("{role} ended on its own"),
            pid: None,
        }
    }

    /// A role ended with a reason.
    pub fn failure(role: Role, reason: &str) -> Cause {
        let rank = match role {
            Role::Worker { .. } => 1,
            Role::Core => 2,
            Role::Frontend => 3,
        };
        let text = format!("{role}: {reason}");
        Cause {
            rank,
            text,
            pid: None,
        }
    }

    /// It lies in this process.
    pub fn in_process(self, pid: u32) -> Cause {
        Cause {
            pid: Some(pid),
            ..self
        }
    }

    /// The one nearer to the root.
    pub fn root(self, earlier: Option<Cause>) -> Cause {
        match earlier {
            Some(earlier) => earlier.min(self),
            None => self,
        }
    }

    /// In which process it lies, if in one of its own.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// One line.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Outcome {
    /// Of a server that ended for this cause, if for any, and was ready before or not.
    pub fn of(cause: Option<Cause>, was_ready: bool) -> Outcome {
        match cause {
            None => Outcome::Ordered,
            Some(cause) if !was_ready && cause.rank > 0 => Outcome::CannotStart(cause.text),
            Some(cause) => Outcome::Failed(cause.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_chain_of_failures_is_found_in_any_order() {
        let chain = [
            Cause::failure(Role::Frontend, "the core is gone"),
            Cause::failure(Role::Worker { rank: 0 }, "tensor x is missing"),
            Cause::failure(Role::Core, "worker 0 is gone"),
        ];
        let found = chain
            .iter()
            .cloned()
            .fold(None, |root, cause| Some(cause.root(root)));
        let text = "worker-0: tensor x is missing".to_owned();
        assert_eq!(
            Outcome::of(found.clone(), false),
            Outcome::CannotStart(text.clone())
        );
        assert_eq!(Outcome::of(found.clone(), true), Outcome::Failed(text));
        let found = Some(Cause::desertion(Role::Frontend).root(found));
        let killed = Cause::death("core was killed by SIGKILL".to_owned()).in_process(12);
        let killed = killed.root(found);
        assert_eq!(killed.pid(), Some(12));
        let text = "core was killed by SIGKILL".to_owned();
        assert_eq!(Outcome::of(Some(killed), false), Outcome::Failed(text));
    }
}
