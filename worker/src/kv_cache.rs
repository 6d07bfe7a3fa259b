//! Size of the KV cache.

/// Size of the KV cache: blocks of slots, each with a key and a value for every
/// layer and head. How they lie in memory is the backend's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheShape {
    /// Layers with a cache of their own.
    pub num_layers: usize,
    /// Blocks of each layer.
    pub num_blocks: usize,
    /// Slots (tokens) of a block.
    pub block_size: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl KvCacheShape {
    /// Elements of all keys and values.
    pub fn len(&self) -> usize {
        2 * self.num_layers * self.num_blocks * self.block_size * self.num_kv_heads * self.head_dim
    }

    /// Whether it has no slot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
