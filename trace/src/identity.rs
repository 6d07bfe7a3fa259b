//! Ids of one process's tracks and sequences.

use crate::file_name::EXTENSION;
use crate::hash::{Domain, hash, sequence_id};
use crate::{Event, SessionName};

/// What tells this process's recording from every other one: pids repeat, in
/// time and between containers, so the server's run and the start count too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Random word of the server's start.
    pub(crate) run: u64,
    pub(crate) pid: u32,
    /// CLOCK_BOOTTIME in ns when the process began to record.
    pub(crate) started_ns: u64,
}

impl Identity {
    fn id(&self, domain: Domain, word: u64) -> u64 {
        hash(
            domain,
            &[self.run, u64::from(self.pid), self.started_ns, word],
        )
    }

    pub(crate) fn process(&self) -> u64 {
        self.id(Domain::Process, 0)
    }

    pub(crate) fn thread(&self, tid: u32) -> u64 {
        self.id(Domain::Thread, u64::from(tid))
    }

    /// A request has a track for each layer that shows it: where layers share a
    /// process, their slices do not nest in each other.
    pub(crate) fn request(&self, trace_key: u64, event: Event) -> u64 {
        let layer = word_of(event.category());
        let (run, pid) = (self.run, u64::from(self.pid));
        hash(
            Domain::Request,
            &[run, pid, self.started_ns, trace_key, layer],
        )
    }

    pub(crate) fn counter(&self, event: Event) -> u64 {
        self.id(Domain::Counter, event as u64)
    }

    /// The name of its file of a session.
    pub(crate) fn file_name(&self, session: &SessionName, role: &str) -> String {
        let Identity { run, pid, .. } = self;
        format!("{session}.{role}.{run:016x}-{pid}.{EXTENSION}")
    }

    /// The id of the packet sequence that `writer` (the process itself or its
    /// salvager) makes of the `claim`th ring claim in the file of a session.
    pub(crate) fn sequence(&self, session: u32, writer: &str, claim: u64) -> u32 {
        sequence_id(&[
            self.run,
            u64::from(self.pid),
            self.started_ns,
            u64::from(session),
            word_of(writer),
            claim,
        ])
    }
}

/// The last eight bytes of a short text.
fn word_of(text: &str) -> u64 {
    text.bytes()
        .fold(0, |word, byte| word << 8 | u64::from(byte))
}
