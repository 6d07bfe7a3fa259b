//! The arithmetic of a forward pass on the host's processors: pure functions on slices.
//!
//! Written once over vectors of eight lanes and compiled for each instruction
//! set (`simd`), chosen at run time; threads come from [`Pool`]. What all
//! kernels hold to:
//!
//! * A row's result depends on no other row of the batch, nor on how a prompt
//!   was cut into steps, nor on the number of threads, nor on the instruction
//!   set: bit for bit.
//! * No I/O, no clock, no allocation once the buffers have grown.
//!
//! The unsafe parts (vector intrinsics, disjoint writes, the pool) are tested
//! under valgrind, which knows AVX2:
//! `valgrind --error-exitcode=1 target/release/deps/nano_worker-HASH kernels`.

mod activations;
mod attention;
mod attention_tile;
mod dequantize;
mod disjoint;
mod elementwise;
mod kv;
mod logits;
mod math;
mod matmul;
mod packed;
mod pool;
mod rope;
mod simd;
#[cfg(test)]
mod tests;
mod tile;

pub use attention::{AttentionSpan, Queries, paged_attention};
pub use dequantize::{GROUP, ShapeError, dequantize, dequantize_row};
pub use elementwise::{add_rms_norm, rms_norm, silu_mul};
pub use kv::{KvDtype, KvLayer, KvShape};
pub use logits::{argmax, log_sum_exp, max};
pub use matmul::{PackedMatrix, Scratch};
pub use pool::Pool;
pub use rope::{RopeAngles, rope};
pub use simd::instruction_set;
