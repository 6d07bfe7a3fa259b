//! The host's processors: weights laid out for the kernels, buffers as slices.

use crate::forward_batch::ForwardBatch;
use crate::kernels::{
    self, AttentionSpan, KvDtype, KvLayer, KvShape, PackedMatrix, Pool, Queries, RopeAngles,
    Scratch, ShapeError,
};
use crate::kv_cache::KvCacheShape;
use crate::ops::{AttentionHeads, LinearRole, OpError, Ops, RopeTable};
use crate::weights::WeightTensor;
use nano_ipc::config::Dtype;
use nano_model::gguf::GgmlType;
use std::sync::Arc;

/// The host's processors.
///
/// With [`Dtype::Auto`] matrices stay packed as the file has them: quantized ones
/// meet activations quantized to int8, others f32 activations; keys and values
/// are kept in f16. With [`Dtype::Float32`] matrices are dequantized at load, and
/// everything is f32. Norms, rotations, softmax and sums are f32 in both.
#[derive(Debug)]
pub struct CpuOps {
    dtype: Dtype,
    scratch: Scratch,
    weight_bytes: u64,
}

/// f32 rows.
#[derive(Debug)]
pub struct CpuBuffer {
    columns: usize,
    values: Vec<f32>,
}

/// Token embeddings, packed as the file has them; a row is dequantized when it
/// is looked up.
#[derive(Debug)]
pub struct CpuEmbedding {
    weight: WeightTensor,
}

impl CpuOps {
    /// Computes on the threads of `pool`.
    pub fn new(dtype: Dtype, pool: Arc<Pool>) -> CpuOps {
        CpuOps {
            dtype,
            scratch: Scratch::new(pool),
            weight_bytes: 0,
        }
    }

    fn kv_dtype(&self) -> KvDtype {
        match self.dtype {
            Dtype::Auto => KvDtype::F16,
            Dtype::Float32 => KvDtype::F32,
        }
    }
}

impl CpuBuffer {
    fn rows(&self, rows: usize) -> &[f32] {
        &self.values[..rows * self.columns]
    }

    fn rows_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut self.values[..rows * self.columns]
    }
}

fn shape_error(weight: &WeightTensor) -> impl FnOnce(ShapeError) -> OpError + '_ {
    |error| OpError::weight(weight, error)
}

impl Ops for CpuOps {
    type Buffer = CpuBuffer;
    type Vector = Vec<f32>;
    type Linear = PackedMatrix;
    type Embedding = CpuEmbedding;
    type Rope = RopeTable;
    type KvCache = Vec<KvLayer>;

    fn device_name(&self) -> String {
        format!(
            "cpu ({} threads, {})",
            self.scratch.pool().threads(),
            kernels::instruction_set()
        )
    }

