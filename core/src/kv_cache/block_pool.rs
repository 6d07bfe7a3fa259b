//! The blocks, who holds them, and in which order free ones are given out.

use nano_ipc::scheduler_output::BlockId;
use std::collections::BTreeMap;

/// Where a block without holders lines up to be given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Before all others: its content is worth nothing.
    First,
    /// After all others: its content may be wanted again.
    Last,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Sequences that hold it.
    holders: u32,
    /// Its key in the queue of free blocks; without meaning while it is held.
    place: i64,
}

/// Reference counts and the queue of free blocks.
///
/// Invariant, checked by [`check_integrity`](Self::check_integrity): a block
/// stands in the queue, at its own place and nowhere else, exactly while
/// nobody holds it.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: BTreeMap<i64, BlockId>,
    /// The next place in front of all others.
    front: i64,
    /// The next place behind all others.
    back: i64,
}

impl BlockPool {
    /// All blocks free.
    pub fn new(num_blocks: u32) -> BlockPool {
        let places = 0..i64::from(num_blocks);
        let block = |place| Block { holders: 0, place };
        BlockPool {
            blocks: places.clone().map(block).collect(),
            free: places.clone().zip((0..num_blocks).map(BlockId)).collect(),
            front: -1,
            back: places.end,
        }
    }

    /// Blocks in all.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that nobody holds.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Whether nobody holds the block.
    pub fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id.0 as usize].holders == 0
    }

    /// Takes the first free block of the queue for one holder.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let (_, id) = self.free.pop_first()?;
        self.blocks[id.0 as usize].holders = 1;
        Some(id)
    }

    /// Adds a holder to a block, free or not.
    pub fn share(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if block.holders == 0 {
            self.free.remove(&block.place);
        }
        block.holders += 1;
    }

    /// Takes one holder away; the last one puts the block into the queue.
    ///
    /// # Panics
    /// When nobody holds it: it would be given out twice.
    pub fn release(&mut self, id: BlockId, reuse: Reuse) {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.holders > 0, "{id:?} is released, but nobody holds it");
        block.holders -= 1;
        if block.holders == 0 {
            let (next, step) = match reuse {
                Reuse::First => (&mut self.front, -1),
                Reuse::Last => (&mut self.back, 1),
            };
            block.place = *next;
            *next += step;
            self.free.insert(block.place, id);
        }
    }

    /// Panics unless the invariant holds and `holders` are the blocks' holders.
    pub fn check_integrity(&self, holders: impl Iterator<Item = BlockId>) {
        let mut counts = vec![0; self.blocks.len()];
        for id in holders {
            counts[id.0 as usize] += 1;
        }
        let mut num_free = 0;
        for (index, block) in self.blocks.iter().enumerate() {
            assert_eq!(block.holders, counts[index], "holders of block {index}");
            if block.holders == 0 {
                num_free += 1;
                let queued = self.free.get(&block.place);
                assert_eq!(
                    queued,
                    Some(&BlockId(index as u32)),
                    "place of block {index}"
                );
            }
        }
        assert_eq!(self.free.len(), num_free, "length of the queue");
        assert!(
            self.free
                .keys()
                .all(|place| (self.front + 1..self.back).contains(place))
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worthless_blocks_are_given_out_before_those_that_may_be_wanted_again() {
        let mut pool = BlockPool::new(4);
        let held: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(held, [0, 1, 2, 3].map(BlockId));
        for (id, reuse) in [
            (0, Reuse::Last),
            (1, Reuse::First),
            (2, Reuse::Last),
            (3, Reuse::First),
        ] {
            pool.release(BlockId(id), reuse);
            pool.check_integrity(held[id as usize + 1..].iter().copied());
        }
        let given: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(given, [3, 1, 0, 2].map(BlockId));
    }

    #[test]
    fn a_shared_block_is_free_only_after_its_last_holder() {
        let mut pool = BlockPool::new(2);
        let id = pool.allocate().expect("two are free");
        pool.share(id);
        pool.release(id, Reuse::Last);
        assert!(!pool.is_free(id));
        pool.release(id, Reuse::Last);
        assert!(pool.is_free(id));
        pool.share(id);
        pool.check_integrity([id].into_iter());
        assert_eq!(pool.num_free(), 1);
    }

    #[test]
    #[should_panic(expected = "nobody holds it")]
    fn a_release_too_many_is_caught() {
        BlockPool::new(1).release(BlockId(0), Reuse::Last);
    }
}
