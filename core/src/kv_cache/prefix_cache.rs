//! Which block holds which content, held by someone or not.

use crate::kv_cache::BlockHash;
use nano_ipc::scheduler_output::BlockId;
use std::collections::HashMap;

/// Content of blocks by hash, and hash by block.
///
/// Invariant, checked by [`check_integrity`](Self::check_integrity): the two
/// maps are each other's inverse.
#[derive(Debug, Default)]
pub struct PrefixCache {
    block_of: HashMap<BlockHash, BlockId>,
    hash_of: HashMap<BlockId, BlockHash>,
}

impl PrefixCache {
    /// Blocks that hold the longest known beginning of `hashes`.
    pub fn longest_prefix<'a>(
        &'a self,
        hashes: &'a [BlockHash],
    ) -> impl Iterator<Item = BlockId> + 'a {
        hashes
            .iter()
            .map_while(|hash| self.block_of.get(hash).copied())
    }

    /// Whether the block's content can be found.
    pub fn contains(&self, id: BlockId) -> bool {
        self.hash_of.contains_key(&id)
    }

    /// Notes what a block holds from now on. Where another block holds the
    /// same already, that one stays the known one.
    pub fn insert(&mut self, id: BlockId, hash: BlockHash) {
        if !self.block_of.contains_key(&hash) && !self.hash_of.contains_key(&id) {
            self.block_of.insert(hash, id);
            self.hash_of.insert(id, hash);
        }
    }

    /// The block's content is about to be overwritten.
    pub fn remove(&mut self, id: BlockId) {
        if let Some(hash) = self.hash_of.remove(&id) {
            self.block_of.remove(&hash);
        }
    }

    /// Panics unless the invariant holds.
    pub fn check_integrity(&self) {
        assert_eq!(self.block_of.len(), self.hash_of.len());
        for (hash, id) in &self.block_of {
            assert_eq!(self.hash_of.get(id), Some(hash), "hash of {id:?}");
        }
    }
}
