//! What processes report to one command, until it can be answered.

use super::place::Member;
use nano_ipc::flight::FlightState;
use nano_ipc::profile::{
    Part, ProfileAnswer, ProfilePhase, ProfileState, RecorderReport, SessionOfProcess,
    SessionOfServer,
};
use nano_trace::{SessionName, SessionState};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime};

/// So long may processes take to report.
pub(super) const REPORT_WITHIN: Duration = Duration::from_millis(500);

/// Who waits for whole files asks again so often.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Who waits for whole files is answered after so long in any case.
pub(super) const WHOLE_WITHIN: Duration = Duration::from_secs(30);

/// Who gets the answer.
#[derive(Debug)]
pub(super) enum Asker {
    /// A client of a frontend, by the frontend's number.
    Client {
        /// The frontend's pid.
        frontend: u32,
        /// Its number for the question.
        id: u64,
    },
    /// The operator, by a signal.
    Signal,
}

/// Why processes report.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A session begins; with what its client should know.
    Start(Vec<String>),
    /// Somebody wants to know.
    Tell,
    /// Somebody waits for whole files, and is answered at this time in any case.
    Wait { until: Instant },
}

/// What processes report to one command.
#[derive(Debug)]
pub(super) struct Gathering {
    /// Of the orders.
    pub(super) number: u64,
    pub(super) asker: Asker,
    /// By pid.
    pub(super) reports: BTreeMap<u32, RecorderReport>,
    purpose: Purpose,
    /// The session that comes first in the answer.
    primary: Option<SessionName>,
    deadline: Instant,
    /// When to send orders anew; nobody is waited for until then.
    ask_again: Option<Instant>,
}

impl Gathering {
    pub(super) fn new(
        number: u64,
        now: Instant,
        asker: Asker,
        purpose: Purpose,
        primary: Option<SessionName>,
    ) -> Gathering {
        Gathering {
            number,
            asker,
            reports: BTreeMap::new(),
            purpose,
            primary,
            deadline: now + REPORT_WITHIN,
            ask_again: None,
        }
    }

    /// Whether it is about the begin of this session.
    pub(super) fn is_begin_of(&self, name: &SessionName) -> bool {
        matches!(self.purpose, Purpose::Start(_)) && self.primary.as_ref() == Some(name)
    }

    /// When something is to be done at the latest.
    pub(super) fn next_tick(&self) -> Instant {
        self.ask_again.unwrap_or(self.deadline)
    }

    /// Whether it is time to send orders anew.
    pub(super) fn is_to_ask_again(&self, now: Instant) -> bool {
        self.ask_again.is_some_and(|again| now >= again)
    }

    /// Orders were sent anew.
    pub(super) fn begin_again(&mut self, number: u64, now: Instant) {
        self.number = number;
        self.ask_again = None;
        self.reports.clear();
        self.deadline = now + REPORT_WITHIN;
    }

    /// Whether it can be answered now. If files are not whole that somebody
    /// waits for, orders are to be sent anew.
    pub(super) fn is_complete(&mut self, members: &[Member], now: Instant) -> bool {
        if self.ask_again.is_some() {
            return false;
        }
        let reported = |member: &Member| member.gone || self.reports.contains_key(&member.pid);
        if !members.iter().all(reported) && now < self.deadline {
            return false;
        }
        match self.purpose {
            Purpose::Wait { until } if !self.all_whole() && now < until => {
                self.ask_again = Some(now + ASK_AGAIN_AFTER);
                false
            }
            _ => true,
        }
    }

    /// Whether no session is recorded or written any more, as far as was told.
    pub(super) fn all_whole(&self) -> bool {
        let mut sessions = self.reports.values().flat_map(|report| &report.sessions);
        sessions.all(|status| status.state.is_over())
    }

    /// The answer, of what was told.
    pub(super) fn answer(
        &self,
        members: &[Member],
        phase: ProfilePhase,
        flight: Option<FlightState>,
    ) -> ProfileAnswer {
        let sessions: Vec<SessionOfServer> = self
            .session_names()
            .into_iter()
            .map(|name| self.session(name, members))
            .collect();
        let notes = match &self.purpose {
            Purpose::Start(notes) => {
                if let Some(reason) = sessions.first().and_then(in_vain) {
                    return ProfileAnswer::Failed(reason);
                }
                notes.clone()
            }
            Purpose::Tell | Purpose::Wait { .. } => Vec::new(),
        };
        ProfileAnswer::Done(ProfileState {
            phase,
            sessions,
            notes,
            flight,
        })
    }

    /// The primary one, then the others, newest first.
    fn session_names(&self) -> Vec<SessionName> {
        let mut begins = HashMap::<&SessionName, SystemTime>::new();
        for status in self.reports.values().flat_map(|report| &report.sessions) {
            let begin = begins.entry(&status.name).or_insert(status.since);
            *begin = status.since.min(*begin);
        }
        let mut others: Vec<(&SessionName, SystemTime)> = begins
            .into_iter()
            .filter(|(name, _)| self.primary.as_ref() != Some(*name))
            .collect();
        others.sort_by_key(|(name, begin)| (Reverse(*begin), Reverse(*name)));
        let others = others.into_iter().map(|(name, _)| name.clone());
        self.primary.iter().cloned().chain(others).collect()
    }

    fn session(&self, name: SessionName, members: &[Member]) -> SessionOfServer {
        let processes = members
            .iter()
            .flat_map(|member| {
                let part = self.part(&name, member);
                let of_role = move |role: &_| SessionOfProcess {
                    role: *role,
                    pid: member.pid,
                    part: part.clone(),
                };
                member.roles.iter().map(of_role)
            })
            .collect();
        SessionOfServer { name, processes }
    }

    fn part(&self, name: &SessionName, member: &Member) -> Part {
        let Some(report) = self.reports.get(&member.pid) else {
            return if member.gone {
                Part::Gone
            } else {
                Part::Silent
            };
        };
        let told = report.sessions.iter().find(|status| status.name == *name);
        match (told, &report.refused) {
            (Some(status), _) => Part::Told(status.clone()),
            (None, Some(reason)) if self.is_begin_of(name) => Part::Refused(reason.clone()),
            (None, _) => Part::None,
        }
    }
}

/// Why a session began in no process, if that is so.
fn in_vain(session: &SessionOfServer) -> Option<String> {
    let mut reason = None;
    for process in &session.processes {
        match &process.part {
            Part::Refused(why) => reason = Some(why.clone()),
            Part::Told(status) => match &status.state {
                SessionState::Failed(why) => reason = Some(why.clone()),
                _ => return None,
            },
            // It begins when it wakes.
            Part::Silent => return None,
            Part::Gone | Part::None => {}
        }
    }
    reason
}
