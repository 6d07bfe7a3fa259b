//! Models, written once against [`Ops`], and the registry of them.
//!
//! A new model is one file here, one row in [`load`], and one golden test.

mod llama;

use crate::error::LoadError;
use crate::forward_batch::ForwardBatch;
use crate::kv_cache::KvCacheShape;
use crate::ops::{OpError, Ops};
use crate::weights::Weights;
use nano_model::{Architecture, ModelConfig};

/// Turns rows of token ids into logits. Keeps weights and scratch buffers, but
/// no state of a sequence: keys and values live in the caller's cache.
pub trait Model<B: Ops> {
    /// The cache that [`forward`](Self::forward) needs.
    fn kv_cache_shape(&self, num_blocks: usize, block_size: usize) -> KvCacheShape;

    /// Computes the final hidden state of every row, which stays in the model
    /// until the next call. The batch has at most as many rows as the model was
    /// loaded for, its token ids are below the vocabulary's size, and its
    /// positions below the context's end.
    fn forward(
        &mut self,
        ops: &mut B,
        batch: &ForwardBatch,
        kv_cache: &mut B::KvCache,
    ) -> Result<(), OpError>;

    /// Logits `[rows.len(), vocabulary]` of these rows of the last batch.
    fn logits(
        &mut self,
        ops: &mut B,
        rows: &[usize],
        logits: &mut B::Buffer,
    ) -> Result<(), OpError>;
}

/// What a model is loaded with.
pub struct ModelLoader<'a, B> {
    /// Dimensions.
    pub config: &'a ModelConfig,
    /// Files.
    pub weights: &'a Weights,
    /// Backend.
    pub ops: &'a mut B,
    /// Rows of a batch at most.
    pub max_rows: usize,
    /// Positions of a sequence at most.
    pub max_positions: usize,
    /// Told after each layer how many of how many are loaded; an error ends the load.
    pub progress: &'a mut dyn FnMut(usize, usize) -> Result<(), LoadError>,
}

/// Loads the model that the configuration names.
///
/// # Errors
/// When a weight is missing or does not fit, or the device has no room.
pub fn load<B: Ops>(loader: ModelLoader<'_, B>) -> Result<Box<dyn Model<B>>, LoadError> {
    match loader.config.architecture {
        Architecture::LlamaForCausalLM => Ok(Box::new(llama::Llama::load(loader)?)),
    }
}
