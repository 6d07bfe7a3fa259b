//! What a weight is for, and what the two file layouts call it.

use super::WeightFormat;

/// What a weight is for. Layers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightRole {
    /// Token embeddings, `[vocabulary, hidden]`.
    TokenEmbedding,
    /// Norm before the lm_head.
    FinalNorm,
    /// Hidden states to logits, `[vocabulary, hidden]`; absent where tied.
    LmHead,
    /// Norm before a layer's attention.
    AttentionNorm(usize),
    /// Queries.
    Q(usize),
    /// Keys.
    K(usize),
    /// Values.
    V(usize),
    /// Attention's output projection.
    O(usize),
    /// Norm before a layer's MLP.
    MlpNorm(usize),
    /// Gate projection.
    Gate(usize),
    /// Up projection.
    Up(usize),
    /// Down projection.
    Down(usize),
}

impl WeightRole {
    /// The tensor's name in files of a format.
    pub fn name(self, format: WeightFormat) -> String {
        let (hub, gguf, layer) = match self {
            WeightRole::TokenEmbedding => ("embed_tokens", "token_embd", None),
            WeightRole::FinalNorm => ("norm", "output_norm", None),
            // The one name that hub files keep outside of `model.`.
            WeightRole::LmHead if format == WeightFormat::Safetensors => {
                return "lm_head.weight".to_owned();
            }
            WeightRole::LmHead => ("lm_head", "output", None),
            WeightRole::AttentionNorm(layer) => ("input_layernorm", "attn_norm", Some(layer)),
            WeightRole::Q(layer) => ("self_attn.q_proj", "attn_q", Some(layer)),
            WeightRole::K(layer) => ("self_attn.k_proj", "attn_k", Some(layer)),
            WeightRole::V(layer) => ("self_attn.v_proj", "attn_v", Some(layer)),
            WeightRole::O(layer) => ("self_attn.o_proj", "attn_output", Some(layer)),
            WeightRole::MlpNorm(layer) => ("post_attention_layernorm", "ffn_norm", Some(layer)),
            WeightRole::Gate(layer) => ("mlp.gate_proj", "ffn_gate", Some(layer)),
            WeightRole::Up(layer) => ("mlp.up_proj", "ffn_up", Some(layer)),
            WeightRole::Down(layer) => ("mlp.down_proj", "ffn_down", Some(layer)),
        };
        match (format, layer) {
            (WeightFormat::Safetensors, None) => format!("model.{hub}.weight"),
            (WeightFormat::Safetensors, Some(layer)) => {
                format!("model.layers.{layer}.{hub}.weight")
            }
            (WeightFormat::Gguf, None) => format!("{gguf}.weight"),
            (WeightFormat::Gguf, Some(layer)) => format!("blk.{layer}.{gguf}.weight"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_files() {
        let names = |role: WeightRole| {
            [WeightFormat::Safetensors, WeightFormat::Gguf].map(|format| role.name(format))
        };
        assert_eq!(
            names(WeightRole::LmHead),
            ["lm_head.weight", "output.weight"]
        );
        assert_eq!(
            names(WeightRole::TokenEmbedding),
            ["model.embed_tokens.weight", "token_embd.weight"]
        );
        assert_eq!(
            names(WeightRole::MlpNorm(7)),
            [
                "model.layers.7.post_attention_layernorm.weight",
                "blk.7.ffn_norm.weight"
            ]
        );
    }
}
