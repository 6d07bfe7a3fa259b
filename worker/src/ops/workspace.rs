//! Buffers of a forward pass, made once.

use super::{AttentionHeads, OpError, Ops};

/// Buffers of a forward pass over at most so many rows, shared by all layers.
#[derive(Debug)]
pub struct Workspace<B: Ops> {
    /// The residual stream, `[rows, hidden]`.
    pub residual: B::Buffer,
    /// Normed residuals, `[rows, hidden]`: what a layer's halves read, and at
    /// the end what the lm_head reads.
    pub normed: B::Buffer,
    /// What a half of a layer adds to the residual, `[rows, hidden]`.
    pub delta: B::Buffer,
    /// Queries, keys and values, `[rows, qkv_size]`.
    pub qkv: B::Buffer,
    /// Attention's output, `[rows, q_size]`.
    pub attention: B::Buffer,
    /// Gate and up projections, `[rows, 2 x intermediate]`.
    pub gate_up: B::Buffer,
    /// Their product, `[rows, intermediate]`.
    pub activated: B::Buffer,
}

impl<B: Ops> Workspace<B> {
    /// Buffers for `rows` rows.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn new(
        ops: &mut B,
        rows: usize,
        hidden: usize,
        intermediate: usize,
        heads: AttentionHeads,
    ) -> Result<Workspace<B>, OpError> {
        Ok(Workspace {
            residual: ops.new_buffer(rows, hidden)?,
            normed: ops.new_buffer(rows, hidden)?,
            delta: ops.new_buffer(rows, hidden)?,
            qkv: ops.new_buffer(rows, heads.qkv_size())?,
            attention: ops.new_buffer(rows, heads.q_size())?,
            gate_up: ops.new_buffer(rows, 2 * intermediate)?,
            activated: ops.new_buffer(rows, intermediate)?,
        })
    }
}
