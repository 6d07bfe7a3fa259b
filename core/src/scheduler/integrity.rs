//! The scheduler's invariants as code, for tests to call after every step.

use crate::scheduler::Scheduler;
use crate::sequence::SequenceStatus;

impl Scheduler {
    /// Breaks the invariants, so that the next step panics.
    #[cfg(test)]
    pub(crate) fn lose_every_sequence(&mut self) {
        self.sequences.clear();
    }

    /// Panics unless every invariant named above [`Scheduler`] holds.
    pub fn check_integrity(&self) {
        assert_eq!(self.by_request.len(), self.sequences.len());
        assert_eq!(
            self.waiting.len() + self.running.len(),
            self.sequences.len()
        );
        assert!(self.running.len() <= self.max_num_seqs);
        for (id, sequence) in &self.sequences {
            assert_eq!(*id, sequence.id);
            assert_eq!(self.by_request.get(&sequence.key), Some(id));
            let runs = sequence.status == SequenceStatus::Running;
            assert_eq!(
                self.running.contains(&sequence.rank()),
                runs,
                "{sequence:?}"
            );
            assert_eq!(
                self.waiting.contains(&sequence.rank()),
                !runs,
                "{sequence:?}"
            );
            assert!(!(runs && self.forget.contains(id)), "{sequence:?}");

            let num_slots = sequence.block_table.len() * self.block_size;
            assert!(sequence.num_computed_tokens <= num_slots, "{sequence:?}");
            assert!(
                sequence.num_computed_tokens <= sequence.num_tokens(),
                "{sequence:?}"
            );
            assert_eq!(sequence.block_table.is_empty(), !runs, "{sequence:?}");
            let rows = self.in_flight.iter().flat_map(|step| &step.rows);
            let sampling = rows.filter(|row| row.id == *id && row.samples);
            assert_eq!(sequence.num_pending, sampling.count(), "{sequence:?}");
            assert!(sequence.num_output_tokens() + sequence.num_pending <= sequence.max_tokens);
        }
        for step in &self.in_flight {
            let num_tokens: usize = step.rows.iter().map(|row| row.num_tokens).sum();
            assert!(num_tokens <= self.max_num_batched_tokens);
            assert!(step.rows.iter().all(|row| row.num_tokens > 0));
        }
        assert!(self.in_flight.iter().is_sorted_by_key(|step| step.step_id));
        self.kv_cache.check_integrity(
            self.sequences
                .values()
                .map(|sequence| &sequence.block_table),
        );
    }
}
