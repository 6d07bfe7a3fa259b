//! The step loop's side of a profile session that follows steps.

use crate::scheduler::Plan;
use crate::step_plan::{StepPlan, Switch};
use nano_ipc::lifecycle::{Lifecycle, boottime_ns};
use nano_ipc::profile::SessionSwitch;
use nano_ipc::recorder;
use nano_ipc::scheduler_output::StepId;
use nano_ipc::step_bounds::Stage;
use nano_ipc::to_launcher::ToLauncher;
use nano_ipc::to_worker::StepMark;
use nano_trace::SessionName;

/// Counts steps for the session that wants it: switches this process's own
/// recording, and tells the launcher, who tells the others. While no session
/// wants it, a turn costs one load.
#[derive(Debug)]
pub struct StepRecording {
    /// Workers have recorders of their own.
    workers_record: bool,
    /// Of the control thread's word that was obeyed last.
    seen: u64,
    counting: Option<(SessionName, StepPlan)>,
    /// CLOCK_BOOTTIME in ns.
    turn_ns: u64,
}

impl StepRecording {
    /// Counts nothing yet.
    pub fn new(workers_record: bool) -> StepRecording {
        StepRecording {
            workers_record,
            seen: 0,
            counting: None,
            turn_ns: 0,
        }
    }

    /// A turn of the loop begins: before any of its slices.
    pub fn turn_begins(&mut self, lifecycle: &Lifecycle) {
        if let Some(steps) = lifecycle.profile().steps_to_count(&mut self.seen) {
            self.counting = steps.map(|steps| (steps.session, StepPlan::new(steps.bounds)));
        }
        if self.counting.is_some() {
            self.turn_ns = boottime_ns();
        }
    }

    /// A step was planned; what workers are to be told before it.
    pub fn planned(&mut self, plan: &Plan, lifecycle: &Lifecycle) -> Option<StepMark> {
        let (session, counting) = self.counting.as_mut()?;
        let stage = match (plan.num_prefill_tokens, plan.num_decode_tokens) {
            (0, 0) => return None,
            (0, _) => Stage::Decode,
            _ => Stage::Prefill,
        };
        let planned = counting.planned(plan.output.step_id, stage, self.turn_ns);
        let is_marked = planned.at_begin.is_some() || planned.off_at_end;
        let mark = (self.workers_record && is_marked).then(|| StepMark {
            session: session.clone(),
            at_begin: planned.at_begin,
            off_at_end: planned.off_at_end,
        });
        self.switch(planned.switch, lifecycle);
        mark
    }

    /// A step's result was taken in.
    pub fn done(&mut self, step_id: StepId, lifecycle: &Lifecycle) {
        let Some((_, counting)) = &mut self.counting else {
            return;
        };
        let switch = counting.done(step_id, boottime_ns());
        self.switch(switch, lifecycle);
    }

    fn switch(&mut self, switch: Option<Switch>, lifecycle: &Lifecycle) {
        let (Some(switch), Some((session, _))) = (switch, &self.counting) else {
            return;
        };
        let switch = SessionSwitch {
            session: session.clone(),
            at_ns: switch.at_ns,
            on: switch.on,
            last: switch.last,
        };
        recorder::switch(&switch);
        if switch.last {
            self.counting = None;
        }
        lifecycle.report(ToLauncher::ProfileSwitch(switch));
    }
}
