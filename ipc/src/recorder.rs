//! What a process does with its recorder when it is told to.
//!
//! Everything here is bounded: the files are the writer's business.

use crate::lifecycle::boottime_ns;
use crate::profile::{RecorderOrder, RecorderReport, SessionSwitch};
use crate::to_worker::StepMark;

/// Obeys an order, and tells how the recorder stands then.
pub fn obey(order: RecorderOrder) -> RecorderReport {
    let refused = match order {
        RecorderOrder::Begin { ends, spec } => {
            let begun = match ends {
                Some((ended, at_ns)) => nano_trace::replace_session(&ended, at_ns, spec),
                None => nano_trace::begin_session(spec),
            };
            begun.err().map(|error| error.to_string())
        }
        RecorderOrder::End { session, at_ns } => {
            nano_trace::end_session(&session, Some(at_ns));
            None
        }
        RecorderOrder::Report => None,
    };
    RecorderReport {
        sessions: nano_trace::sessions(),
        refused,
    }
}

/// Turns the recording of a session on or off.
pub fn switch(switch: &SessionSwitch) {
    nano_trace::stamp_session(&switch.session, switch.at_ns, switch.on);
}

/// A worker has learned what the step that it began at this time (CLOCK_BOOTTIME
/// in ns) means to a session.
pub fn step_began(mark: &StepMark, at_ns: u64) {
    if let Some(on) = mark.at_begin {
        nano_trace::stamp_session(&mark.session, at_ns, on);
    }
}

/// A worker's step has ended, with all of its slices.
pub fn step_ended(mark: &StepMark) {
    if mark.off_at_end {
        nano_trace::stamp_session(&mark.session, boottime_ns(), false);
    }
}
