//! Weights, KV tensors, forward pass and sampling of one rank.
//!
//! This layer alone knows tensors. It must not know text, HTTP or why the
//! scheduler planned what it planned.
pub mod kernels;
