//! The operations that models are written against.
//!
//! A model names weights by role and calls these; it knows neither how a weight
//! is kept nor where it is computed. A backend implements [`Ops`] once and
//! serves every model.

mod linear;
mod rope_table;
mod traced;
mod workspace;

pub use linear::LinearRole;
pub use rope_table::RopeTable;
pub use traced::TracedOps;
pub use workspace::Workspace;

use crate::forward_batch::ForwardBatch;
use crate::kv_cache::KvCacheShape;
use crate::weights::WeightTensor;
use nano_model::gguf::GgmlType;

/// Why a backend could not load or compute.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// A weight does not suit its role.
    #[error("weight `{name}`: {reason}")]
    Weight {
        /// The tensor's name in the file.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The device cannot be used.
    #[error("{0}")]
    Device(&'static str),
    /// The tensor library failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl OpError {
    /// A weight does not suit its role.
    pub fn weight(tensor: &WeightTensor, reason: impl ToString) -> OpError {
        OpError::Weight {
            name: tensor.name().to_owned(),
            reason: reason.to_string(),
        }
    }
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionHeads {
    /// Query heads, a multiple of `num_kv_heads`.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl AttentionHeads {
    /// Elements of all query heads of a row.
    pub fn q_size(self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Elements of all key (or value) heads of a row.
    pub fn kv_size(self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Elements of a row of queries, keys and values: q, then k, then v.
    pub fn qkv_size(self) -> usize {
        self.q_size() + 2 * self.kv_size()
    }
}

/// What a backend computes.
///
/// A [`Buffer`](Self::Buffer) holds f32 rows on the device, row-major, and is
/// made once for the largest batch; operations use its first `rows` rows and
/// write into the caller's `out`. A row's result depends on no other row of the
/// batch.
pub trait Ops: Sized + 'static {
    /// f32 rows on the device.
    type Buffer;
    /// A weight of one dimension (norms).
    type Vector;
    /// One or more matrices that share their input, stacked along the output.
    type Linear;
    /// Token embeddings.
    type Embedding;
    /// Cosines and sines of rotary positions.
    type Rope;
    /// Keys and values of every layer.
    type KvCache;

    /// Where this computes, for logs: `cpu (2 threads, avx2)`.
    fn device_name(&self) -> String;

    /// Type of weights as kept and of the arithmetic, for logs, given the type
    /// that most of the file's weights have: `Q4_1 weights, int8 activations`.
    fn dtype_name(&self, weights: GgmlType) -> String;

    /// Bytes of all weights loaded so far, as kept.
    fn weight_bytes(&self) -> u64;

    /// Takes a weight of one dimension.
    fn load_vector(&mut self, weight: &WeightTensor) -> Result<Self::Vector, OpError>;

    /// Takes matrices `[out features, in features]` with equal input features;
    /// a row of the output holds the parts one behind the other.
    fn load_linear(
        &mut self,
        role: LinearRole,
        parts: &[WeightTensor],
    ) -> Result<Self::Linear, OpError>;

    /// Takes the embeddings `[vocabulary, hidden]`.
    fn load_embedding(&mut self, weight: &WeightTensor) -> Result<Self::Embedding, OpError>;

    /// Takes the table of rotary positions.
    fn load_rope(&mut self, table: RopeTable) -> Result<Self::Rope, OpError>;

    /// Zeroed rows.
    fn new_buffer(&mut self, rows: usize, columns: usize) -> Result<Self::Buffer, OpError>;

    /// Bytes that a cache of this shape takes.
    fn kv_cache_bytes(&self, shape: KvCacheShape) -> u64;

    /// Room for keys and values, zeroed.
    fn new_kv_cache(&mut self, shape: KvCacheShape) -> Result<Self::KvCache, OpError>;

    /// `out[row] = table[token_ids[row]]`; ids are below the vocabulary's size.
    fn embed(
        &mut self,
        table: &Self::Embedding,
        token_ids: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = x / sqrt(mean(x^2) + eps) * weight`, the mean over a row.
    fn rms_norm(
        &mut self,
        rows: usize,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `residual += x`, then `out = rms_norm(residual)`.
    fn add_rms_norm(
        &mut self,
        rows: usize,
        residual: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = x W^T`, rows of the stacked output features.
    fn linear(
        &mut self,
        weight: &Self::Linear,
        rows: usize,
        x: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Rotates queries and keys of `qkv` (rows of q, k, v; pairs are elements
    /// `i` and `i + head_dim / 2`) to the batch's positions, in place, and
    /// writes keys and values into the layer's slots of the cache.
    fn rope_and_write_kv(
        &mut self,
        batch: &ForwardBatch,
        heads: AttentionHeads,
        rope: &Self::Rope,
        layer: usize,
        qkv: &mut Self::Buffer,
        kv_cache: &mut Self::KvCache,
    ) -> Result<(), OpError>;

    /// Causal attention of the queries of `qkv` over the cache, read in place
    /// through each sequence's block table; scores are scaled by
    /// `1 / sqrt(head_dim)`. `out` has rows of all query heads.
    fn paged_attention(
        &mut self,
        batch: &ForwardBatch,
        heads: AttentionHeads,
        layer: usize,
        qkv: &Self::Buffer,
        kv_cache: &Self::KvCache,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = silu(gate) * up`, where a row of `gate_up` holds both halves.
    fn silu_mul(
        &mut self,
        rows: usize,
        gate_up: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out[i] = x[rows[i]]`.
    fn gather_rows(
        &mut self,
        x: &Self::Buffer,
        rows: &[usize],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// The first `rows` rows on the host.
    fn read<'a>(&mut self, x: &'a mut Self::Buffer, rows: usize) -> Result<&'a [f32], OpError>;
}
