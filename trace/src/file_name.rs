//! Names of trace files: `<session>.<role>[-<rank>].<run>-<pid>.pftrace`.

use std::{fmt, str::FromStr};

/// What a trace file's name says. Session names may hold dots, so names are
/// read from the right; role and run hold neither dots nor hyphens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceFileName {
    /// The session that the file belongs to.
    pub session: String,
    /// `frontend`, `core`, `worker`, `single`, or `bench`: a client.
    pub role: String,
    /// Which worker.
    pub rank: Option<u32>,
    /// The random word of the server's start.
    pub run: String,
    /// The process that wrote it.
    pub pid: u32,
}

/// Ending of every trace file.
pub const EXTENSION: &str = "pftrace";

/// A name that no trace file of ours has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form <session>.<role>[-<rank>].<run>-<pid>.{EXTENSION}")]
pub struct NotATraceFileName;

impl fmt::Display for TraceFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.role)?;
        if let Some(rank) = self.rank {
            write!(f, "-{rank}")?;
        }
        write!(f, ".{}-{}.{EXTENSION}", self.run, self.pid)
    }
}

impl FromStr for TraceFileName {
    type Err = NotATraceFileName;

    fn from_str(name: &str) -> Result<TraceFileName, NotATraceFileName> {
        fn parse(name: &str) -> Option<TraceFileName> {
            let stem = name.strip_suffix(EXTENSION)?.strip_suffix('.')?;
            let (head, process) = stem.rsplit_once('.')?;
            let (session, role) = head.rsplit_once('.')?;
            let (run, pid) = process.rsplit_once('-')?;
            let (role, rank) = match role.split_once('-') {
                Some((role, rank)) => (role, Some(rank.parse().ok()?)),
                None => (role, None),
            };
            if session.is_empty() || role.is_empty() || run.is_empty() {
                return None;
            }
            Some(TraceFileName {
                session: session.to_owned(),
                role: role.to_owned(),
                rank,
                run: run.to_owned(),
                pid: pid.parse().ok()?,
            })
        }
        parse(name).ok_or(NotATraceFileName)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_way_there_and_back() {
        for name in [
            "auto.frontend.k3x9-17.pftrace",
            "auto.worker-3.k3x9-4194304.pftrace",
            "2026-11-30T09.00.00.123.core.k3x9-1.pftrace",
        ] {
            let parsed: TraceFileName = name.parse().unwrap();
            assert_eq!(parsed.to_string(), name);
        }
        let parsed: TraceFileName = "a.b.worker-3.k3x9-17.pftrace".parse().unwrap();
        assert_eq!(
            (parsed.session.as_str(), parsed.role.as_str(), parsed.rank),
            ("a.b", "worker", Some(3))
        );
    }

    #[test]
    fn foreign_names_are_refused() {
        for name in [
            "",
            "merged.pftrace",
            "auto.core.k3x9-17",
            "auto.core.k3x9.pftrace",
            "auto.core.k3x9-x.pftrace",
            "auto.worker-.k3x9-1.pftrace",
            ".core.k3x9-1.pftrace",
            "core.k3x9-1.pftrace",
        ] {
            assert_eq!(
                name.parse::<TraceFileName>(),
                Err(NotATraceFileName),
                "{name}"
            );
        }
    }
}
