//! The model's dimensions and kind, read once and validated.

mod gguf;
mod hf;

use crate::error::ModelError;
use crate::rope::Rope;

/// A supported architecture, by the name of its Hugging Face class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 2, 3 and what is built like them (SmolLM2 among others).
    LlamaForCausalLM,
}

impl Architecture {
    /// Every supported architecture.
    pub const ALL: [Architecture; 1] = [Architecture::LlamaForCausalLM];

    /// Name of its class in `config.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::LlamaForCausalLM => "LlamaForCausalLM",
        }
    }

    /// `general.architecture` of a GGUF file, and the prefix of its keys.
    pub const fn gguf_name(self) -> &'static str {
        match self {
            Architecture::LlamaForCausalLM => "llama",
        }
    }
}

/// How a model's files store its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightDtype {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// Upper half of an IEEE single.
    BF16,
    /// A GGUF file: each tensor says its own type.
    Gguf,
}

/// Dimensions and kind of a model.
///
/// Holds, whatever file it came from: no dimension is 0,
/// `num_attention_heads` is a multiple of `num_key_value_heads`, `head_dim` is a
/// multiple of 8, `rms_norm_eps` and the rope's numbers are
/// positive and finite.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which model code runs it.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Transformer blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads, each shared by a group of query heads.
    pub num_key_value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub intermediate_size: usize,
    /// Rows of the embedding; token ids are below it.
    pub vocab_size: usize,
    /// Added to the mean square in RMS norms.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Positions that the model was made for.
    pub max_position_embeddings: usize,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// How the files store weights.
    pub weight_dtype: WeightDtype,
}

/// Far above every real model, and low enough that products of two dimensions
/// cannot overflow.
const MAX_DIMENSION: usize = 1 << 28;

/// As above, for what is not bounded by the size of any tensor: tables of
/// rotary angles are made for as many positions.
const MAX_POSITIONS: usize = 1 << 24;

/// Kernels take a head's elements eight at a time.
const HEAD_DIM_MULTIPLE: usize = 8;

impl ModelConfig {
    /// Query heads that share one key and value head.
    pub fn group_size(&self) -> usize {
        self.num_attention_heads / self.num_key_value_heads
    }

    /// What one file's reader cannot see alone. `error(field, reason)` names
    /// the field in the words of that file, given its name in this struct.
    fn validated(self, error: impl Fn(&str, String) -> ModelError) -> Result<Self, ModelError> {
        for (name, value, max) in [
            ("hidden_size", self.hidden_size, MAX_DIMENSION),
            ("num_hidden_layers", self.num_hidden_layers, MAX_DIMENSION),
            (
                "num_attention_heads",
                self.num_attention_heads,
                MAX_DIMENSION,
            ),
            (
                "num_key_value_heads",
                self.num_key_value_heads,
                MAX_DIMENSION,
            ),
            ("head_dim", self.head_dim, MAX_DIMENSION),
            ("intermediate_size", self.intermediate_size, MAX_DIMENSION),
            ("vocab_size", self.vocab_size, MAX_DIMENSION),
            (
                "max_position_embeddings",
                self.max_position_embeddings,
                MAX_POSITIONS,
            ),
        ] {
            if !(1..=max).contains(&value) {
                return Err(error(name, format!("{value} is not in 1..={max}")));
            }
        }
        if !self
            .num_attention_heads
            .is_multiple_of(self.num_key_value_heads)
        {
            let reason = format!(
                "{} heads cannot share {} key/value heads evenly",
                self.num_attention_heads, self.num_key_value_heads
            );
            return Err(error("num_key_value_heads", reason));
        }
        if !self.head_dim.is_multiple_of(HEAD_DIM_MULTIPLE) {
            let reason = format!("{} is not a multiple of {HEAD_DIM_MULTIPLE}", self.head_dim);
            return Err(error("head_dim", reason));
        }
        for (name, value) in [
            ("rms_norm_eps", self.rms_norm_eps),
            ("rope_theta", self.rope.theta),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(error(name, format!("{value} is not a positive number")));
            }
        }
        Ok(self)
    }
}
