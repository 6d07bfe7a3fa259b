//! Which steps a profile session records. Pure: told of steps and times, it
//! says when the recording goes on and off.

use nano_ipc::scheduler_output::StepId;
use nano_ipc::step_bounds::{Stage, Stages, StepBounds};
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// The recording goes on or off at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// CLOCK_BOOTTIME in ns.
    pub at_ns: u64,
    /// On or off.
    pub on: bool,
    /// None follows.
    pub last: bool,
}

/// What a planned step means to the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// In the core, and in all but the workers.
    pub switch: Option<Switch>,
    /// In each worker, when it begins the step; `None`: as before.
    pub at_begin: Option<bool>,
    /// In each worker: off when it has ended the step.
    pub off_at_end: bool,
}

/// Which steps a profile session records.
///
/// Workers run a step later than the core plans it, and begin the next one
/// before the core has the result: they switch at their own begins and ends, in
/// the order of plans, and record just the steps that count.
///
/// Invariants of the switches in the core:
/// - from the beginning of the turn that plans a recorded step until its
///   result is taken in, the recording is on;
/// - it goes off where a step that is not recorded follows: when none that is
///   recorded is in flight any more. In between it stays on, while the engine
///   has nothing to do, too;
/// - switches alternate, the first one is on, the last one is off.
#[derive(Debug)]
pub struct StepPlan {
    bounds: StepBounds,
    /// Steps that count and are passed over before the next one is recorded.
    to_skip: u64,
    /// Steps of this cycle that were planned and are recorded.
    num_prefill: u64,
    num_decode: u64,
    cycles_left: u64,
    /// Recorded steps whose results are to come.
    in_flight: VecDeque<StepId>,
    on: bool,
    /// It goes off when `in_flight` is empty.
    wants_off: bool,
    /// Workers record after the last step that was planned.
    workers_on: bool,
}

impl StepPlan {
    /// Nothing is recorded yet.
    pub fn new(bounds: StepBounds) -> StepPlan {
        let skip = bounds.cycle.map_or(0, |cycle| cycle.skip);
        StepPlan {
            bounds,
            to_skip: bounds.delay.saturating_add(skip),
            num_prefill: 0,
            num_decode: 0,
            cycles_left: match bounds.cycle {
                Some(cycle) => cycle.repeat.map_or(u64::MAX, NonZeroU64::get),
                None => 1,
            },
            in_flight: VecDeque::new(),
            on: false,
            wants_off: false,
            workers_on: false,
        }
    }

    /// A step that runs something was planned, in a turn of the loop that began
    /// at this time.
    pub fn planned(&mut self, step_id: StepId, stage: Stage, turn_ns: u64) -> Planned {
        let takes = self.takes(step_id, stage);
        let at_begin = (self.workers_on != takes).then_some(takes);
        let is_last = takes && self.cycles_left == 0;
        self.workers_on = takes && !is_last;
        let switch = if takes {
            self.in_flight.push_back(step_id);
            self.wants_off = is_last;
            let was_on = std::mem::replace(&mut self.on, true);
            (!was_on).then_some(Switch {
                at_ns: turn_ns,
                on: true,
                last: false,
            })
        } else {
            self.wants_off = true;
            self.go_off(turn_ns)
        };
        Planned {
            switch,
            at_begin,
            off_at_end: is_last,
        }
    }

    /// A step's result was taken in.
    pub fn done(&mut self, step_id: StepId, now_ns: u64) -> Option<Switch> {
        if self.in_flight.front() == Some(&step_id) {
            self.in_flight.pop_front();
        }
        self.go_off(now_ns)
    }

    fn go_off(&mut self, at_ns: u64) -> Option<Switch> {
        if !self.on || !self.wants_off || !self.in_flight.is_empty() {
            return None;
        }
        self.on = false;
        Some(Switch {
            at_ns,
            on: false,
            last: self.cycles_left == 0,
        })
    }

    /// Whether the next step is recorded, and counts it.
    fn takes(&mut self, step_id: StepId, stage: Stage) -> bool {
        let counts = match self.bounds.stages {
            Stages::All | Stages::Each => true,
            Stages::Only(only) => stage == only,
        };
        if self.cycles_left == 0 || step_id.0 < self.bounds.first_step || !counts {
            return false;
        }
        if self.to_skip > 0 {
            self.to_skip -= 1;
            return false;
        }
        let Some(cycle) = self.bounds.cycle else {
            return true;
        };
        let wanted = cycle.record.get();
        let of_stage = match stage {
            Stage::Prefill => &mut self.num_prefill,
            Stage::Decode => &mut self.num_decode,
        };
        let each = self.bounds.stages == Stages::Each;
        if each && *of_stage == wanted {
            return false;
        }
        *of_stage += 1;
        let all = if each {
            wanted.saturating_mul(2)
        } else {
            wanted
        };
        if self.num_prefill + self.num_decode == all {
            self.cycles_left -= 1;
            self.to_skip = cycle.skip;
            (self.num_prefill, self.num_decode) = (0, 0);
        }
        true
    }
}

#[cfg(test)]
mod tests;
