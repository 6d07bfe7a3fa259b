//! Which moments belong to a session: a pure function of its switches and its
//! end, walked once in order of time.
//!
//! Invariants:
//! - switches take effect in the order in which they became known, at times
//!   that never fall; what was decided up to `decided_ns` never changes, and a
//!   switch that comes later than that takes effect right after it;
//! - the session is on in intervals `[on, off)`, none of which is empty, and
//!   never after its end.

use std::collections::VecDeque;

/// From this moment (nanoseconds of CLOCK_BOOTTIME) the session is on, or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch {
    pub(crate) at_ns: u64,
    pub(crate) on: bool,
}

impl Switch {
    /// As it lies in memory that is shared.
    pub(crate) fn to_word(self) -> u64 {
        self.at_ns << 1 | u64::from(self.on)
    }

    pub(crate) fn from_word(word: u64) -> Switch {
        Switch {
            at_ns: word >> 1,
            on: word & 1 == 1,
        }
    }
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was told to.
    Ordered,
    /// Its duration is over.
    Duration,
}

/// What happens to a session at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    On(u64),
    Off(u64),
    /// Comes last, after an `Off` if it was on.
    End(u64, End),
}

impl Change {
    pub(crate) fn at_ns(self) -> u64 {
        let (Change::On(ns) | Change::Off(ns) | Change::End(ns, _)) = self;
        ns
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Switches {
    pending: VecDeque<Switch>,
    /// When it ends, as far as that is known.
    end: Option<(u64, End)>,
    on_since: Option<u64>,
    ended: bool,
    /// The newest switch, or the end, took effect then.
    newest_ns: u64,
}

impl Switches {
    /// A session that is on since then, or off.
    pub(crate) fn new(on_since: Option<u64>) -> Switches {
        Switches {
            pending: VecDeque::new(),
            end: None,
            on_since,
            ended: false,
            newest_ns: on_since.unwrap_or(0),
        }
    }

    /// Adds a switch, known when everything up to `decided_ns` was decided.
    pub(crate) fn push(&mut self, switch: Switch, decided_ns: u64) {
        let at_ns = switch.at_ns.max(self.newest_ns).max(decided_ns + 1);
        self.newest_ns = at_ns;
        self.pending.push_back(Switch { at_ns, ..switch });
    }

    /// Sets the end, which may move to an earlier moment as more is known;
    /// whether it moved.
    pub(crate) fn set_end(&mut self, at_ns: u64, end: End, decided_ns: u64) -> bool {
        let at_ns = at_ns.max(decided_ns + 1);
        let moves = self.end.is_none_or(|(known, _)| at_ns < known);
        if moves {
            self.end = Some((at_ns, end));
        }
        moves
    }

    /// The next change, if it comes at or before `upto_ns`; it has happened then.
    pub(crate) fn next(&mut self, upto_ns: u64) -> Option<Change> {
        let change = self.peek()?;
        if change.at_ns() > upto_ns {
            return None;
        }
        match change {
            Change::On(ns) => {
                self.on_since = Some(ns);
                self.pending.pop_front();
            }
            Change::Off(_) => {
                self.on_since = None;
                // At its end too: switches that come later are not looked at.
                if self
                    .pending
                    .front()
                    .is_some_and(|s| s.at_ns == change.at_ns())
                {
                    self.pending.pop_front();
                }
            }
            Change::End(..) => self.ended = true,
        }
        Some(change)
    }

    /// When the next change comes; `u64::MAX` if none is known.
    pub(crate) fn next_ns(&mut self) -> u64 {
        self.peek().map_or(u64::MAX, Change::at_ns)
    }

    fn peek(&mut self) -> Option<Change> {
        if self.ended {
            return None;
        }
        // Switches that change nothing, and pairs at one moment, fall away.
        while let Some(&first) = self.pending.front() {
            let same_moment = self.pending.get(1).is_some_and(|s| s.at_ns == first.at_ns);
            if !same_moment && first.on != self.on_since.is_some() {
                break;
            }
            self.pending.pop_front();
        }
        let switch = self.pending.front().copied();
        match (switch, self.end) {
            (switch, Some((at_ns, end))) if switch.is_none_or(|s| at_ns <= s.at_ns) => {
                Some(match self.on_since {
                    Some(_) => Change::Off(at_ns),
                    None => Change::End(at_ns, end),
                })
            }
            (Some(Switch { at_ns, on: true }), _) => Some(Change::On(at_ns)),
            (Some(Switch { at_ns, on: false }), _) => Some(Change::Off(at_ns)),
            (None, _) => None,
        }
    }

    /// Since when it is on.
    pub(crate) fn on_since(&self) -> Option<u64> {
        self.on_since
    }

    /// Switches whose time has not come.
    pub(crate) fn num_pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// # Errors
    /// The first invariant that does not hold, in words.
    #[cfg(test)]
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        let times = self.pending.iter().map(|switch| switch.at_ns);
        if !times.is_sorted() {
            return Err(format!("switches out of order: {:?}", self.pending));
        }
        if self.ended && self.on_since.is_some() {
            return Err("on after its end".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All that is told to a session: in which order, and at which moment.
    #[derive(Clone, Debug)]
    enum Told {
        Switch { told_ns: u64, switch: Switch },
        End { told_ns: u64, at_ns: u64 },
    }

    fn told() -> impl Strategy<Value = Vec<Told>> {
        let one = (0_u64..30, 0_u64..300, any::<bool>(), 0..8);
        prop::collection::vec(one, 0..20).prop_map(|all| {
            let mut now = 0;
            let tell = |(pause, at_ns, on, kind)| {
                now += pause;
                match kind {
                    0 => Told::End {
                        told_ns: now,
                        at_ns,
                    },
                    _ => Told::Switch {
                        told_ns: now,
                        switch: Switch { at_ns, on },
                    },
                }
            };
            all.into_iter().map(tell).collect()
        })
    }

    /// The naive model: looks at everything anew for each moment.
    fn is_on(told: &[Told], moment: u64) -> bool {
        // What was told before the moment was decided.
        let (mut newest, mut on, mut end) = (0, false, u64::MAX);
        for one in told {
            match *one {
                Told::Switch { told_ns, switch } => {
                    newest = switch.at_ns.max(newest).max(told_ns + 1);
                    if newest <= moment {
                        on = switch.on;
                    }
                }
                Told::End { told_ns, at_ns } => end = end.min(at_ns.max(told_ns + 1)),
            }
        }
        on && moment < end
    }

    proptest! {
        #[test]
        fn the_walk_selects_what_the_naive_model_selects(told in told()) {
            let mut switches = Switches::new(None);
            let (mut next, mut last, mut ended) = (0, 0, false);
            for moment in 0..400 {
                // Everything before this moment is decided.
                while let Some(one) = told.get(next) {
                    let told_ns = match *one {
                        Told::Switch { told_ns, .. } | Told::End { told_ns, .. } => told_ns,
                    };
                    if told_ns >= moment {
                        break;
                    }
                    match *one {
                        Told::Switch { switch, .. } => switches.push(switch, told_ns),
                        Told::End { at_ns, .. } => {
                            switches.set_end(at_ns, End::Ordered, told_ns);
                        }
                    }
                    next += 1;
                }
                let mut was_on = switches.on_since();
                while let Some(change) = switches.next(moment) {
                    prop_assert!(!ended && change.at_ns() >= last, "{change:?}");
                    last = change.at_ns();
                    ended = matches!(change, Change::End(..));
                    match change {
                        Change::On(ns) => {
                            prop_assert!(was_on.is_none());
                            was_on = Some(ns);
                        }
                        Change::Off(ns) => {
                            prop_assert!(was_on.take().is_some_and(|on| on < ns), "empty");
                        }
                        Change::End(..) => prop_assert!(was_on.is_none()),
                    }
                }
                switches.check_integrity().unwrap();
                prop_assert!(switches.next_ns() > moment);
                // Ends that are told later may be earlier than this moment, but
                // never than when they are told.
                let known = &told[..next];
                prop_assert_eq!(switches.on_since().is_some(), is_on(known, moment), "{}", moment);
            }
        }
    }

    #[test]
    fn an_end_closes_what_is_on_and_is_the_last_change() {
        let mut switches = Switches::new(None);
        switches.push(
            Switch {
                at_ns: 10,
                on: true,
            },
            0,
        );
        switches.set_end(30, End::Duration, 0);
        switches.set_end(20, End::Ordered, 0);
        switches.push(
            Switch {
                at_ns: 20,
                on: false,
            },
            0,
        );
        switches.push(
            Switch {
                at_ns: 25,
                on: true,
            },
            0,
        );
        let mut changes = Vec::new();
        while let Some(change) = switches.next(100) {
            changes.push(change);
        }
        let end = Change::End(20, End::Ordered);
        assert_eq!(changes, [Change::On(10), Change::Off(20), end]);
        assert_eq!(switches.next_ns(), u64::MAX);
    }
}
