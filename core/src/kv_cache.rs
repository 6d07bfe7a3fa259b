//! Which sequence holds which KV block, and which blocks still hold what an
//! earlier sequence computed. Pure accounting: the tensors are the workers'.

mod block_hash;
mod block_pool;
mod manager;
mod prefix_cache;

pub use block_hash::BlockHash;
pub use manager::{Admission, KvCacheManager};
