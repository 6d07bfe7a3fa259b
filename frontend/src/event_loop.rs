//! Notices when the event loop stood still.

use nano_trace::Event;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

const TICK: Duration = Duration::from_millis(20);
/// Being late by less is the scheduler's, not the loop's fault.
const LATE: Duration = Duration::from_millis(10);
/// Being late by more is worth a line in the log.
const VERY_LATE: Duration = Duration::from_millis(500);

/// Runs as long as the runtime: sleeps, and marks in the trace when it was
/// woken too late, because then every stream was.
pub async fn watch_for_stalls() {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let due = Instant::now() + TICK;
        ticks.reset();
        ticks.tick().await;
        let late = Instant::now().saturating_duration_since(due);
        if late >= LATE {
            nano_trace::instant(Event::EventLoopStall, [late.as_micros() as u64], &[]);
        }
        if late >= VERY_LATE {
            log::warn!("the event loop stood still for {} ms", late.as_millis());
        }
    }
}
