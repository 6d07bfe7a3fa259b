//! What a process does with its recorder when it is told to.
//!
//! Everything here is bounded: the files are the writer's business.

use crate::profile::{RecorderOrder, RecorderReport, SessionSwitch};

/// Obeys an order, and tells how the recorder stands then.
pub fn obey(order: RecorderOrder) -> RecorderReport {
    let refused = match order {
        RecorderOrder::Begin { ends, spec } => {
            if let Some((session, at_ns)) = ends {
                nano_trace::end_session(&session, Some(at_ns));
            }
            let begun = nano_trace::begin_session(spec);
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
