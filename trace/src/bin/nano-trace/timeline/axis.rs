//! Time to x.

/// A piecewise linear axis: between two of its moments it is linear.
pub(super) struct Axis {
    moments: Vec<u64>,
    xs: Vec<f64>,
}

impl Axis {
    /// True to scale from `from` to `to`.
    pub(super) fn linear(from: u64, to: u64, x: f64, width: f64) -> Axis {
        Axis {
            moments: vec![from, to.max(from + 1)],
            xs: vec![x, x + width],
        }
    }

    /// Stretched where much happens: each of `needs` (from, to, pixels) gets
    /// its pixels if `width` allows it. Longer stretches of time stay wider.
    pub(super) fn stretched(
        mut moments: Vec<u64>,
        mut needs: Vec<(u64, u64, f64)>,
        x: f64,
        width: f64,
    ) -> Axis {
        moments.sort_unstable();
        moments.dedup();
        let mut widths = moments
            .windows(2)
            .map(|pair| 2.0 + 3.0 * (1.0 + (pair[1] - pair[0]) as f64 / 1000.0).log10())
            .collect::<Vec<_>>();
        let place = |time: u64| moments.partition_point(|moment| *moment < time);
        // The shortest first: what holds them may have room enough then.
        needs.sort_by_key(|(from, to, _)| to - from);
        for (from, to, pixels) in needs {
            let Some(gaps) = widths.get_mut(place(from)..place(to)) else {
                continue;
            };
            let missing = pixels - gaps.iter().sum::<f64>();
            if missing > 0.0 && !gaps.is_empty() {
                let each = missing / gaps.len() as f64;
                gaps.iter_mut().for_each(|gap| *gap += each);
            }
        }
        let scale = width / widths.iter().sum::<f64>().max(1.0);
        let mut xs = vec![x];
        let mut at = x;
        for gap in widths {
            at += gap * scale;
            xs.push(at);
        }
        Axis { moments, xs }
    }

    /// Where a moment lies; those outside lie at the nearer end.
    pub(super) fn x(&self, time: u64) -> f64 {
        let next = self.moments.partition_point(|moment| *moment <= time);
        match (next.checked_sub(1), self.moments.get(next)) {
            (None, _) => self.xs[0],
            (Some(last), None) => self.xs[last],
            (Some(last), Some(end)) => {
                let (begin, end) = (self.moments[last], *end);
                let part = (time - begin) as f64 / (end - begin) as f64;
                self.xs[last] + part * (self.xs[next] - self.xs[last])
            }
        }
    }

    /// Moments for ticks, at least `apart` pixels from each other.
    pub(super) fn ticks(&self, apart: f64) -> Vec<u64> {
        let mut ticks: Vec<u64> = Vec::new();
        for moment in &self.moments {
            match ticks.last() {
                Some(last) if self.x(*moment) - self.x(*last) < apart => {}
                _ => ticks.push(*moment),
            }
        }
        ticks
    }

    /// Its first and last moment.
    pub(super) fn window(&self) -> (u64, u64) {
        (self.moments[0], self.moments[self.moments.len() - 1])
    }
}
