//! Gives blocks to sequences and takes them back.

use crate::kv_cache::BlockHash;
use crate::kv_cache::block_pool::{BlockPool, Reuse};
use crate::kv_cache::prefix_cache::PrefixCache;
use nano_ipc::scheduler_output::{BlockId, StepId};
use std::collections::VecDeque;

/// What a sequence gets when it enters the running ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Room for all its tokens, cached blocks first.
    pub block_table: Vec<BlockId>,
    /// Leading tokens whose KV is in those blocks already.
    pub num_cached_tokens: usize,
}

/// Policy over the block pool and the prefix cache.
///
/// Invariants, checked by [`check_integrity`](Self::check_integrity):
/// - a block's holders are the block tables of sequences, and the retired
///   tables that a step in flight may still read or write;
/// - a block that is written has one holder, as only full blocks that no step
///   writes any more are in the prefix cache;
/// - a block leaves the prefix cache before it is given out for new content.
#[derive(Debug)]
pub struct KvCacheManager {
    block_size: usize,
    pool: BlockPool,
    /// `None` when prefix caching is off.
    prefix_cache: Option<PrefixCache>,
    /// Block tables given up, each with the last step that names its blocks;
    /// in order of these steps.
    retired: VecDeque<(StepId, Vec<BlockId>)>,
}

impl KvCacheManager {
    /// A cache of `num_blocks` free blocks of `block_size` tokens.
    pub fn new(num_blocks: u32, block_size: u32, enable_prefix_caching: bool) -> KvCacheManager {
        KvCacheManager {
            block_size: block_size as usize,
            pool: BlockPool::new(num_blocks),
            prefix_cache: enable_prefix_caching.then(PrefixCache::default),
            retired: VecDeque::new(),
        }
    }

    /// Blocks that sequences, or steps in flight, hold.
    pub fn num_used_blocks(&self) -> usize {
        self.pool.num_blocks() - self.pool.num_free()
    }

    /// Tokens that all blocks hold together.
    pub fn num_slots(&self) -> usize {
        self.pool.num_blocks() * self.block_size
    }

    /// Whether blocks will become free without anybody being preempted.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Gives blocks for `num_tokens` tokens, the first of them with the cached
    /// content of `hashes` as far as it is known; leaves `num_spare` blocks
    /// free. `None`, and nothing changed, when there are too few.
    pub fn admit(
        &mut self,
        hashes: &[BlockHash],
        num_tokens: usize,
        num_spare: usize,
    ) -> Option<Admission> {
        // A hit must leave a token to compute: its logits choose the next one.
        let reusable = num_tokens.saturating_sub(1) / self.block_size;
        let hashes = &hashes[..hashes.len().min(reusable)];
        let cache = self.prefix_cache.as_ref();
        let mut block_table: Vec<_> = cache
            .into_iter()
            .flat_map(|cache| cache.longest_prefix(hashes))
            .collect();
        let num_cached_tokens = block_table.len() * self.block_size;

        let revived = block_table.iter().filter(|id| self.pool.is_free(**id));
        let missing = num_tokens.div_ceil(self.block_size) - block_table.len();
        if revived.count() + missing + num_spare > self.pool.num_free() {
            return None;
        }
        for id in &block_table {
            self.pool.share(*id);
        }
        block_table.extend((0..missing).map_while(|_| self.allocate()));
        Some(Admission {
            block_table,
            num_cached_tokens,
        })
    }

    /// Makes a block table long enough for `num_tokens` tokens; returns the
    /// blocks appended. `None`, and nothing changed, when there are too few.
    pub fn grow(
        &mut self,
        block_table: &mut Vec<BlockId>,
        num_tokens: usize,
    ) -> Option<Vec<BlockId>> {
        let missing = num_tokens
            .div_ceil(self.block_size)
            .saturating_sub(block_table.len());
        if missing > self.pool.num_free() {
            return None;
        }
        let appended: Vec<_> = (0..missing).map_while(|_| self.allocate()).collect();
        block_table.extend(&appended);
        Some(appended)
    }

    fn allocate(&mut self) -> Option<BlockId> {
        let id = self.pool.allocate()?;
        if let Some(cache) = &mut self.prefix_cache {
            cache.remove(id);
        }
        Some(id)
    }

    /// Lets later sequences find a full block, once the step that filled it is done.
    pub fn remember(&mut self, id: BlockId, hash: BlockHash) {
        if let Some(cache) = &mut self.prefix_cache {
            cache.insert(id, hash);
        }
    }

    /// Takes a sequence's blocks back, once `last_step`, the last that names
    /// them, is done. `None`: no step in flight does.
    pub fn release(&mut self, block_table: Vec<BlockId>, last_step: Option<StepId>) {
        match last_step {
            None => self.free(block_table),
            Some(step_id) => {
                let behind = self.retired.partition_point(|(step, _)| *step <= step_id);
                self.retired.insert(behind, (step_id, block_table));
            }
        }
    }

