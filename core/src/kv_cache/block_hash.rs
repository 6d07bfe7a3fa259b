//! The identity of a full block's content.

/// Identifies a full block by its tokens and by everything before them.
///
/// Chained: a block's hash covers its parent's, so equal hashes mean equal
/// prefixes. A collision would show one client what another one's prompt
/// computed, and prompts are chosen by clients: hence a cryptographic hash,
/// and all 256 bits of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// Parent of a sequence's first block.
    pub const ROOT: BlockHash = BlockHash([0; 32]);

    /// The block that follows `self` and holds `token_ids`.
    pub fn child(self, token_ids: &[u32]) -> BlockHash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        for token_id in token_ids {
            hasher.update(&token_id.to_le_bytes());
        }
        BlockHash(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_tells_tokens_their_order_and_all_that_came_before() {
        let first = BlockHash::ROOT.child(&[1, 2]);
        let hashes = [
            first,
            BlockHash::ROOT.child(&[2, 1]),
            BlockHash::ROOT.child(&[1, 2, 0]),
            first.child(&[1, 2]),
            first.child(&[3, 4]),
            BlockHash::ROOT.child(&[3, 4]),
        ];
        let distinct: std::collections::HashSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), hashes.len());
        assert_eq!(first, BlockHash::ROOT.child(&[1, 2]));
    }
}
