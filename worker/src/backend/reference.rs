//! Every operation in its plainest form, on whole tensors: the oracle of the
//! fast ones. Slow, exact to f32, and at home on any device that candle knows.

use crate::forward_batch::ForwardBatch;
use crate::kv_cache::KvCacheShape;
use crate::ops::{AttentionHeads, LinearRole, OpError, Ops, RopeTable};
use crate::weights::WeightTensor;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{D, DType, Device, Tensor};
use nano_model::gguf::GgmlType;
use std::borrow::Cow;

/// Every operation in its plainest form. Weights are dequantized at load, all
/// arithmetic is f32.
#[derive(Debug)]
pub struct ReferenceOps {
    device: Device,
    weight_bytes: u64,
}

/// Rows that an operation left; each operation replaces the tensor whole.
#[derive(Debug)]
pub struct ReferenceBuffer {
    tensor: Tensor,
    /// Where [`Ops::read`] puts them.
    host: Vec<f32>,
}

/// Keys and values of each layer, `[slots, kv heads, head_dim]`.
#[derive(Debug)]
pub struct ReferenceKvCache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
}

impl ReferenceOps {
    /// Computes on this device.
    pub fn new(device: Device) -> ReferenceOps {
        ReferenceOps {
            device,
            weight_bytes: 0,
        }
    }

    /// The tensor, dequantized.
    fn load(&mut self, weight: &WeightTensor) -> Result<Tensor, OpError> {
        let dtype = match weight.dtype() {
            GgmlType::F32 => GgmlDType::F32,
            GgmlType::F16 => GgmlDType::F16,
            GgmlType::BF16 => GgmlDType::BF16,
            GgmlType::Q4_0 => GgmlDType::Q4_0,
            GgmlType::Q4_1 => GgmlDType::Q4_1,
            GgmlType::Q5_0 => GgmlDType::Q5_0,
            GgmlType::Q5_1 => GgmlDType::Q5_1,
            GgmlType::Q8_0 => GgmlDType::Q8_0,
            GgmlType::Q4_K => GgmlDType::Q4K,
            GgmlType::Q5_K => GgmlDType::Q5K,
            GgmlType::Q6_K => GgmlDType::Q6K,
        };
        // Owned bytes are aligned for every block type, mapped ones need not be.
        let bytes = Cow::Owned(weight.bytes().to_vec());
        let storage = QStorage::from_data(bytes, &Device::Cpu, dtype)?;
        let tensor = QTensor::new(storage, weight.shape())?
            .dequantize(&Device::Cpu)?
            .to_device(&self.device)?;
        self.weight_bytes += (tensor.elem_count() * size_of::<f32>()) as u64;
        Ok(tensor)
    }

    fn indices(&self, indices: impl IntoIterator<Item = u32>) -> Result<Tensor, OpError> {
        Ok(Tensor::from_iter(indices, &self.device)?)
    }
}

impl ReferenceBuffer {
    fn set(&mut self, tensor: Tensor) -> Result<(), OpError> {
        self.tensor = tensor.contiguous()?;
        Ok(())
    }
}

/// `[rows, heads x head_dim]` at a column becomes `[rows, heads, head_dim]`.
fn heads_at(
    x: &Tensor,
    column: usize,
    heads: usize,
    head_dim: usize,
) -> candle_core::Result<Tensor> {
    x.narrow(1, column, heads * head_dim)?
        .reshape(((), heads, head_dim))
}

fn norm(x: &Tensor, weight: &Tensor, eps: f32) -> candle_core::Result<Tensor> {
    let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(mean_square + f64::from(eps))?.sqrt()?)?
        .broadcast_mul(weight)
}

/// Rotates `[rows, heads, head_dim]` by `[rows, 1, head_dim / 2]`.
fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> candle_core::Result<Tensor> {
    let half = x.dim(2)? / 2;
    let (first, second) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
    let rotated_first = (first.broadcast_mul(cos)? - second.broadcast_mul(sin)?)?;
    let rotated_second = (second.broadcast_mul(cos)? + first.broadcast_mul(sin)?)?;
    Tensor::cat(&[rotated_first, rotated_second], 2)
}

