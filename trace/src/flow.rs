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
}

impl FlowKind {
    /// The kind that `self as u64` came from.
    pub(crate) fn from_bits(bits: u64) -> Option<FlowKind> {
        [
            FlowKind::Request,
            FlowKind::StepToRank,
            FlowKind::RankToCore,
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

    /// Its id in the trace, in the run of a server.
    pub(crate) fn id(self, run: u64) -> u64 {
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
