//! What a model directory or a GGUF file says, without tensors.
//!
//! This layer knows file layouts: `config.json`, `generation_config.json`,
//! `tokenizer_config.json`, the safetensors index, and the header of a GGUF
//! file. It validates them once, into types that hold what they promise. It
//! must not know tensors' arithmetic, tokenization, devices, processes or HTTP.
//!
//! Reading starts at [`ModelSource::open`]. Every error is one line that names
//! the file and the field ([`ModelError`]).

pub mod config;
pub mod default_model;
pub mod error;
mod files;
pub mod generation_config;
pub mod gguf;
mod json;
pub mod model_dir;
pub mod rope;
pub mod source;
pub mod tokenizer_config;

pub use config::{Architecture, ModelConfig, WeightDtype};
pub use default_model::{DEFAULT_MODEL_FILE, default_model_path};
pub use error::ModelError;
pub use generation_config::{GenerationConfig, SamplingDefaults};
pub use model_dir::ModelDir;
pub use rope::{Rope, RopeScaling};
pub use source::ModelSource;
pub use tokenizer_config::TokenizerConfig;
