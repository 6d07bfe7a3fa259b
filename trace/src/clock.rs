//! From the raw times of rings to CLOCK_BOOTTIME.
//!
//! Reading the time stamp counter costs a third of a clock_gettime, but it is
//! in ticks of an unknown, slowly drifting length. So whoever drains rings
//! reads both clocks at once now and then (an [`Anchor`]), always right before
//! it drains: every record then lies between two anchors, and its time is
//! interpolated. Nothing is ever extrapolated, so the error of a time is at
//! most that of its anchors (half the width of a bracketed read, tens of ns),
//! and processes of one machine agree although each has anchors of its own.

use std::collections::VecDeque;
use std::time::Duration;

/// The clock of a ring's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawClock {
    /// Ticks of the processor's time stamp counter.
    Tsc,
    /// CLOCK_BOOTTIME in nanoseconds.
    Boottime,
}

impl RawClock {
    /// The counter where it runs at one rate in every power state (then
    /// systems keep it equal on all cores), CLOCK_BOOTTIME elsewhere.
    pub(crate) fn detect() -> RawClock {
        #[cfg(target_arch = "x86_64")]
        {
            // Leaf 8000_0007h, EDX bit 8: TscInvariant (AMD's and Intel's manuals agree).
            let cpuid = core::arch::x86_64::__cpuid;
            if cpuid(0x8000_0000).eax >= 0x8000_0007 && cpuid(0x8000_0007).edx & (1 << 8) != 0 {
                return RawClock::Tsc;
            }
        }
        RawClock::Boottime
    }

    /// A reading, in this clock's unit.
    #[inline(always)]
    pub(crate) fn now(self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every x86-64 processor has the instruction.
            RawClock::Tsc => unsafe { core::arch::x86_64::_rdtsc() },
            #[cfg(not(target_arch = "x86_64"))]
            RawClock::Tsc => unreachable!("detect() never chooses it here"),
            RawClock::Boottime => boottime_ns(),
        }
    }

    /// A reading that no earlier or later instruction moves across.
    fn now_fenced(self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has the instruction.
        unsafe {
            core::arch::x86_64::_mm_lfence()
        };
        let now = self.now();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        unsafe {
            core::arch::x86_64::_mm_lfence()
        };
        now
    }
}

/// CLOCK_BOOTTIME in nanoseconds.
pub(crate) fn boottime_ns() -> u64 {
    clock_ns(nix::time::ClockId::CLOCK_BOOTTIME)
}

/// A system clock in nanoseconds.
pub(crate) fn clock_ns(id: nix::time::ClockId) -> u64 {
    // Linux has had these clocks since 2.6.39, and reading them cannot fail.
    nix::time::clock_gettime(id)
        .map(|t| Duration::from(t).as_nanos() as u64)
        .unwrap_or_default()
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) raw: u64,
    pub(crate) boottime: u64,
}

impl Anchor {
    /// Reads CLOCK_BOOTTIME between two raw readings and takes the narrowest
    /// of several such brackets, so that an interrupt in one does no harm.
    pub(crate) fn read(clock: RawClock) -> Anchor {
        if clock == RawClock::Boottime {
            let now = boottime_ns();
            return Anchor {
                raw: now,
                boottime: now,
            };
        }
        let bracket = |_| {
            let before = clock.now_fenced();
            let boottime = boottime_ns();
            let width = clock.now_fenced().saturating_sub(before);
            let raw = before + width / 2;
            (width, Anchor { raw, boottime })
        };
        let first = bracket(0);
        (1..8)
            .map(bracket)
            .fold(
                first,
                |best, next| if next.0 < best.0 { next } else { best },
            )
            .1
    }
}

/// Converts raw times; made of anchors in order of time.
///
/// Invariants: anchors rise in both clocks (raw strictly), and so `convert`
/// never falls as its argument rises; the result lies within the anchors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    anchors: VecDeque<Anchor>,
    segment: Option<Segment>,
}

/// Between two neighbouring anchors.
#[derive(Clone, Copy, Debug)]
struct Segment {
    from: Anchor,
    to: Anchor,
    /// Nanoseconds a tick, in units of 2^-40.
    slope: u64,
}

const SLOPE_BITS: u32 = 40;

impl Timeline {
    /// Anchors that are kept: those of some minutes. A record may be published
    /// long after its time was read (its thread lost the processor in between),
    /// or be kept in its ring, so old ones count.
    pub(crate) const CAPACITY: usize = 2048;

