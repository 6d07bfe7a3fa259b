//! When requests are due, and what they say.
//!
//! A thread of its own makes each request's body ahead of time, waits for its
//! moment with the kernel's timer (the event loop's own is a millisecond
//! coarse), and hands it over. In a closed loop there is nothing to wait for.

use crate::clock::Moment;
use crate::config::{Extent, Load};
use crate::options::Arrivals;
use crate::workload::Workload;
use crate::workload::random::{Purpose, random};
use bytes::Bytes;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use rand_distr::{Distribution, Exp};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::mpsc;

/// A request that is due.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its number among those of its purpose, over the whole run.
    pub index: u64,
    /// When it should be sent; `None` in a closed loop: at once.
    pub intended: Option<Moment>,
    /// What it says.
    pub body: Bytes,
}

/// What is to be sent.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Makes the bodies.
    pub workload: Arc<Workload>,
    /// Warm-up or measurement.
    pub purpose: Purpose,
    /// How often.
    pub load: Load,
    /// How many, and how long.
    pub extent: Extent,
    /// Number of the first request.
    pub first_index: u64,
    /// Of the times between arrivals.
    pub seed: u64,
}

/// Requests that are made ahead.
const AHEAD: usize = 256;

/// The longest sleep between two looks at whether anybody still listens.
const NAP: Duration = Duration::from_millis(100);

impl Schedule {
    /// Begins; requests come when they are due, and the channel ends after the last.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(self, begin: Moment) -> std::io::Result<mpsc::Receiver<Planned>> {
        let ahead = self.load.slots().min(AHEAD);
        let (due, planned) = mpsc::channel(ahead);
        thread::Builder::new()
            .name("schedule".to_owned())
            .spawn(move || self.run(begin, &due))?;
        Ok(planned)
    }

    fn run(self, begin: Moment, due: &mpsc::Sender<Planned>) {
        let end = self.extent.duration.map(|duration| begin + duration);
        let mut arrivals = ArrivalTimes::new(self.load, begin, self.seed, self.first_index);
        for number in 0..self.extent.requests.unwrap_or(u64::MAX) {
            let index = self.first_index + number;
            let intended = arrivals.as_mut().map(ArrivalTimes::next);
            // A closed loop's end is seen by whoever takes the requests.
            let is_late = |moment: Moment| end.is_some_and(|end| moment >= end);
            if intended.is_some_and(is_late) {
                return;
            }
            let body = self.workload.body(self.purpose, index);
            if let Some(moment) = intended
                && !wait_until(moment, due)
            {
                return;
            }
            let planned = Planned {
                index,
                intended,
                body,
            };
            // Whoever closes the channel wants no more.
            if due.blocking_send(planned).is_err() {
                return;
            }
        }
    }
}

/// Waits; whether anybody still wants to know.
fn wait_until(moment: Moment, due: &mpsc::Sender<Planned>) -> bool {
    loop {
        if due.is_closed() {
            return false;
        }
        let now = Moment::now();
        if now >= moment {
            return true;
        }
        let until = moment.min(now + NAP);
        let until = TimeSpec::from_duration(Duration::from_nanos(until.ns()));
        // A signal wakes it early; the loop looks again.
        let _ = clock_nanosleep(
            ClockId::CLOCK_MONOTONIC,
            ClockNanosleepFlags::TIMER_ABSTIME,
            &until,
        );
    }
}

/// The moments of an open loop.
#[derive(Debug)]
struct ArrivalTimes {
    begin: Moment,
    /// Seconds after `begin`.
    at: f64,
    gap: Gap,
    seed: u64,
    index: u64,
}

#[derive(Debug)]
enum Gap {
    Constant(f64),
    Exponential(Exp<f64>),
}

impl ArrivalTimes {
    /// `None` for a closed loop.
    fn new(load: Load, begin: Moment, seed: u64, index: u64) -> Option<ArrivalTimes> {
        let Load::Open { rate, arrivals, .. } = load else {
            return None;
        };
        let gap = match arrivals {
            Arrivals::Constant => Gap::Constant(1.0 / rate),
            // A rate in its range is good; Config saw to it.
            Arrivals::Poisson => Exp::new(rate).map_or(Gap::Constant(1.0 / rate), Gap::Exponential),
        };
        Some(ArrivalTimes {
            begin,
            at: 0.0,
            gap,
            seed,
            index,
        })
    }

    /// The first is due at once.
    fn next(&mut self) -> Moment {
        let moment = self.begin + Duration::from_secs_f64(self.at);
        let mut random = random(self.seed, Purpose::Arrivals, self.index);
        self.index += 1;
        self.at += match &self.gap {
            Gap::Constant(gap) => *gap,
            Gap::Exponential(exponential) => exponential.sample(&mut random),
        };
        moment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, seed: u64) -> Vec<f64> {
        let load = Load::Open {
            rate: 50.0,
            arrivals,
            max_connections: 1,
        };
        let begin = Moment::from_ns(7);
        let mut times = ArrivalTimes::new(load, begin, seed, 0).expect("an open loop");
        (0..5000).map(|_| times.next().ms_since(begin)).collect()
    }

    #[test]
    fn constant_arrivals_are_evenly_spaced() {
        for (n, at) in times(Arrivals::Constant, 1).iter().enumerate() {
            assert!((at - n as f64 * 20.0).abs() < 1e-3, "{n} at {at}");
        }
    }

    #[test]
    fn poisson_arrivals_are_exponentially_spaced() {
        let times = times(Arrivals::Poisson, 1);
        assert_eq!(times, self::times(Arrivals::Poisson, 1));
        assert_ne!(times, self::times(Arrivals::Poisson, 2));
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((19.0..21.0).contains(&mean), "{mean}");
        // Of an exponential distribution, 1 - 1/e lies below the mean, and
        // exp(-3) beyond three times of it.
        let share =
            |limit: f64| gaps.iter().filter(|&&gap| gap < limit).count() as f64 / gaps.len() as f64;
        assert!((share(20.0) - 0.632).abs() < 0.02, "{}", share(20.0));
        assert!((share(60.0) - 0.950).abs() < 0.01, "{}", share(60.0));
    }

    #[test]
    fn a_closed_loop_has_no_times() {
        let load = Load::Closed { concurrency: 3 };
        assert!(ArrivalTimes::new(load, Moment::now(), 1, 0).is_none());
    }
}
