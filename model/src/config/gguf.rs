//! [`ModelConfig`] from GGUF metadata.

use super::{Architecture, ModelConfig, WeightDtype};
use crate::error::ModelError;
use crate::gguf::{GgmlType, GgufFile, Value};
use crate::rope::{Rope, RopeScaling};

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";
const ROPE_DIVISORS: &str = "rope_freqs.weight";

impl ModelConfig {
    pub(crate) fn from_gguf(gguf: &GgufFile) -> Result<Self, ModelError> {
        let architecture = architecture(gguf)?;
        let prefix = architecture.gguf_name();
        let key = |name: &str| format!("{prefix}.{name}");
        let optional = |name: &str| {
            let value = gguf.u32(&key(name))?;
            Ok::<_, ModelError>(value.map(|value| value as usize))
        };
        let required = |name: &str| optional(name)?.ok_or_else(|| gguf.error(key(name), "missing"));

        let hidden_size = required("embedding_length")?;
        let num_attention_heads = required("attention.head_count")?;
        let head_dim = match optional("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => hidden_size.checked_div(num_attention_heads).unwrap_or(0),
        };
        for name in ["attention.value_length", "rope.dimension_count"] {
            let other = optional(name)?.filter(|&length| length != head_dim);
            if let Some(other) = other {
                let reason = format!("{other} is not supported: heads are {head_dim} wide");
                return Err(gguf.error(key(name), reason));
            }
        }
        let epsilon = key("attention.layer_norm_rms_epsilon");
        let config = Self {
            architecture,
            hidden_size,
            num_hidden_layers: required("block_count")?,
            num_attention_heads,
            num_key_value_heads: optional("attention.head_count_kv")?
                .unwrap_or(num_attention_heads),
            head_dim,
            intermediate_size: required("feed_forward_length")?,
            vocab_size: vocab_size(gguf, hidden_size)?,
            rms_norm_eps: gguf
                .f64(&epsilon)?
                .ok_or_else(|| gguf.error(&epsilon, "missing"))?,
            rope: rope(gguf, prefix, head_dim)?,
            max_position_embeddings: required("context_length")?,
            tie_word_embeddings: gguf.tensor(OUTPUT).is_none(),
            weight_dtype: WeightDtype::Gguf,
        };
        config.validated(|field, reason| gguf.error(key(gguf_field(field)), reason))
    }
}

/// Our name of a dimension in GGUF's words.
fn gguf_field(field: &str) -> &str {
    match field {
        "hidden_size" => "embedding_length",
        "num_hidden_layers" => "block_count",
        "num_attention_heads" => "attention.head_count",
        "num_key_value_heads" => "attention.head_count_kv",
        "head_dim" => "attention.key_length",
        "intermediate_size" => "feed_forward_length",
        "max_position_embeddings" => "context_length",
        "rms_norm_eps" => "attention.layer_norm_rms_epsilon",
        "rope_theta" => "rope.freq_base",
        other => other,
    }
}

fn architecture(gguf: &GgufFile) -> Result<Architecture, ModelError> {
    const KEY: &str = "general.architecture";
    let name = gguf.str(KEY)?.ok_or_else(|| gguf.error(KEY, "missing"))?;
    let known = Architecture::ALL
        .into_iter()
        .find(|architecture| architecture.gguf_name() == name);
    known.ok_or_else(|| {
        let supported = Architecture::ALL.map(Architecture::gguf_name).join(", ");
        gguf.error(
            KEY,
            format_args!("{name} is not supported (supported: {supported})"),
        )
    })
}

/// The embedding's rows are what counts; every other word on it must agree.
fn vocab_size(gguf: &GgufFile, hidden_size: usize) -> Result<usize, ModelError> {
    let tensor = format!("tensor {EMBEDDING}");
    let info = gguf
        .tensor(EMBEDDING)
        .ok_or_else(|| gguf.error(&tensor, "missing"))?;
    let &[columns, rows] = info
        .shape()
        .iter()
        .rev()
        .copied()
        .collect::<Vec<_>>()
        .as_slice()
    else {
        return Err(gguf.error(&tensor, "is no matrix"));
    };
    if columns != hidden_size {
        let reason = format!("rows of {columns}, but the hidden size is {hidden_size}");
        return Err(gguf.error(&tensor, reason));
    }
    let tokens = gguf
        .value("tokenizer.ggml.tokens")
        .and_then(Value::as_strings)
        .map_or(0, <[String]>::len);
    if tokens > rows {
        let reason = format!("{tokens} tokens, but the embedding has {rows} rows");
        return Err(gguf.error("tokenizer.ggml.tokens", reason));
    }
    Ok(rows)
}

fn rope(gguf: &GgufFile, prefix: &str, head_dim: usize) -> Result<Rope, ModelError> {
    let theta = gguf
        .f64(&format!("{prefix}.rope.freq_base"))?
        .unwrap_or(10_000.0);
    let scaling = match rope_divisors(gguf, head_dim)? {
        Some(divisors) => RopeScaling::Divisors(divisors),
        None => rope_scaling(gguf, prefix)?,
    };
    Ok(Rope { theta, scaling })
}

fn rope_scaling(gguf: &GgufFile, prefix: &str) -> Result<RopeScaling, ModelError> {
    let kind_key = format!("{prefix}.rope.scaling.type");
    let factor_key = format!("{prefix}.rope.scaling.factor");
    match gguf.str(&kind_key)? {
        None | Some("none") => Ok(RopeScaling::None),
        Some("linear") => match gguf.f64(&factor_key)? {
            Some(factor) if factor.is_finite() && factor > 0.0 => {
                Ok(RopeScaling::Linear { factor })
            }
            Some(factor) => Err(gguf.error(factor_key, format_args!("{factor} is not positive"))),
            None => Err(gguf.error(factor_key, "missing")),
        },
        Some(other) => Err(gguf.error(
            kind_key,
            format_args!("{other} is not supported (supported: none, linear)"),
        )),
    }
}

fn rope_divisors(gguf: &GgufFile, head_dim: usize) -> Result<Option<Vec<f32>>, ModelError> {
    let (Some(info), Some(data)) = (gguf.tensor(ROPE_DIVISORS), gguf.tensor_data(ROPE_DIVISORS))
    else {
        return Ok(None);
    };
    let tensor = format!("tensor {ROPE_DIVISORS}");
    if info.ggml_type != GgmlType::F32 || info.elements() != (head_dim / 2) as u64 {
        let reason = format!("must hold {} numbers of type F32", head_dim / 2);
        return Err(gguf.error(tensor, reason));
    }
    let divisors: Vec<f32> = data
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect();
    if divisors
        .iter()
        .any(|&divisor| !(divisor.is_finite() && divisor > 0.0))
    {
        return Err(gguf.error(tensor, "holds what is no positive number"));
    }
    Ok(Some(divisors))
}
