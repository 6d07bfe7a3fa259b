//! The one clock of all measurements.

use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::ops::Add;
use std::time::Duration;

/// A moment of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Moment(u64);

impl Moment {
    /// Now.
    pub fn now() -> Moment {
        // Linux always has this clock.
        clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Moment(0), |time| {
            Moment(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
        })
    }

    /// The moment of this many nanoseconds.
    pub fn from_ns(ns: u64) -> Moment {
        Moment(ns)
    }

    /// Its nanoseconds.
    pub fn ns(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to here; zero if it is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Milliseconds from `earlier` to here.
    pub fn ms_since(self, earlier: Moment) -> f64 {
        self.since(earlier).as_nanos() as f64 / 1e6
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(ns))
    }
}

/// Waits on the event loop until `moment`, at least.
pub async fn sleep_until(moment: Moment) {
    tokio::time::sleep(moment.since(Moment::now())).await;
}

/// Now, for people: UTC in ISO 8601.
pub fn now_iso() -> String {
    jiff::Timestamp::now().to_string()
}
