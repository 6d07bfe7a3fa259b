//! The writer's part: which records are kept, and which room is given back.

use super::open_account;
use crate::clock::Timeline;
use crate::rings::{Forgotten, Rings};
use crate::walk::{Span, Walk};
use std::time::Duration;

/// See the module.
pub(crate) struct Forgetting<'r> {
    rings: &'r Rings,
    keep: Duration,
    /// Stands where the kept records begin.
    walk: Walk<'r>,
    forgotten: Forgotten,
    /// Moments until when so many records had found no room; the newest last.
    drops: Vec<(u64, u64)>,
}

impl<'r> Forgetting<'r> {
    /// `walk` stands where recording begins.
    pub(crate) fn new(rings: &'r Rings, walk: Walk<'r>, keep: Duration) -> Forgetting<'r> {
        Forgetting {
            rings,
            keep,
            walk,
            forgotten: Forgotten::default(),
            drops: Vec::new(),
        }
    }

    /// Forgets what need not be kept of what `read` has passed. `heads` of
    /// rings are as of the last look.
    pub(crate) fn forget(
        &mut self,
        read: &Walk<'_>,
        heads: impl Iterator<Item = u64>,
        timeline: &mut Timeline,
    ) {
        let heads: Vec<u64> = heads.collect();
        for (ring, span) in read.spans().iter().enumerate() {
            self.walk.set_head(ring, span.tail);
        }
        self.remember_drops(timeline);
        // Of a ring that is more than half full something goes, whatever its age.
        let is_crowded =
            |span: &Span<'_>, head: u64| head - span.tail > span.words.len() as u64 / 2;
        let spans = self.walk.spans().iter().zip(&heads);
        let mut crowded: Vec<bool> = spans.map(|(span, &head)| is_crowded(span, head)).collect();
        let mut num_crowded = crowded.iter().filter(|crowded| **crowded).count();
        // If raw time ran backwards, all records from before count as old.
        let newest = timeline.newest().map_or(0, |anchor| anchor.raw);
        let old = timeline.raw_before(self.keep).max(timeline.oldest_raw());
        self.walk.begin(u64::MAX);
        let mut passed = false;
        while let Some(record) = self.walk.next(timeline) {
            let time = record.entry.time();
            if old <= time && time <= newest && num_crowded == 0 {
                break;
            }
            let request = self.walk.step(&record);
            self.walk.pass(&record, request);
            self.forgotten.ns = self.forgotten.ns.max(record.ns);
            passed = true;
            let span = self.walk.span(record.ring);
            if crowded[record.ring] && !is_crowded(span, heads[record.ring]) {
                crowded[record.ring] = false;
                num_crowded -= 1;
            }
        }
        if passed {
            self.settle();
        }
    }

    /// Accounts for what is open now.
    fn settle(&mut self) {
        let before = self
            .drops
            .partition_point(|(ns, _)| *ns <= self.forgotten.ns);
        if let Some((_, drops)) = self.drops.drain(..before).next_back() {
            self.forgotten.drops = drops;
        }
        self.forgotten.open += 1;
        let to = self.rings.open_account(self.forgotten.open);
        open_account::write(&self.walk.requests, &self.walk.counters, to);
    }

    /// They show in dumps that begin before they happened.
    fn remember_drops(&mut self, timeline: &Timeline) {
        let drops = self.rings.drops();
        let known = self
            .drops
            .last()
            .map_or(self.forgotten.drops, |last| last.1);
        if let (true, Some(now)) = (drops != known, timeline.newest()) {
            self.drops.push((now.boottime, drops));
        }
    }

    /// What is not kept any more.
    pub(crate) fn forgotten(&self) -> Forgotten {
        self.forgotten
    }

    /// Where the kept records of a ring begin.
    pub(crate) fn tail(&self, ring: usize) -> u64 {
        self.walk.span(ring).tail
    }

    /// Where the kept records of each ring begin.
    pub(crate) fn tails(&self) -> impl Iterator<Item = u64> + Clone {
        self.walk.spans().iter().map(|span| span.tail)
    }
}
