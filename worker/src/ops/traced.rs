//! Any backend, with a slice in the trace around each operation of a pass.

use crate::forward_batch::ForwardBatch;
use crate::kv_cache::KvCacheShape;
use crate::ops::{AttentionHeads, LinearRole, OpError, Ops, RopeTable};
use crate::weights::WeightTensor;
use nano_model::gguf::GgmlType;
use nano_trace::{Event, slice};

/// Any backend, with a slice in the trace around each operation of a pass.
/// Where none is recorded, an operation costs one load more.
#[derive(Debug)]
pub struct TracedOps<B>(B);

/// A linear layer, and what it is for.
#[derive(Debug)]
pub struct TracedLinear<L> {
    role: LinearRole,
    linear: L,
}

impl<B> TracedOps<B> {
    /// Around a backend.
    pub fn new(backend: B) -> TracedOps<B> {
        TracedOps(backend)
    }
}

impl<B: Ops> Ops for TracedOps<B> {
    type Buffer = B::Buffer;
    type Vector = B::Vector;
    type Linear = TracedLinear<B::Linear>;
    type Embedding = B::Embedding;
    type Rope = B::Rope;
    type KvCache = B::KvCache;

    fn device_name(&self) -> String {
        self.0.device_name()
    }

    fn dtype_name(&self, weights: GgmlType) -> String {
        self.0.dtype_name(weights)
    }

    fn weight_bytes(&self) -> u64 {
        self.0.weight_bytes()
    }

    fn load_vector(&mut self, weight: &WeightTensor) -> Result<B::Vector, OpError> {
        self.0.load_vector(weight)
    }

    fn load_linear(
        &mut self,
        role: LinearRole,
        parts: &[WeightTensor],
    ) -> Result<Self::Linear, OpError> {
        let linear = self.0.load_linear(role, parts)?;
        Ok(TracedLinear { role, linear })
    }

    fn load_embedding(&mut self, weight: &WeightTensor) -> Result<B::Embedding, OpError> {
        self.0.load_embedding(weight)
    }

    fn load_rope(&mut self, table: RopeTable) -> Result<B::Rope, OpError> {
        self.0.load_rope(table)
    }

    fn new_buffer(&mut self, rows: usize, columns: usize) -> Result<B::Buffer, OpError> {
        self.0.new_buffer(rows, columns)
    }

    fn kv_cache_bytes(&self, shape: KvCacheShape) -> u64 {
        self.0.kv_cache_bytes(shape)
    }

    fn new_kv_cache(&mut self, shape: KvCacheShape) -> Result<B::KvCache, OpError> {
        self.0.new_kv_cache(shape)
    }

    fn embed(
        &mut self,
        table: &B::Embedding,
        token_ids: &[u32],
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let _slice = slice(Event::Embed, [token_ids.len() as u64]);
        self.0.embed(table, token_ids, out)
    }

    fn rms_norm(
        &mut self,
        rows: usize,
        x: &B::Buffer,
        weight: &B::Vector,
        eps: f32,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let _slice = slice(Event::RmsNorm, [rows as u64]);
        self.0.rms_norm(rows, x, weight, eps, out)
    }

    fn add_rms_norm(
        &mut self,
        rows: usize,
        residual: &mut B::Buffer,
        x: &B::Buffer,
        weight: &B::Vector,
        eps: f32,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let _slice = slice(Event::AddRmsNorm, [rows as u64]);
        self.0.add_rms_norm(rows, residual, x, weight, eps, out)
    }

    fn linear(
        &mut self,
        weight: &Self::Linear,
        rows: usize,
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let _slice = slice(Event::Linear, [label(weight.role), rows as u64]);
        self.0.linear(&weight.linear, rows, x, out)
    }

    fn rope_and_write_kv(
        &mut self,
        batch: &ForwardBatch,
        heads: AttentionHeads,
        rope: &B::Rope,
        layer: usize,
        qkv: &mut B::Buffer,
        kv_cache: &mut B::KvCache,
    ) -> Result<(), OpError> {
        let _slice = slice(Event::RopeAndWriteKv, [batch.rows() as u64]);
        self.0
            .rope_and_write_kv(batch, heads, rope, layer, qkv, kv_cache)
    }

    fn paged_attention(
        &mut self,
        batch: &ForwardBatch,
        heads: AttentionHeads,
        layer: usize,
        qkv: &B::Buffer,
        kv_cache: &B::KvCache,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let _slice = slice(Event::PagedAttention, [batch.rows() as u64]);
        self.0
            .paged_attention(batch, heads, layer, qkv, kv_cache, out)
    }

    fn silu_mul(
        &mut self,
        rows: usize,
        gate_up: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let _slice = slice(Event::SiluMul, [rows as u64]);
        self.0.silu_mul(rows, gate_up, out)
    }

    fn gather_rows(
        &mut self,
        x: &B::Buffer,
        rows: &[usize],
        out: &mut B::Buffer,
    ) -> Result<(), OpError> {
        let _slice = slice(Event::GatherRows, [rows.len() as u64]);
        self.0.gather_rows(x, rows, out)
    }

    fn read<'a>(&mut self, x: &'a mut B::Buffer, rows: usize) -> Result<&'a [f32], OpError> {
        self.0.read(x, rows)
    }
}

/// Index into [`nano_trace::Event::Linear`]'s labels.
fn label(role: LinearRole) -> u64 {
    match role {
        LinearRole::Qkv => 0,
        LinearRole::O => 1,
        LinearRole::GateUp => 2,
        LinearRole::Down => 3,
        LinearRole::LmHead => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nano_trace::ArgKind;

    #[test]
    fn the_trace_calls_roles_by_their_names() {
        let Some((_, ArgKind::Label(labels))) = Event::Linear.args().first() else {
            panic!("the first argument is a label");
        };
        for role in [
            LinearRole::Qkv,
            LinearRole::O,
            LinearRole::GateUp,
            LinearRole::Down,
            LinearRole::LmHead,
        ] {
            assert_eq!(labels[label(role) as usize], role.to_string());
        }
    }
}
