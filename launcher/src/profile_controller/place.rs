//! The processes that record, and the session that has the place.

use super::Now;
use nano_ipc::profile::{ProcessFilter, StepsToCount};
use nano_ipc::role::Role;
use nano_ipc::step_bounds::StepBounds;
use nano_trace::{SessionName, SessionSpec};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How much later than its own bound of time a session is ended for a process
/// that has not done so itself: it was stopped, perhaps.
pub(super) const SLACK: Duration = Duration::from_secs(1);

/// The role of a process that has all of them, in the names of its files.
pub const SINGLE: &str = "single";

/// A process with a recorder.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) pid: u32,
    /// What runs in it: one role, or all.
    pub(super) roles: Vec<Role>,
    pub(super) gone: bool,
}

impl Member {
    /// What its trace files call it.
    pub(super) fn role_of_files(&self) -> String {
        match &self.roles[..] {
            [role] => role.to_string(),
            _ => SINGLE.to_owned(),
        }
    }

    /// It runs steps, and no core beside that plans them.
    pub(super) fn is_worker(&self) -> bool {
        let is_worker = |role: &Role| matches!(role, Role::Worker { .. });
        self.roles.iter().all(is_worker)
    }
}

/// The session that has the place.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) name: SessionName,
    /// As late-comers get it.
    pub(super) spec: SessionSpec,
    /// The server's own.
    pub(super) is_auto: bool,
    pub(super) filter: Vec<ProcessFilter>,
    pub(super) steps: Option<StepBounds>,
    /// Of a session that follows steps: since when it records.
    pub(super) on_since: Option<u64>,
    /// It records, or did.
    pub(super) was_on: bool,
    /// Processes that have ended it.
    pub(super) over: BTreeSet<u32>,
    /// When it is ended for those that have not, and from which time on.
    pub(super) until: Option<(Instant, u64)>,
}

impl Current {
    /// Whether this process takes part.
    pub(super) fn has_part(&self, member: &Member) -> bool {
        takes_part(&self.filter, &member.roles)
    }

    /// A client's session takes its place: it is nobody's, or it waits for steps
    /// that perhaps never come, and its client may be gone.
    pub(super) fn makes_room(&self) -> bool {
        self.is_auto || !self.was_on
    }

    /// What the core is to count.
    pub(super) fn to_count(&self) -> Option<StepsToCount> {
        self.steps.map(|bounds| StepsToCount {
            session: self.name.clone(),
            bounds,
        })
    }
}

/// Whether a filter means one of these roles.
pub(super) fn takes_part(filter: &[ProcessFilter], roles: &[Role]) -> bool {
    let meant = |role: &Role| filter.iter().any(|filter| filter.means(*role));
    filter.is_empty() || roles.iter().any(meant)
}

/// When a session that began at `begin_ns` is ended for who has not ended it,
/// and from which time on.
pub(super) fn bound(now: Now, duration: Option<Duration>, begin_ns: u64) -> Option<(Instant, u64)> {
    let duration = duration?;
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Some((
        now.instant + duration + SLACK,
        begin_ns.saturating_add(nanos),
    ))
}
