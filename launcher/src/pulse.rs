//! Whether a process is alive in more than name, judged by its pongs.
//!
//! Two troubles differ. A stopped process does not answer at all. A stuck one
//! answers, because control has a thread of its own, but its loop stays at the
//! same piece of work. Both times are measured here, by the launcher's
//! monotonic clock, so that neither a suspended machine nor a stopped launcher
//! looks like a stalled child: silence counts from a ping that was sent, work
//! is judged when a pong arrives.

use std::time::{Duration, Instant};

/// Time between an answered ping and the next one.
pub const PING_EVERY: Duration = Duration::from_millis(500);

/// A process silent for so long makes `/health` say 503.
pub const SILENT_AFTER: Duration = Duration::from_secs(5);

/// When trouble ends the server; `None`: never.
pub type StallTimeout = Option<Duration>;

/// How a process is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It answers and moves.
    Well,
    /// It may yet recover; what is wrong, for `/health`.
    Unhealthy(String),
    /// The stall time-out has passed.
    Stalled(String),
}

/// Pings and pongs of one process. At most one ping is unanswered.
#[derive(Debug)]
pub struct Pulse {
    number: u64,
    pinged_at: Instant,
    answered: bool,
    /// What the loop was at by the last pong, and since when pongs have said so.
    work: Option<Work>,
    worked: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    step_id: u64,
    busy_since_ns: u64,
    seen_at: Instant,
}

impl Pulse {
    /// Of a process that starts now.
    pub fn new(now: Instant) -> Pulse {
        Pulse {
            number: 0,
            pinged_at: now,
            answered: true,
            work: None,
            worked: Duration::ZERO,
        }
    }

    /// The number of the ping to send now, if one is due.
    pub fn ping(&mut self, now: Instant) -> Option<u64> {
        if !self.answered || now < self.pinged_at + PING_EVERY {
            return None;
        }
        self.answered = false;
        self.number += 1;
        self.pinged_at = now;
        Some(self.number)
    }

    /// A pong came.
    pub fn pong(&mut self, now: Instant, number: u64, step_id: u64, busy_since_ns: u64) {
        if number != self.number {
            return;
        }
        self.answered = true;
        if busy_since_ns == 0 {
            self.work = None;
            self.worked = Duration::ZERO;
            return;
        }
        let same = self
            .work
            .filter(|work| (work.step_id, work.busy_since_ns) == (step_id, busy_since_ns));
        let work = same.unwrap_or(Work {
            step_id,
            busy_since_ns,
            seen_at: now,
        });
        self.work = Some(work);
        self.worked = now - work.seen_at;
    }

    /// How long a ping has been unanswered.
    pub fn silence(&self, now: Instant) -> Duration {
        if self.answered {
            Duration::ZERO
        } else {
            now - self.pinged_at
        }
    }

    /// How the process is doing.
    pub fn verdict(&self, now: Instant, stall_timeout: StallTimeout) -> Verdict {
        let silent = self.silence(now);
        let is_over = |time: Duration| stall_timeout.is_some_and(|timeout| time >= timeout);
        let seconds = |time: Duration| time.as_secs_f64().round();
        let silence = || format!("does not answer since {} s", seconds(silent));
        let work = || {
            let step = self.work.map_or(0, |work| work.step_id);
            format!("is at step {step} since {} s", seconds(self.worked))
        };
        if is_over(silent) {
            Verdict::Stalled(silence())
        } else if is_over(self.worked) {
            Verdict::Stalled(work())
        } else if silent >= SILENT_AFTER {
            Verdict::Unhealthy(silence())
        } else if is_over(self.worked * 2) {
            Verdict::Unhealthy(work())
        } else {
            Verdict::Well
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: StallTimeout = Some(Duration::from_secs(30));

    fn seconds(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    #[test]
    fn silence_is_unhealthy_then_fatal_and_forgiven_when_it_ends() {
        let t0 = Instant::now();
        let mut pulse = Pulse::new(t0);
        assert_eq!(pulse.ping(t0), None, "not yet due");
        let pinged = t0 + PING_EVERY;
        let number = pulse.ping(pinged).expect("due");
        assert_eq!(pulse.ping(pinged + seconds(9.0)), None, "one at a time");
        let at = |s| pulse.verdict(pinged + seconds(s), STALL);
        assert_eq!(at(4.9), Verdict::Well);
        let unhealthy = Verdict::Unhealthy("does not answer since 5 s".to_owned());
        assert_eq!(at(5.0), unhealthy);
        let stalled = Verdict::Stalled("does not answer since 30 s".to_owned());
        assert_eq!(at(30.0), stalled);
        assert!(matches!(
            pulse.verdict(pinged + seconds(4000.0), None),
            Verdict::Unhealthy(_)
        ));
        pulse.pong(pinged + seconds(31.0), number, 0, 0);
        assert_eq!(pulse.verdict(pinged + seconds(31.0), STALL), Verdict::Well);
    }

    #[test]
    fn only_one_piece_of_work_that_does_not_end_counts() {
        let t0 = Instant::now();
        let mut pulse = Pulse::new(t0);
        let mut answer = |s: f64, step_id, busy_since| {
            let now = t0 + seconds(s);
            let number = pulse.ping(now).expect("due");
            pulse.pong(now, number, step_id, busy_since);
            pulse.verdict(now, STALL)
        };
        assert_eq!(answer(1.0, 1, 100), Verdict::Well);
        assert_eq!(answer(14.0, 2, 200), Verdict::Well, "another step");
        assert_eq!(answer(28.0, 2, 200), Verdict::Well, "a long step");
        let unhealthy = Verdict::Unhealthy("is at step 2 since 15 s".to_owned());
        assert_eq!(answer(29.0, 2, 200), unhealthy);
        assert_eq!(answer(30.0, 3, 300), Verdict::Well, "it ended");
        answer(31.0, 4, 400);
        let stalled = Verdict::Stalled("is at step 4 since 30 s".to_owned());
        assert_eq!(answer(61.0, 4, 400), stalled);
        assert_eq!(answer(62.0, 4, 0), Verdict::Well, "waits for input");
    }

    #[test]
    fn a_launcher_that_was_stopped_itself_blames_nobody() {
        let t0 = Instant::now();
        let mut pulse = Pulse::new(t0);
        let t1 = t0 + seconds(1.0);
        let number = pulse.ping(t1).expect("due");
        pulse.pong(t1, number, 5, 500);
        // Stopped for an hour; no ping was out.
        assert_eq!(pulse.verdict(t1 + seconds(3600.0), STALL), Verdict::Well);
    }
}
