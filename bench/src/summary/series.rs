//! Throughput over time.

use crate::clock::Moment;
use crate::record::RequestRecord;
use std::collections::BTreeMap;

/// Nanoseconds of a slot.
const SLOT_NS: u64 = 100_000_000;
/// Points of a curve at most.
const POINTS: usize = 60;

/// Output tokens by when they came, in slots of 100 ms.
#[derive(Clone, Debug, Default)]
pub struct TokenSeries(BTreeMap<u64, f64>);

impl TokenSeries {
    /// Takes in a complete request: its tokens are spread evenly over its
    /// chunks, and come at its end if there are none.
    pub fn add(&mut self, record: &RequestRecord) {
        let mut add = |at: Moment, tokens: f64| {
            *self.0.entry(at.ns() / SLOT_NS).or_default() += tokens;
        };
        let of_each = record.output_tokens as f64 / record.chunks.len().max(1) as f64;
        for chunk in &record.chunks {
            add(chunk.at, chunk.tokens.map_or(of_each, f64::from));
        }
        if record.chunks.is_empty() {
            add(record.times.ended, of_each);
        }
    }

    /// Seconds since `begun`, and output tokens a second about then.
    pub fn points(&self, begun: Moment) -> Vec<(f64, f64)> {
        let first = begun.ns() / SLOT_NS;
        let Some((&last, _)) = self.0.last_key_value() else {
            return Vec::new();
        };
        let slots = last.saturating_sub(first) + 1;
        let width = slots.div_ceil(POINTS as u64);
        let seconds = width as f64 * SLOT_NS as f64 / 1e9;
        let mut points: Vec<(f64, f64)> = (0..slots.div_ceil(width))
            .map(|point| ((point as f64 + 0.5) * seconds, 0.0))
            .collect();
        for (slot, tokens) in &self.0 {
            let place = slot.saturating_sub(first) / width;
            if let Some(point) = points.get_mut(place as usize) {
                point.1 += tokens / seconds;
            }
        }
        points
    }
}