    /// No step up to this one reads or writes blocks any more.
    pub fn step_done(&mut self, step_id: StepId) {
        while let Some((step, block_table)) = self.retired.pop_front() {
            if step > step_id {
                self.retired.push_front((step, block_table));
                break;
            }
            self.free(block_table);
        }
    }

    fn free(&mut self, block_table: Vec<BlockId>) {
        // A prefix is of use without its continuation, but not the other way
        // round: the end of the sequence is the first to be overwritten.
        for id in block_table.into_iter().rev() {
            let wanted = self
                .prefix_cache
                .as_ref()
                .is_some_and(|cache| cache.contains(id));
            self.pool
                .release(id, if wanted { Reuse::Last } else { Reuse::First });
        }
    }

    /// Panics unless the invariants hold, given all sequences' block tables.
    pub fn check_integrity<'a>(&'a self, block_tables: impl Iterator<Item = &'a Vec<BlockId>>) {
        let retired = self.retired.iter().map(|(_, block_table)| block_table);
        self.pool
            .check_integrity(block_tables.chain(retired).flatten().copied());
        assert!(self.retired.iter().is_sorted_by_key(|(step, _)| *step));
        if let Some(cache) = &self.prefix_cache {
            cache.check_integrity();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_SIZE: u32 = 4;

    fn hashes(token_ids: &[u32]) -> Vec<BlockHash> {
        let blocks = token_ids.chunks_exact(BLOCK_SIZE as usize);
        let chain = blocks.scan(BlockHash::ROOT, |parent, block| {
            *parent = parent.child(block);
            Some(*parent)
        });
        chain.collect()
    }

    /// A cache that remembers the blocks of a sequence with these tokens, which has ended.
    fn cache_after(token_ids: &[u32], num_blocks: u32) -> KvCacheManager {
        let mut cache = KvCacheManager::new(num_blocks, BLOCK_SIZE, true);
        let hashes = hashes(token_ids);
        let admission = cache.admit(&hashes, token_ids.len(), 0).expect("it fits");
        for (id, hash) in admission.block_table.iter().zip(hashes) {
            cache.remember(*id, hash);
        }
        cache.release(admission.block_table, None);
        cache
    }

    #[track_caller]
    fn check_hit(cached: &[u32], prompt: &[u32], num_cached_tokens: usize) {
        let mut cache = cache_after(cached, 8);
        let admission = cache
            .admit(&hashes(prompt), prompt.len(), 0)
            .expect("it fits");
        assert_eq!(admission.num_cached_tokens, num_cached_tokens);
        assert_eq!(admission.block_table.len(), prompt.len().div_ceil(4));
        cache.check_integrity([&admission.block_table].into_iter());
    }

    #[test]
    fn a_prefix_is_found_in_whole_blocks_and_never_the_whole_prompt() {
        check_hit(&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 5, 6, 7, 8, 9], 8);
        check_hit(&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 5, 6, 7, 8], 4);
        check_hit(&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 5, 6, 0, 8, 9], 4);
        check_hit(&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4], 0);
        check_hit(&[1, 2, 3, 4, 5, 6, 7, 8], &[5, 6, 7, 8, 9], 0);
        check_hit(&[1, 2, 3], &[1, 2, 3, 4, 5], 0);
    }

    #[test]
    fn the_end_of_an_ended_sequence_is_overwritten_before_its_beginning() {
        let mut cache = cache_after(&[1, 2, 3, 4, 5, 6, 7, 8], 3);
        // One block was never used; the second to go is the sequence's last.
        let other = cache.admit(&[], 8, 0).expect("three blocks are free");
        let again = hashes(&[1, 2, 3, 4, 5, 6, 7, 8]);
        cache.release(other.block_table, None);
        let admission = cache.admit(&again, 9, 0).expect("three blocks are free");
        assert_eq!(admission.num_cached_tokens, 4);
    }

    #[test]
    fn blocks_return_after_the_last_step_that_names_them() {
        let mut cache = KvCacheManager::new(2, BLOCK_SIZE, false);
        let one = cache.admit(&[], 4, 0).expect("two blocks are free");
        let two = cache.admit(&[], 4, 0).expect("one block is free");
        cache.release(one.block_table, Some(StepId(8)));
        cache.release(two.block_table, Some(StepId(7)));
        for (done, num_used) in [(6, 2), (7, 1), (8, 0)] {
            cache.step_done(StepId(done));
            cache.check_integrity(std::iter::empty());
            assert_eq!(cache.num_used_blocks(), num_used, "after step {done}");
            assert_eq!(cache.has_retired(), num_used > 0);
        }
    }

    #[test]
    fn an_admission_counts_what_it_revives_and_leaves_the_spare_ones() {
        let mut cache = cache_after(&[1, 2, 3, 4, 5, 6, 7, 8], 3);
        let prompt = hashes(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(cache.admit(&prompt, 9, 1), None);
        assert_eq!(cache.num_used_blocks(), 0);
        assert!(cache.admit(&prompt, 9, 0).is_some());
    }
}
