//! [`ModelConfig`] from `config.json`, as transformers 4 and 5 write it.

use super::{Architecture, ModelConfig, WeightDtype};
use crate::error::ModelError;
use crate::json::JsonObject;
use crate::rope::{Rope, RopeScaling};
use serde_json::Value;

impl ModelConfig {
    pub(crate) fn from_json(json: &JsonObject) -> Result<Self, ModelError> {
        let architecture = architecture(json)?;
        refuse_unsupported(json)?;
        let required = |field: &str| {
            json.u32(field)?
                .map(|value| value as usize)
                .ok_or_else(|| json.error(field, "missing"))
        };
        let hidden_size = required("hidden_size")?;
        let num_attention_heads = required("num_attention_heads")?;
        let num_key_value_heads = json
            .u32("num_key_value_heads")?
            .map_or(num_attention_heads, |heads| heads as usize);
        let head_dim = match json.u32("head_dim")? {
            Some(head_dim) => head_dim as usize,
            None => hidden_size.checked_div(num_attention_heads).unwrap_or(0),
        };
        let config = Self {
            architecture,
            hidden_size,
            num_hidden_layers: required("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            intermediate_size: required("intermediate_size")?,
            vocab_size: required("vocab_size")?,
            // The defaults are those of the architecture's class, where it has one.
            rms_norm_eps: json.f64("rms_norm_eps")?.unwrap_or(1e-6),
            rope: rope(json)?,
            max_position_embeddings: json
                .u32("max_position_embeddings")?
                .map_or(2048, |positions| positions as usize),
            tie_word_embeddings: json.bool("tie_word_embeddings")?.unwrap_or(false),
            weight_dtype: weight_dtype(json)?,
        };
        config.validated(|field, reason| json.error(field, reason))
    }
}

fn architecture(json: &JsonObject) -> Result<Architecture, ModelError> {
    const FIELD: &str = "architectures";
    let names = match json.get(FIELD) {
        Some(Value::Array(names)) => names.as_slice(),
        Some(_) => return Err(json.error(FIELD, "is not a list")),
        None => return Err(json.error(FIELD, "missing")),
    };
    let known = |name: &Value| {
        Architecture::ALL
            .into_iter()
            .find(|architecture| name.as_str() == Some(architecture.name()))
    };
    names.iter().find_map(known).ok_or_else(|| {
        let named: Vec<_> = names.iter().filter_map(Value::as_str).collect();
        let supported = Architecture::ALL.map(Architecture::name).join(", ");
        json.error(
            FIELD,
            format_args!("{named:?} is not supported (supported: {supported})"),
        )
    })
}

/// What a Llama configuration may ask for that the model code does not do.
fn refuse_unsupported(json: &JsonObject) -> Result<(), ModelError> {
    for field in ["attention_bias", "mlp_bias"] {
        if json.bool(field)? == Some(true) {
            return Err(json.error(field, "true is not supported"));
        }
    }
    if let Some(other) = json.str("hidden_act")?.filter(|&name| name != "silu") {
        return Err(json.error(
            "hidden_act",
            format_args!("{other} is not supported (supported: silu)"),
        ));
    }
    if json.get("quantization_config").is_some() {
        return Err(json.error(
            "quantization_config",
            "quantized safetensors are not supported; use a GGUF file of the model",
        ));
    }
    Ok(())
}

/// transformers 4 writes `rope_theta` and `rope_scaling`, 5 puts both into
/// `rope_parameters`. The kind is `rope_type`, or `type` in old files.
fn rope(json: &JsonObject) -> Result<Rope, ModelError> {
    let parameters = match json.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => json.object("rope_scaling")?,
    };
    let Some(parameters) = parameters else {
        let theta = json.f64("rope_theta")?.unwrap_or(10_000.0);
        let scaling = RopeScaling::None;
        return Ok(Rope { theta, scaling });
    };
    let theta = match parameters.f64("rope_theta")? {
        Some(theta) => theta,
        None => json.f64("rope_theta")?.unwrap_or(10_000.0),
    };
    for object in [json, &parameters] {
        let partial = object.f64("partial_rotary_factor")?;
        if partial.is_some_and(|factor| factor != 1.0) {
            return Err(object.error("partial_rotary_factor", "only 1.0 is supported"));
        }
    }
    let kind = match parameters.str("rope_type")? {
        Some(kind) => Some(kind),
        None => parameters.str("type")?,
    };
    let positive = |field: &str| match parameters.f64(field)? {
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        Some(value) => Err(parameters.error(field, format_args!("{value} is not positive"))),
        None => Err(parameters.error(field, "missing")),
    };
    let scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear {
            factor: positive("factor")?,
        },
        Some("llama3") => {
            let low_freq_factor = positive("low_freq_factor")?;
            let high_freq_factor = positive("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                return Err(parameters.error("high_freq_factor", "must be above low_freq_factor"));
            }
            const ORIGINAL: &str = "original_max_position_embeddings";
            RopeScaling::Llama3 {
                factor: positive("factor")?,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: parameters
                    .u32(ORIGINAL)?
                    .filter(|&positions| positions > 0)
                    .ok_or_else(|| parameters.error(ORIGINAL, "missing or 0"))?,
            }
        }
        Some(other) => {
            return Err(parameters.error(
                "rope_type",
                format_args!("{other} is not supported (supported: default, linear, llama3)"),
            ));
        }
    };
    Ok(Rope { theta, scaling })
}

fn weight_dtype(json: &JsonObject) -> Result<WeightDtype, ModelError> {
    let field = match json.get("dtype") {
        Some(_) => "dtype",
        None => "torch_dtype",
    };
    match json.str(field)? {
        None | Some("float32") => Ok(WeightDtype::F32),
        Some("float16") => Ok(WeightDtype::F16),
        Some("bfloat16") => Ok(WeightDtype::BF16),
        Some(other) => Err(json.error(
            field,
            format_args!("{other} is not supported (supported: float32, float16, bfloat16)"),
        )),
    }
}
