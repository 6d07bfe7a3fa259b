//! How a model's makers want it sampled and stopped.

use crate::error::ModelError;
use crate::gguf::GgufFile;
use crate::json::JsonObject;

/// How a model's makers want it sampled and stopped.
///
/// Holds: every id is below the vocabulary's size; `eos_token_ids` is sorted
/// and without repetition, and may be empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Token that opens a sequence.
    pub bos_token_id: Option<u32>,
    /// For requests that do not say.
    pub sampling: SamplingDefaults,
}

/// Sampling settings for requests that do not say; `None` where the makers do
/// not either. Each is in the range that is written at it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// `0.0..=2.0`.
    pub temperature: Option<f32>,
    /// `(0.0, 1.0]`.
    pub top_p: Option<f32>,
    /// `0` keeps all.
    pub top_k: Option<u32>,
    /// `0.0..=1.0`.
    pub min_p: Option<f32>,
    /// `(0.0, 2.0]`.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// From `generation_config.json`, where there is one, and `config.json`.
    /// End tokens of both count: repositories differ in which is complete.
    pub(crate) fn from_json(
        config: &JsonObject,
        generation_config: Option<&JsonObject>,
        vocab_size: usize,
    ) -> Result<Self, ModelError> {
        let mut ids = Ids::new(vocab_size);
        let mut bos_token_id = None;
        for json in generation_config.into_iter().chain([config]) {
            ids.extend(json, "eos_token_id")?;
            if bos_token_id.is_none() {
                let mut bos = Ids::new(vocab_size);
                bos.extend(json, "bos_token_id")?;
                bos_token_id = bos.ids.first().copied();
            }
        }
        Ok(Self {
            eos_token_ids: ids.sorted(),
            bos_token_id,
            sampling: match generation_config {
                Some(json) => SamplingDefaults::from_json(json)?,
                None => SamplingDefaults::default(),
            },
        })
    }

    /// From GGUF metadata: end of sequence, of turn, and of message.
    pub(crate) fn from_gguf(gguf: &GgufFile, vocab_size: usize) -> Result<Self, ModelError> {
        let id = |name: &str| gguf.token_id(&format!("tokenizer.ggml.{name}_token_id"), vocab_size);
        let mut ids = Ids::new(vocab_size);
        for name in ["eos", "eot", "eom"] {
            ids.ids.extend(id(name)?);
        }
        Ok(Self {
            eos_token_ids: ids.sorted(),
            bos_token_id: id("bos")?,
            sampling: SamplingDefaults::default(),
        })
    }
}

/// Collects ids that the vocabulary has. Others cannot be sampled, so they are
/// harmless, and real repositories contain them: warned about and left out.
struct Ids {
    vocab_size: usize,
    ids: Vec<u32>,
}

impl Ids {
    fn new(vocab_size: usize) -> Self {
        Self {
            vocab_size,
            ids: Vec::new(),
        }
    }

    fn extend(&mut self, json: &JsonObject, field: &str) -> Result<(), ModelError> {
        for id in json.token_ids(field)? {
            if (id as usize) < self.vocab_size {
                self.ids.push(id);
            } else {
                let size = self.vocab_size;
                let reason = format!("{id} is outside of the vocabulary of {size} and is ignored");
                log::warn!("{}", json.error(field, reason));
            }
        }
        Ok(())
    }

    fn sorted(mut self) -> Vec<u32> {
        self.ids.sort_unstable();
        self.ids.dedup();
        self.ids
    }
}

impl SamplingDefaults {
    fn from_json(json: &JsonObject) -> Result<Self, ModelError> {
        let number = |field: &str, range: &str, ok: fn(f64) -> bool| match json.f64(field)? {
            Some(value) if !ok(value) => {
                Err(json.error(field, format_args!("{value} is not in {range}")))
            }
            value => Ok(value.map(|value| value as f32)),
        };
        Ok(Self {
            temperature: number("temperature", "0..=2", |t| (0.0..=2.0).contains(&t))?,
            top_p: number("top_p", "(0, 1]", |p| p > 0.0 && p <= 1.0)?,
            // -1 is another way to say "all".
            top_k: match json.get("top_k").and_then(serde_json::Value::as_i64) {
                Some(-1) => Some(0),
                _ => json.u32("top_k")?,
            },
            min_p: number("min_p", "0..=1", |p| (0.0..=1.0).contains(&p))?,
            repetition_penalty: number("repetition_penalty", "(0, 2]", |p| p > 0.0 && p <= 2.0)?,
        })
    }
}
