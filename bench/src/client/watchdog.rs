//! Bounds the time of a request with one timer, however many bytes come.

use super::failure::{Failure, FailureKind};
use crate::clock::{Moment, sleep_until};
use crate::config::Timeouts;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bites a request that is silent, or takes, for too long.
#[derive(Debug)]
pub(super) struct Watchdog {
    timeouts: Timeouts,
    started: Moment,
    /// Moment of the last sign of life.
    fed: AtomicU64,
}

impl Watchdog {
    pub(super) fn new(timeouts: Timeouts, started: Moment) -> Watchdog {
        Watchdog {
            timeouts,
            started,
            fed: AtomicU64::new(started.ns()),
        }
    }

    /// A sign of life.
    pub(super) fn feed(&self, now: Moment) {
        self.fed.store(now.ns(), Ordering::Relaxed);
    }

    /// Waits until it bites.
    pub(super) async fn bites(&self) -> Failure {
        loop {
            let silent_at = Moment::from_ns(self.fed.load(Ordering::Relaxed)) + self.timeouts.idle;
            let late_at = self.started + self.timeouts.total;
            let now = Moment::now();
            if now >= late_at {
                return Failure::new(
                    FailureKind::Timeout,
                    format!("not done after {:?}", self.timeouts.total),
                );
            }
            if now >= silent_at {
                return Failure::new(
                    FailureKind::Hang,
                    format!("nothing came for {:?}", self.timeouts.idle),
                );
            }
            sleep_until(silent_at.min(late_at)).await;
        }
    }
}