/// Attention of queries `[rows, heads, head_dim]`, the last of which sees all of
/// `keys` and `values` `[context, kv heads, head_dim]` and each earlier one a
/// position less.
fn attend(q: &Tensor, keys: &Tensor, values: &Tensor) -> candle_core::Result<Tensor> {
    let (rows, heads, head_dim) = q.dims3()?;
    let (context, kv_heads, _) = keys.dims3()?;
    let group = heads / kv_heads;
    // [kv heads, group x rows, head_dim], so that one product serves a group.
    let q = q
        .transpose(0, 1)?
        .contiguous()?
        .reshape((kv_heads, group * rows, head_dim))?;
    let keys = keys.transpose(0, 1)?.contiguous()?;
    let values = values.transpose(0, 1)?.contiguous()?;
    let scores = (q.matmul(&keys.t()?)? * (1.0 / (head_dim as f64).sqrt()))?;
    let mask = (0..group).flat_map(|_| {
        (0..rows).flat_map(move |row| {
            (0..context).map(move |position| {
                if position + rows <= context + row {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            })
        })
    });
    let mask = Tensor::from_iter(mask, q.device())?.reshape((1, group * rows, context))?;
    let scores = scores.broadcast_add(&mask)?;
    let weights = scores
        .broadcast_sub(&scores.max_keepdim(D::Minus1)?)?
        .exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    weights
        .matmul(&values)?
        .reshape((heads, rows, head_dim))?
        .transpose(0, 1)?
        .reshape((rows, heads * head_dim))
}

impl Ops for ReferenceOps {
    type Buffer = ReferenceBuffer;
    type Vector = Tensor;
    type Linear = Tensor;
    type Embedding = Tensor;
    type Rope = (Tensor, Tensor);
    type KvCache = ReferenceKvCache;

    fn device_name(&self) -> String {
        format!("{:?}, reference operations", self.device.location())
    }

    fn dtype_name(&self, weights: GgmlType) -> String {
        format!("{weights} weights in f32, f32 activations")
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn load_vector(&mut self, weight: &WeightTensor) -> Result<Tensor, OpError> {
        self.load(weight)
    }

    fn load_linear(
        &mut self,
        _role: LinearRole,
        parts: &[WeightTensor],
    ) -> Result<Tensor, OpError> {
        let parts = parts
            .iter()
            .map(|part| self.load(part))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::cat(&parts, 0)?)
    }

    fn load_embedding(&mut self, weight: &WeightTensor) -> Result<Tensor, OpError> {
        self.load(weight)
    }

    fn load_rope(&mut self, table: RopeTable) -> Result<(Tensor, Tensor), OpError> {
        let shape = (table.positions(), 1, table.half_dim());
        Ok((
            Tensor::from_slice(table.cos(), shape, &self.device)?,
            Tensor::from_slice(table.sin(), shape, &self.device)?,
        ))
    }

    fn new_buffer(&mut self, rows: usize, columns: usize) -> Result<ReferenceBuffer, OpError> {
        // Operations replace the tensor: the room is theirs to find.
        let _ = (rows, columns);
        Ok(ReferenceBuffer {
            tensor: Tensor::zeros((0, columns), DType::F32, &self.device)?,
            host: Vec::new(),
        })
    }

    fn kv_cache_bytes(&self, shape: KvCacheShape) -> u64 {
        (shape.len() * size_of::<f32>()) as u64
    }

    fn new_kv_cache(&mut self, shape: KvCacheShape) -> Result<ReferenceKvCache, OpError> {
        let slots = shape.num_blocks * shape.block_size;
        let dims = (slots, shape.num_kv_heads, shape.head_dim);
        let layers = || {
            (0..shape.num_layers)
                .map(|_| Tensor::zeros(dims, DType::F32, &self.device))
                .collect::<candle_core::Result<Vec<_>>>()
        };
        Ok(ReferenceKvCache {
            keys: layers()?,
            values: layers()?,
        })
    }

    fn embed(
        &mut self,
        table: &Tensor,
        token_ids: &[u32],
        out: &mut ReferenceBuffer,
    ) -> Result<(), OpError> {
        let ids = self.indices(token_ids.iter().copied())?;
        out.set(table.index_select(&ids, 0)?)
    }

    fn rms_norm(
        &mut self,
        rows: usize,
        x: &ReferenceBuffer,
        weight: &Tensor,
        eps: f32,
        out: &mut ReferenceBuffer,
    ) -> Result<(), OpError> {
        out.set(norm(&x.tensor.narrow(0, 0, rows)?, weight, eps)?)
    }

    fn add_rms_norm(
        &mut self,
        rows: usize,
        residual: &mut ReferenceBuffer,
        x: &ReferenceBuffer,
        weight: &Tensor,
        eps: f32,
        out: &mut ReferenceBuffer,
    ) -> Result<(), OpError> {
        let sum = (residual.tensor.narrow(0, 0, rows)? + x.tensor.narrow(0, 0, rows)?)?;
        residual.set(sum)?;
        self.rms_norm(rows, residual, weight, eps, out)
    }

    fn linear(
        &mut self,
        weight: &Tensor,
        rows: usize,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), OpError> {
        out.set(x.tensor.narrow(0, 0, rows)?.matmul(&weight.t()?)?)
    }

    fn rope_and_write_kv(
        &mut self,
        batch: &ForwardBatch,
        heads: AttentionHeads,
        (cos, sin): &(Tensor, Tensor),
        layer: usize,
        qkv: &mut ReferenceBuffer,
        kv_cache: &mut ReferenceKvCache,
    ) -> Result<(), OpError> {
        let positions = self.indices(batch.positions.iter().copied())?;
        let (cos, sin) = (
            cos.index_select(&positions, 0)?,
            sin.index_select(&positions, 0)?,
        );
        let (q_size, kv_size) = (heads.q_size(), heads.kv_size());
        let q = heads_at(&qkv.tensor, 0, heads.num_heads, heads.head_dim)?;
        let k = heads_at(&qkv.tensor, q_size, heads.num_kv_heads, heads.head_dim)?;
        let v = heads_at(
            &qkv.tensor,
            q_size + kv_size,
            heads.num_kv_heads,
            heads.head_dim,
        )?;
        let q = rotate(&q, &cos, &sin)?;
        let k = rotate(&k, &cos, &sin)?;
        let v = v.contiguous()?;
        for (row, &slot) in batch.slots.iter().enumerate() {
            let slot = slot as usize;
            kv_cache.keys[layer].slice_set(&k.narrow(0, row, 1)?.contiguous()?, 0, slot)?;
            kv_cache.values[layer].slice_set(&v.narrow(0, row, 1)?.contiguous()?, 0, slot)?;
        }
        let rows = batch.rows();
        qkv.set(Tensor::cat(
            &[
                q.reshape((rows, q_size))?,
                k.reshape((rows, kv_size))?,
                v.reshape((rows, kv_size))?,
            ],
            1,
        )?)
    }

    fn paged_attention(
        &mut self,
        batch: &ForwardBatch,
        heads: AttentionHeads,
        layer: usize,
        qkv: &ReferenceBuffer,
        kv_cache: &ReferenceKvCache,
        out: &mut ReferenceBuffer,
    ) -> Result<(), OpError> {
        let q = heads_at(&qkv.tensor, 0, heads.num_heads, heads.head_dim)?;
        let block_size = batch.block_size() as u32;
        let mut spans = Vec::with_capacity(batch.spans.len());
        for span in &batch.spans {
            let slots = batch
                .block_table(span)
                .iter()
                .flat_map(|block| (0..block_size).map(move |slot| block * block_size + slot))
                .take(batch.context_len(span));
            let slots = self.indices(slots)?;
            let keys = kv_cache.keys[layer].index_select(&slots, 0)?;
            let values = kv_cache.values[layer].index_select(&slots, 0)?;
            let q = q.narrow(0, span.rows.start, span.rows.len())?;
            spans.push(attend(&q, &keys, &values)?);
        }
        out.set(Tensor::cat(&spans, 0)?)
    }

    fn silu_mul(
        &mut self,
        rows: usize,
        gate_up: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), OpError> {
        let gate_up = gate_up.tensor.narrow(0, 0, rows)?;
        let half = gate_up.dim(1)? / 2;
        let gate = gate_up.narrow(1, 0, half)?;
        let up = gate_up.narrow(1, half, half)?;
        out.set((gate.silu()? * up)?)
    }

    fn gather_rows(
        &mut self,
        x: &ReferenceBuffer,
        rows: &[usize],
        out: &mut ReferenceBuffer,
    ) -> Result<(), OpError> {
        let rows = self.indices(rows.iter().map(|&row| row as u32))?;
        out.set(x.tensor.index_select(&rows, 0)?)
    }

    fn read<'a>(&mut self, x: &'a mut ReferenceBuffer, rows: usize) -> Result<&'a [f32], OpError> {
        x.host = x.tensor.narrow(0, 0, rows)?.flatten_all()?.to_vec1()?;
        Ok(&x.host)
    }
}