    /// Adds an anchor. `false`: raw time ran backwards (the counter was reset
    /// in a suspend), and records from before can no longer be told apart from
    /// later ones; they get the new anchor's time.
    pub(crate) fn push(&mut self, anchor: Anchor) -> bool {
        let Some(last) = self.anchors.back().copied() else {
            self.anchors.push_back(anchor);
            return true;
        };
        if anchor.raw == last.raw {
            return true;
        }
        let forwards = anchor.raw > last.raw;
        if !forwards {
            self.anchors.clear();
            self.segment = None;
        }
        self.anchors.push_back(Anchor {
            raw: anchor.raw,
            boottime: anchor.boottime.max(last.boottime),
        });
        if self.anchors.len() > Self::CAPACITY {
            self.anchors.pop_front();
        }
        if forwards {
            let previous = self.segment.map(|s| s.slope);
            let to = self.anchors.len() - 1;
            self.segment = Some(self.segment_to(to, previous));
        }
        forwards
    }

    /// The newest anchor.
    pub(crate) fn newest(&self) -> Option<Anchor> {
        self.anchors.back().copied()
    }

    /// From this raw time on records are placed among anchors, even by one who
    /// knows a few less of the oldest.
    pub(crate) fn oldest_raw(&self) -> u64 {
        let is_full = self.anchors.len() > Self::CAPACITY - 16;
        let oldest = self.anchors.get(16).filter(|_| is_full);
        oldest.map_or(0, |anchor| anchor.raw)
    }

    /// A raw time about so long before the newest anchor.
    pub(crate) fn raw_before(&self, lag: Duration) -> u64 {
        let Some(newest) = self.newest() else {
            return 0;
        };
        let ns = newest.boottime.saturating_sub(lag.as_nanos() as u64);
        let after = self.anchors.partition_point(|a| a.boottime <= ns);
        let Some(from) = after.checked_sub(1).map(|before| self.anchors[before]) else {
            return 0;
        };
        let Some(to) = self.anchors.get(after) else {
            return newest.raw;
        };
        let ticks = u128::from(to.raw - from.raw) * u128::from(ns - from.boottime);
        from.raw + (ticks / u128::from(to.boottime - from.boottime)) as u64
    }

    /// CLOCK_BOOTTIME in ns of a raw time; times outside the anchors get the
    /// nearest anchor's.
    #[inline]
    pub(crate) fn convert(&mut self, raw: u64) -> u64 {
        if let Some(segment) = &self.segment
            && segment.from.raw <= raw
            && raw <= segment.to.raw
        {
            return segment.convert(raw);
        }
        self.convert_elsewhere(raw)
    }

    #[cold]
    fn convert_elsewhere(&mut self, raw: u64) -> u64 {
        let (Some(oldest), Some(newest)) = (self.anchors.front(), self.anchors.back()) else {
            return 0;
        };
        if raw <= oldest.raw {
            return oldest.boottime;
        }
        if raw >= newest.raw {
            return newest.boottime;
        }
        // The first anchor at or after `raw`; not the oldest, see above.
        let to = self.anchors.partition_point(|a| a.raw < raw);
        let previous = (to > 1).then(|| self.segment_to(to - 1, None).slope);
        let segment = self.segment_to(to, previous);
        self.segment = Some(segment);
        segment.convert(raw)
    }

    /// The segment that ends in anchor `to`, whose neighbour before it has
    /// slope `previous`.
    ///
    /// CLOCK_BOOTTIME counts a suspend, the counter may not. Such a segment
    /// would stretch its records over the whole suspend; they lie almost all
    /// before it, so they go on at the slope from before.
    fn segment_to(&self, to: usize, previous: Option<u64>) -> Segment {
        let (from, to) = (self.anchors[to - 1], self.anchors[to]);
        let ns = u128::from(to.boottime - from.boottime);
        // Rounded up, so that the end of the segment is met; convert() bounds it.
        let slope = (ns << SLOPE_BITS).div_ceil(u128::from(to.raw - from.raw));
        let slope = u64::try_from(slope).unwrap_or(u64::MAX);
        let slope = match previous {
            Some(previous) if previous > 0 && slope / 2 > previous => previous,
            _ => slope,
        };
        Segment { from, to, slope }
    }
}

