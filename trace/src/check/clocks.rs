//! Clocks and their snapshots, in file order.

use super::rule::{Rule, Violations};
use crate::{
    proto::{BuiltinClock, ClockSnapshot},
    timeline::Position,
};
use std::collections::{BTreeMap, HashMap};

const REALTIME: u32 = BuiltinClock::Realtime as u32;
const MONOTONIC: u32 = BuiltinClock::Monotonic as u32;
const BOOTTIME: u32 = BuiltinClock::Boottime as u32;

/// Clocks of one sequence alone.
const SCOPED: std::ops::RangeInclusive<u32> = 64..=127;

/// A clock: its sequence (0 for clocks that all share) and its id.
type Clock = (u32, u32);

#[derive(Default)]
pub(super) struct Clocks {
    /// Last readings, by the set of clocks that were read together.
    last: HashMap<Vec<Clock>, BTreeMap<Clock, u64>>,
    /// Pairs of a clock's reading and BOOTTIME, in order of the reading.
    anchors: HashMap<Clock, Vec<(u64, u64)>>,
    /// Clocks whose stamps are differences.
    incremental: HashMap<Clock, u64>,
    units: HashMap<Clock, u64>,
}

impl Clocks {
    pub(super) fn snapshot(
        &mut self,
        sequence: u32,
        snapshot: &ClockSnapshot,
        at: Position,
        out: &mut Violations,
    ) {
        let mut readings = BTreeMap::new();
        for clock in &snapshot.clocks {
            let id = clock.clock_id.unwrap_or(0);
            let key = key(sequence, id);
            let unit = clock.unit_multiplier_ns.unwrap_or(1);
            let reading = clock.timestamp.unwrap_or(0).saturating_mul(unit);
            if readings.insert(key, reading).is_some() {
                out.add(Rule::SnapshotClocks, at, || {
                    format!("a snapshot reads clock {id} twice")
                });
            }
            self.units.insert(key, unit);
            if clock.is_incremental.unwrap_or(false) {
                self.incremental.insert(key, reading);
            }
        }
        let missing = [BOOTTIME, MONOTONIC, REALTIME]
            .into_iter()
            .filter(|id| !readings.contains_key(&(0, *id)))
            .map(|id| id.to_string())
            .chain(
                (!readings.keys().any(|(_, id)| SCOPED.contains(id)))
                    .then(|| "64 (its own)".to_owned()),
            )
            .collect::<Vec<_>>();
        if !missing.is_empty() {
            out.add(Rule::SnapshotClocks, at, || {
                format!("a snapshot lacks clock {}", missing.join(" and clock "))
            });
        }
        if snapshot.primary_trace_clock != Some(BuiltinClock::Boottime as i32) {
            out.add(Rule::PrimaryClock, at, || {
                format!(
                    "the trace's clock is {:?}, not BOOTTIME ({BOOTTIME})",
                    snapshot.primary_trace_clock
                )
            });
        }
        self.compare_with_last(&readings, at, out);
        if let Some(&boottime) = readings.get(&(0, BOOTTIME)) {
            for (clock, reading) in &readings {
                let anchors = self.anchors.entry(*clock).or_default();
                let place = anchors.partition_point(|(earlier, _)| earlier <= reading);
                anchors.insert(place, (*reading, boottime));
            }
        }
        self.last
            .insert(readings.keys().copied().collect(), readings);
    }

    /// The calendar may be set back; the other clocks never run back.
    fn compare_with_last(
        &self,
        readings: &BTreeMap<Clock, u64>,
        at: Position,
        out: &mut Violations,
    ) {
        let set = readings.keys().copied().collect::<Vec<_>>();
        let Some(last) = self.last.get(&set) else {
            return;
        };
        for (clock, reading) in readings {
            let before = last.get(clock).copied().unwrap_or(0);
            if *reading < before && clock.1 != REALTIME {
                out.add(Rule::SnapshotMonotonic, at, || {
                    format!("clock {} goes back from {before} to {reading} ns", clock.1)
                });
            }
        }
    }

    /// The moment of a packet's stamp on BOOTTIME; `None` if its clock is unknown.
    pub(super) fn boottime(
        &mut self,
        sequence: u32,
        clock: Option<u32>,
        stamp: u64,
    ) -> Option<u64> {
        let id = clock.unwrap_or(BOOTTIME);
        if id == BOOTTIME {
            return Some(stamp);
        }
        let key = key(sequence, id);
        let stamp = stamp.saturating_mul(*self.units.get(&key)?);
        let stamp = match self.incremental.get_mut(&key) {
            Some(last) => {
                *last = last.saturating_add(stamp);
                *last
            }
            None => stamp,
        };
        let anchors = self.anchors.get(&key)?;
        let next = anchors.partition_point(|(reading, _)| *reading <= stamp);
        let (reading, boottime) = anchors.get(next.saturating_sub(1))?;
        (stamp + boottime).checked_sub(*reading)
    }
}

fn key(sequence: u32, id: u32) -> Clock {
    match SCOPED.contains(&id) {
        true => (sequence, id),
        false => (0, id),
    }
}