    fn dtype_name(&self, weights: GgmlType) -> String {
        match self.dtype {
            Dtype::Auto if weights.is_quantized() => format!("{weights} weights, int8 activations"),
            Dtype::Auto => format!("{weights} weights, f32 activations"),
            Dtype::Float32 => format!("{weights} weights in f32, f32 activations"),
        }
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn load_vector(&mut self, weight: &WeightTensor) -> Result<Vec<f32>, OpError> {
        let mut values = vec![0.0; weight.columns() * weight.rows()];
        kernels::dequantize(weight.dtype(), weight.bytes(), &mut values)
            .map_err(shape_error(weight))?;
        self.weight_bytes += size_of_val(&values[..]) as u64;
        Ok(values)
    }

    fn load_linear(
        &mut self,
        _role: LinearRole,
        parts: &[WeightTensor],
    ) -> Result<PackedMatrix, OpError> {
        let pack = match self.dtype {
            Dtype::Auto => PackedMatrix::new,
            Dtype::Float32 => PackedMatrix::exact,
        };
        let mut packed = Vec::with_capacity(parts.len());
        for part in parts {
            let matrix = pack(part.dtype(), part.rows(), part.columns(), part.bytes());
            packed.push(matrix.map_err(shape_error(part))?);
        }
        let matrix = PackedMatrix::stack(packed).map_err(|error| match parts {
            [part, ..] => OpError::weight(part, error),
            [] => OpError::Device("a linear layer without a matrix"),
        })?;
        self.weight_bytes += matrix.bytes() as u64;
        Ok(matrix)
    }

    fn load_embedding(&mut self, weight: &WeightTensor) -> Result<CpuEmbedding, OpError> {
        // Stays in the mapped file: only rows that are looked up take memory.
        Ok(CpuEmbedding {
            weight: weight.clone(),
        })
    }

    fn load_rope(&mut self, table: RopeTable) -> Result<RopeTable, OpError> {
        Ok(table)
    }

    fn new_buffer(&mut self, rows: usize, columns: usize) -> Result<CpuBuffer, OpError> {
        Ok(CpuBuffer {
            columns,
            values: vec![0.0; rows * columns],
        })
    }

    fn kv_cache_bytes(&self, shape: KvCacheShape) -> u64 {
        (shape.len() * self.kv_dtype().bytes()) as u64
    }

    fn new_kv_cache(&mut self, shape: KvCacheShape) -> Result<Vec<KvLayer>, OpError> {
        if !shape.block_size.is_multiple_of(8) || !shape.head_dim.is_multiple_of(8) {
            return Err(OpError::Device(
                "block size and head size must be multiples of 8",
            ));
        }
        let layer = KvShape {
            num_blocks: shape.num_blocks,
            block_size: shape.block_size,
            num_kv_heads: shape.num_kv_heads,
            head_dim: shape.head_dim,
        };
        Ok((0..shape.num_layers)
            .map(|_| KvLayer::new(layer, self.kv_dtype()))
            .collect())
    }

    fn embed(
        &mut self,
        table: &CpuEmbedding,
        token_ids: &[u32],
        out: &mut CpuBuffer,
    ) -> Result<(), OpError> {
        let CpuEmbedding { weight } = table;
        let rows = out.rows_mut(token_ids.len());
        for (&token_id, row) in token_ids
            .iter()
            .zip(rows.chunks_exact_mut(weight.columns()))
        {
            kernels::dequantize_row(weight.dtype(), weight.bytes(), token_id as usize, row)
                .map_err(shape_error(weight))?;
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        rows: usize,
        x: &CpuBuffer,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut CpuBuffer,
    ) -> Result<(), OpError> {
        kernels::rms_norm(
            x.rows(rows),
            weight,
            eps,
            out.rows_mut(rows),
            self.scratch.pool(),
        );
        Ok(())
    }

    fn add_rms_norm(
        &mut self,
        rows: usize,
        residual: &mut CpuBuffer,
        x: &CpuBuffer,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut CpuBuffer,
    ) -> Result<(), OpError> {
        kernels::add_rms_norm(
            residual.rows_mut(rows),
            x.rows(rows),
            weight,
            eps,
            out.rows_mut(rows),
            self.scratch.pool(),
        );
        Ok(())
    }

    fn linear(
        &mut self,
        weight: &PackedMatrix,
        rows: usize,
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), OpError> {
        weight.matmul(x.rows(rows), rows, out.rows_mut(rows), &mut self.scratch);
        Ok(())
    }

    fn rope_and_write_kv(
        &mut self,
        batch: &ForwardBatch,
        heads: AttentionHeads,
        rope: &RopeTable,
        layer: usize,
        qkv: &mut CpuBuffer,
        kv_cache: &mut Vec<KvLayer>,
    ) -> Result<(), OpError> {
        let angles = RopeAngles {
            half_dim: rope.half_dim(),
            cos: rope.cos(),
            sin: rope.sin(),
        };
        let row_len = heads.qkv_size();
        let x = qkv.rows_mut(batch.rows());
        let pool = self.scratch.pool();
        // Query heads come first, key heads right behind them.
        let rotated = heads.num_heads + heads.num_kv_heads;
        kernels::rope(
            x,
            row_len,
            rotated,
            heads.head_dim,
            &batch.positions,
            angles,
            pool,
        );
        kv_cache[layer].write(x, row_len, heads.q_size(), &batch.slots, pool);
        Ok(())
    }

    fn paged_attention(
        &mut self,
        batch: &ForwardBatch,
        heads: AttentionHeads,
        layer: usize,
        qkv: &CpuBuffer,
        kv_cache: &Vec<KvLayer>,
        out: &mut CpuBuffer,
    ) -> Result<(), OpError> {
        let queries = Queries {
            x: qkv.rows(batch.rows()),
            row_len: heads.qkv_size(),
            num_heads: heads.num_heads,
            scale: 1.0 / (heads.head_dim as f32).sqrt(),
        };
        let spans: Vec<AttentionSpan<'_>> = batch
            .spans
            .iter()
            .map(|span| AttentionSpan {
                rows: span.rows.clone(),
                first_position: batch.positions[span.rows.start] as usize,
                block_table: batch.block_table(span),
            })
            .collect();
        kernels::paged_attention(
            queries,
            &spans,
            &kv_cache[layer],
            out.rows_mut(batch.rows()),
            &mut self.scratch,
        );
        Ok(())
    }

    fn silu_mul(
        &mut self,
        rows: usize,
        gate_up: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), OpError> {
        let width = out.columns;
        kernels::silu_mul(
            gate_up.rows(rows),
            width,
            out.rows_mut(rows),
            self.scratch.pool(),
        );
        Ok(())
    }

    fn gather_rows(
        &mut self,
        x: &CpuBuffer,
        rows: &[usize],
        out: &mut CpuBuffer,
    ) -> Result<(), OpError> {
        let columns = x.columns;
        let to = out.rows_mut(rows.len()).chunks_exact_mut(columns);
        for (&row, to) in rows.iter().zip(to) {
            to.copy_from_slice(&x.values[row * columns..(row + 1) * columns]);
        }
        Ok(())
    }

    fn read<'a>(&mut self, x: &'a mut CpuBuffer, rows: usize) -> Result<&'a [f32], OpError> {
        Ok(x.rows(rows))
    }
}
