//! The sessions of a process: which there are, and how they stand.
//!
//! Invariants: at most [`MAX_SESSIONS`] are alive, each with a slot and a
//! number of its own and no two of one name; of those that are over the last
//! few are remembered.

use crate::record::Level;
use crate::recording::Recording;
use crate::rings::{MAX_SESSIONS, Rings, SessionSlot};
use crate::switches::Switch;
use crate::{SampleRate, SessionError, SessionName, SessionSpec, SessionState, SessionStatus};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::SystemTime;

/// Sessions that are over and still told of.
const REMEMBERED: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    alive: Vec<Session>,
    over: VecDeque<SessionStatus>,
    begun: u32,
}

/// One that is not over.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) spec: SessionSpec,
    pub(crate) slot: usize,
    pub(crate) number: u32,
    /// Its slot is filled: it can be switched.
    pub(crate) is_open: bool,
    /// All that it needs is recorded since then: it is on no earlier, whatever
    /// it is told, and so never claims a time of which it has nothing.
    pub(crate) recorded_since_ns: u64,
    /// Switches of the slot that the writer has looked at.
    pub(crate) switches_seen: u64,
    /// As it stood last; the state is told by the slot.
    status: SessionStatus,
    /// Switches that found no room.
    lost_switches: u64,
}

impl Sessions {
    /// Makes room for a session that is about to begin, with this file.
    pub(crate) fn reserve(
        &mut self,
        spec: SessionSpec,
        file: PathBuf,
    ) -> Result<&Session, SessionError> {
        if spec.max_bytes < SessionSpec::MIN_BYTES {
            return Err(SessionError::Cap(spec.max_bytes));
        }
        let over = self.over.iter();
        let over = over.filter(|status| !matches!(status.state, SessionState::Failed(_)));
        let mut names = self
            .alive
            .iter()
            .map(|s| &s.spec.name)
            .chain(over.map(|s| &s.name));
        if names.any(|name| *name == spec.name) {
            return Err(SessionError::Taken(spec.name));
        }
        let is_taken = |slot: &usize| self.alive.iter().any(|s| s.slot == *slot);
        let Some(slot) = (0..MAX_SESSIONS).find(|slot| !is_taken(slot)) else {
            return Err(SessionError::TooMany(MAX_SESSIONS));
        };
        self.begun += 1;
        let status = SessionStatus {
            name: spec.name.clone(),
            file,
            state: SessionState::Armed,
            bytes: 0,
            events: 0,
            drops: 0,
            late_records: 0,
            lost_samples: 0,
            unsampled_threads: 0,
            samples: None,
            since: SystemTime::now(),
        };
        self.alive.push(Session {
            spec,
            slot,
            number: self.begun,
            is_open: false,
            recorded_since_ns: 0,
            switches_seen: 0,
            status,
            lost_switches: 0,
        });
        Ok(&self.alive[self.alive.len() - 1])
    }

    pub(crate) fn alive(&mut self) -> &mut [Session] {
        &mut self.alive
    }

    /// The session of this name that can be switched and ended.
    pub(crate) fn open(&mut self, name: &SessionName) -> Option<&mut Session> {
        let mut alive = self.alive.iter_mut();
        alive.find(|session| session.is_open && session.spec.name == *name)
    }

    pub(crate) fn numbered(&mut self, number: u32) -> Option<&mut Session> {
        self.alive.iter_mut().find(|s| s.number == number)
    }

    /// Takes back what [`Sessions::reserve`] did.
    pub(crate) fn forget(&mut self, number: u32) {
        self.alive.retain(|session| session.number != number);
    }

    /// The session is over. Returns how it stands.
    pub(crate) fn end(&mut self, number: u32, state: SessionState) -> Option<SessionStatus> {
        let place = self.alive.iter().position(|s| s.number == number)?;
        let mut status = self.alive.remove(place).status;
        status.state = state;
        if self.over.len() == REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back(status.clone());
        Some(status)
    }

    /// All that are alive or remembered, in the order of their ends and begins.
    pub(crate) fn statuses(&self, rings: &Rings, now_ns: u64) -> Vec<SessionStatus> {
        let alive = self
            .alive
            .iter()
            .map(|session| session.status(rings, now_ns));
        self.over.iter().cloned().chain(alive).collect()
    }

    /// The status of one, the newest of the name.
    pub(crate) fn status(
        &self,
        name: &SessionName,
        rings: &Rings,
        now_ns: u64,
    ) -> Option<SessionStatus> {
        let statuses = self.statuses(rings, now_ns);
        statuses
            .into_iter()
            .rev()
            .find(|status| status.name == *name)
    }

    /// How much must be recorded for all of them.
    pub(crate) fn level(&self) -> Level {
        let levels = self.alive.iter().map(|s| Level::of(s.spec.detail));
        levels.max().unwrap_or(Level::Requests)
    }
}

impl Session {
    pub(crate) fn slot<'r>(&self, rings: &'r Rings) -> &'r SessionSlot {
        &rings.header().sessions[self.slot]
    }

    /// Switches it on or off from a moment on. The first time that it goes on
    /// its duration begins, at the moment that was told: it ends everywhere at once.
    pub(crate) fn switch(&mut self, rings: &Rings, switch: Switch) {
        let slot = self.slot(rings);
        let possible = Switch {
            at_ns: switch.at_ns.max(self.recorded_since_ns),
            ..switch
        };
        if !slot.push_switch(possible, self.switches_seen) {
            self.lost_switches += 1;
            return;
        }
        if let (true, [_, None], Some(duration)) = (switch.on, slot.ends(), self.spec.duration) {
            let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            slot.set_deadline(switch.at_ns.saturating_add(ns).min(u64::MAX >> 1));
        }
    }

    /// It was told to end.
    pub(crate) fn is_ending(&self, rings: &Rings) -> bool {
        self.is_open && self.slot(rings).ends()[0].is_some()
    }

    /// What became of its wish for stack samples.
    pub(crate) fn set_samples(&mut self, samples: Option<Result<SampleRate, String>>) {
        self.status.samples = samples;
    }

    /// There is no sampler any more.
    pub(crate) fn lose_sampler(&mut self) {
        if let Some(samples @ Ok(_)) = &mut self.status.samples {
            *samples = Err("the sampler ended unexpectedly".to_owned());
        }
    }

    /// Sets what only the writer knows.
    pub(crate) fn set_progress(&mut self, recording: &Recording) {
        self.status.bytes = recording.file().len();
        self.status.events = recording.events();
        self.status.drops = recording.dropped();
        self.status.late_records = recording.late_records + self.lost_switches;
        self.status.lost_samples = recording.missed().samples;
        self.status.unsampled_threads = recording.missed().threads;
    }

    pub(crate) fn status(&self, rings: &Rings, now_ns: u64) -> SessionStatus {
        let mut status = self.status.clone();
        let slot = self.slot(rings);
        if self.is_open {
            status.state = match (slot.ends(), slot.newest_switch()) {
                (ends, _) if ends.into_iter().flatten().any(|ns| ns <= now_ns) => {
                    SessionState::Flushing
                }
                (_, (_, Some(newest))) if newest.on && newest.at_ns <= now_ns => {
                    SessionState::Recording
                }
                (_, (_, Some(newest))) if !newest.on => SessionState::Paused,
                _ => SessionState::Armed,
            };
        }
        status
    }
}
