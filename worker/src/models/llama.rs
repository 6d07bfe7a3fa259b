//! Llama: RMS norms, rotary grouped-query attention, and a gated SiLU MLP.

use super::{Model, ModelLoader};
use crate::error::LoadError;
use crate::forward_batch::ForwardBatch;
use crate::kv_cache::KvCacheShape;
use crate::ops::{AttentionHeads, LinearRole, OpError, Ops, RopeTable, Workspace};
use crate::weights::{WeightFormat, WeightRole, WeightTensor};
use nano_model::ModelError;
use nano_trace::Event;

/// One layer's weights, by role.
struct Layer<B: Ops> {
    attention_norm: B::Vector,
    qkv: B::Linear,
    o: B::Linear,
    mlp_norm: B::Vector,
    gate_up: B::Linear,
    down: B::Linear,
}

/// `LlamaForCausalLM`.
pub(super) struct Llama<B: Ops> {
    heads: AttentionHeads,
    eps: f32,
    embedding: B::Embedding,
    layers: Vec<Layer<B>>,
    final_norm: B::Vector,
    lm_head: B::Linear,
    rope: B::Rope,
    workspace: Workspace<B>,
}

impl<B: Ops> Llama<B> {
    pub(super) fn load(loader: ModelLoader<'_, B>) -> Result<Llama<B>, LoadError> {
        let ModelLoader {
            config,
            weights,
            ops,
            max_rows,
            max_positions,
            progress,
        } = loader;
        let hidden = config.hidden_size;
        let intermediate = config.intermediate_size;
        let heads = AttentionHeads {
            num_heads: config.num_attention_heads,
            num_kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        };
        let (q_size, kv_size) = (heads.q_size(), heads.kv_size());

        // GGUF files keep the rows of rotary heads in another order.
        let rotary = |role, num_heads: usize, size| -> Result<WeightTensor, ModelError> {
            let weight = weights.get(role, &[size, hidden])?;
            Ok(match weights.format() {
                WeightFormat::Safetensors => weight,
                WeightFormat::Gguf => weight.with_half_split_heads(num_heads),
            })
        };

        let vocabulary = [config.vocab_size, hidden];
        let embedding = weights.get(WeightRole::TokenEmbedding, &vocabulary)?;
        let lm_head = if config.tie_word_embeddings {
            embedding.clone()
        } else {
            weights.get(WeightRole::LmHead, &vocabulary)?
        };
        let total = config.num_hidden_layers + 1;
        let embedding = ops.load_embedding(&embedding)?;
        let lm_head = ops.load_linear(LinearRole::LmHead, &[lm_head])?;
        progress(1, total)?;

        // Grows as tensors are found: the number is only what a file claims.
        let mut layers = Vec::new();
        for layer in 0..config.num_hidden_layers {
            let qkv = [
                rotary(WeightRole::Q(layer), heads.num_heads, q_size)?,
                rotary(WeightRole::K(layer), heads.num_kv_heads, kv_size)?,
                weights.get(WeightRole::V(layer), &[kv_size, hidden])?,
            ];
            let o = [weights.get(WeightRole::O(layer), &[hidden, q_size])?];
            let gate_up = [
                weights.get(WeightRole::Gate(layer), &[intermediate, hidden])?,
                weights.get(WeightRole::Up(layer), &[intermediate, hidden])?,
            ];
            let down = [weights.get(WeightRole::Down(layer), &[hidden, intermediate])?];
            layers.push(Layer {
                attention_norm: ops
                    .load_vector(&weights.get(WeightRole::AttentionNorm(layer), &[hidden])?)?,
                qkv: ops.load_linear(LinearRole::Qkv, &qkv)?,
                o: ops.load_linear(LinearRole::O, &o)?,
                mlp_norm: ops.load_vector(&weights.get(WeightRole::MlpNorm(layer), &[hidden])?)?,
                gate_up: ops.load_linear(LinearRole::GateUp, &gate_up)?,
                down: ops.load_linear(LinearRole::Down, &down)?,
            });
            progress(layer + 2, total)?;
        }
        let inverse_frequencies = config.rope.inverse_frequencies(config.head_dim);
        Ok(Llama {
            heads,
            eps: config.rms_norm_eps as f32,
            embedding,
            layers,
            final_norm: ops.load_vector(&weights.get(WeightRole::FinalNorm, &[hidden])?)?,
            lm_head,
            rope: ops.load_rope(RopeTable::new(&inverse_frequencies, max_positions))?,
            workspace: Workspace::new(ops, max_rows, hidden, intermediate, heads)?,
        })
    }
}

impl<B: Ops> Model<B> for Llama<B> {
    fn kv_cache_shape(&self, num_blocks: usize, block_size: usize) -> KvCacheShape {
        KvCacheShape {
            num_layers: self.layers.len(),
            num_blocks,
            block_size,
            num_kv_heads: self.heads.num_kv_heads,
            head_dim: self.heads.head_dim,
        }
    }

    fn forward(
        &mut self,
        ops: &mut B,
        batch: &ForwardBatch,
        kv_cache: &mut B::KvCache,
    ) -> Result<(), OpError> {
        let Llama { heads, eps, .. } = *self;
        let rows = batch.rows();
        let Workspace {
            residual,
            normed,
            delta,
            qkv,
            attention,
            gate_up,
            activated,
        } = &mut self.workspace;
        // Each half of a layer ends by handing its delta to the norm that opens
        // the next, so that addition and norm are one operation.
        let next_norms = self.layers[1..].iter().map(|layer| &layer.attention_norm);
        let next_norms = next_norms.chain([&self.final_norm]);

        ops.embed(&self.embedding, &batch.token_ids, residual)?;
        if let Some(first) = self.layers.first() {
            ops.rms_norm(rows, residual, &first.attention_norm, eps, normed)?;
        }
        for (index, (layer, next_norm)) in self.layers.iter().zip(next_norms).enumerate() {
            let _slice = nano_trace::slice(Event::Layer, [index as u64]);
            ops.linear(&layer.qkv, rows, normed, qkv)?;
            ops.rope_and_write_kv(batch, heads, &self.rope, index, qkv, kv_cache)?;
            ops.paged_attention(batch, heads, index, qkv, kv_cache, attention)?;
            ops.linear(&layer.o, rows, attention, delta)?;
            ops.add_rms_norm(rows, residual, delta, &layer.mlp_norm, eps, normed)?;
            ops.linear(&layer.gate_up, rows, normed, gate_up)?;
            ops.silu_mul(rows, gate_up, activated)?;
            ops.linear(&layer.down, rows, activated, delta)?;
            ops.add_rms_norm(rows, residual, delta, next_norm, eps, normed)?;
        }
        Ok(())
    }

    fn logits(
        &mut self,
        ops: &mut B,
        rows: &[usize],
        logits: &mut B::Buffer,
    ) -> Result<(), OpError> {
        // The delta is free between batches.
        let Workspace { normed, delta, .. } = &mut self.workspace;
        ops.gather_rows(normed, rows, delta)?;
        ops.linear(&self.lm_head, rows.len(), delta, logits)
    }
}