impl Segment {
    #[inline]
    fn convert(&self, raw: u64) -> u64 {
        let ticks = u128::from(raw - self.from.raw);
        let ns = (ticks * u128::from(self.slope)) >> SLOPE_BITS;
        (self.from.boottime + ns as u64).min(self.to.boottime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timeline(anchors: &[(u64, u64)]) -> Timeline {
        let mut timeline = Timeline::default();
        for &(raw, boottime) in anchors {
            assert!(timeline.push(Anchor { raw, boottime }));
        }
        timeline
    }

    #[test]
    fn interpolates_between_anchors_and_clamps_outside() {
        let mut t = timeline(&[(1000, 10_000), (3000, 11_000), (4000, 11_600)]);
        for (raw, ns) in [
            (0, 10_000),
            (1000, 10_000),
            (2000, 10_500),
            (3000, 11_000),
            (3500, 11_300),
            (4000, 11_600),
            (9000, 11_600),
            (2000, 10_500),
        ] {
            assert_eq!(t.convert(raw), ns, "at {raw}");
        }
    }

    #[test]
    fn boottime_converts_to_itself() {
        let mut t = timeline(&[(5, 5), (1 << 50, 1 << 50)]);
        for raw in [5, 77, 123_456_789_012, 1 << 50] {
            assert_eq!(t.convert(raw), raw);
        }
    }

    #[test]
    fn a_time_before_the_newest_anchor_is_found() {
        let mut t = timeline(&[(1000, 10_000), (3000, 11_000), (4000, 11_600)]);
        for (lag, raw) in [(0, 4000), (300, 3500), (600, 3000), (1100, 2000), (9999, 0)] {
            assert_eq!(t.raw_before(Duration::from_nanos(lag)), raw, "{lag}");
        }
        assert_eq!(t.convert(t.raw_before(Duration::from_nanos(1100))), 10_500);
        assert_eq!(timeline(&[]).raw_before(Duration::ZERO), 0);
    }

    #[test]
    fn hours_between_anchors_lose_no_microsecond() {
        let ticks = 3 * 3600 * 2_445_405_000_u64;
        let ns = 3 * 3600 * 1_000_000_000;
        let mut t = timeline(&[(0, 0), (ticks, ns)]);
        assert!(ns - t.convert(ticks) < 1000);
        assert!((t.convert(ticks / 2)).abs_diff(ns / 2) < 1000);
    }

    #[test]
    fn a_suspend_that_the_counter_slept_through_stretches_nothing() {
        let hour = 3_600_000_000_000;
        let mut t = timeline(&[
            (0, 0),
            (1000, 500),
            (2000, 1000 + hour),
            (3000, 1500 + hour),
        ]);
        assert_eq!(t.convert(1500), 750);
        assert_eq!(t.convert(2001), 1000 + hour);
        assert_eq!(t.convert(3000), 1500 + hour);
    }

    #[test]
    fn a_counter_that_ran_backwards_starts_anew() {
        let mut t = timeline(&[(1000, 10), (2000, 20)]);
        assert!(!t.push(Anchor {
            raw: 100,
            boottime: 50
        }));
        assert_eq!(t.convert(1500), 50);
        assert!(t.push(Anchor {
            raw: 200,
            boottime: 60
        }));
        assert_eq!(t.convert(150), 55);
    }

    proptest! {
        #[test]
        fn never_falls(
            steps in prop::collection::vec((1u64..1_000_000, 0u64..3_000_000), 2..400),
            mut raws in prop::collection::vec(0u64..200_000_000, 2..200),
        ) {
            let mut t = Timeline::default();
            let (mut raw, mut boottime) = (0, 0);
            for (ticks, ns) in steps {
                raw += ticks;
                boottime += ns;
                t.push(Anchor { raw, boottime });
            }
            raws.sort_unstable();
            let ns: Vec<u64> = raws.iter().map(|&raw| t.convert(raw)).collect();
            prop_assert!(ns.is_sorted(), "{ns:?}");
        }
    }

    /// With the machine's own clocks: what a record is given lies between
    /// clock readings right before and after it, give or take a microsecond.
    #[test]
    fn real_anchors_place_readings_within_a_microsecond() {
        let clock = RawClock::detect();
        let mut t = timeline(&[]);
        t.push(Anchor::read(clock));
        let readings: Vec<_> = (0..2000)
            .map(|_| (boottime_ns(), clock.now(), boottime_ns()))
            .collect();
        t.push(Anchor::read(clock));
        // Readings that were interrupted say little about the conversion.
        let crisp = readings.iter().filter(|(a, _, b)| b - a < 1000);
        let mut seen = 0;
        for &(before, raw, after) in crisp {
            let ns = t.convert(raw);
            assert!(
                before <= ns + 1000 && ns <= after + 1000,
                "{before} {ns} {after}"
            );
            seen += 1;
        }
        assert!(seen > 100, "only {seen} crisp readings");
    }
}
