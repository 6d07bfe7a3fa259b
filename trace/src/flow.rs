//! Arrows between processes.

use crate::RequestTrack;
use crate::hash::{Domain, hash};

/// What an arrow connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlowKind {
    /// A request's way; the key is its trace key.
    Request,
    /// From the core's dispatch to one rank's step; the key is (step, rank).
    StepToRank,
    /// From one rank's step back to the core's update; the key is (step, rank).
    RankToCore,
    /// From a client's request to the server's; the key is the trace id of the
    /// `traceparent` that the client sent.
    Traceparent,
}

impl FlowKind {
    /// The kind that `self as u64` came from.
    pub(crate) fn from_bits(bits: u64) -> Option<FlowKind> {
        [
            FlowKind::Request,
            FlowKind::StepToRank,
            FlowKind::RankToCore,
            FlowKind::Traceparent,
        ]
        .into_iter()
        .find(|&kind| kind as u64 == bits)
    }
}

/// One arrow's identity. Its id in the trace is a hash of the server's run,
/// kind and key, so that every process finds the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    pub(crate) kind: FlowKind,
    pub(crate) key: u64,
}

impl Flow {
    /// The request with this trace key.
    pub fn request(trace_key: u64) -> Flow {
        Flow {
            kind: FlowKind::Request,
            key: trace_key,
        }
    }

    /// It is no request's, or that of a marked one.
    pub(crate) fn is_of_marked(self) -> bool {
        self.kind != FlowKind::Request || RequestTrack::is_marked(self.key)
    }

    /// The request that a client sent with this trace id.
    pub fn traceparent(trace_id: u128) -> Flow {
        Flow {
            kind: FlowKind::Traceparent,
            key: hash(Domain::Flow, &[(trace_id >> 64) as u64, trace_id as u64]),
        }
    }

    /// The request of a client with this W3C `traceparent`; `None` for a text
    /// that is none.
    pub fn of_traceparent(text: &str) -> Option<Flow> {
        let trace_id = text.split('-').nth(1).filter(|id| id.len() == 32)?;
        Some(Flow::traceparent(u128::from_str_radix(trace_id, 16).ok()?))
    }

    /// Its id in the trace, in the run of a server.
    pub(crate) fn id(self, run: u64) -> u64 {
        let run = match self.kind {
            // Client and server are of different runs.
            FlowKind::Traceparent => 0,
            _ => run,
        };
        hash(Domain::Flow, &[run, self.kind as u64, self.key])
    }

    /// Dispatch of a step to a rank.
    pub fn step_to_rank(step_id: u64, rank: u32) -> Flow {
        Flow {
            kind: FlowKind::StepToRank,
            key: step_id << 16 | u64::from(rank),
        }
    }

    /// Result of a step from a rank.
    pub fn rank_to_core(step_id: u64, rank: u32) -> Flow {
        Flow {
            kind: FlowKind::RankToCore,
            key: step_id << 16 | u64::from(rank),
        }
    }
}
