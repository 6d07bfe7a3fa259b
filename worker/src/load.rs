//! From a model's files to a model that runs.

use crate::error::LoadError;
use crate::models::{self, Model, ModelLoader};
use crate::ops::Ops;
use crate::sequence::PlanLimits;
use crate::weights::Weights;
use nano_ipc::config::WorkerConfig;
use nano_ipc::engine_info::ModelRunnerInfo;
use nano_ipc::lifecycle::Lifecycle;
use nano_ipc::to_core::WorkerLoaded;
use nano_model::{ModelConfig, ModelSource};
use nano_trace::{Event, slice};
use std::time::{Duration, Instant};

/// A model that runs, and what the core is told of it.
pub struct LoadedModel<B: Ops> {
    /// The backend that holds its weights.
    pub ops: B,
    /// The model.
    pub model: Box<dyn Model<B>>,
    /// What the core is told.
    pub loaded: WorkerLoaded,
    /// Bounds of plans; the core may lower the number of KV blocks.
    pub limits: PlanLimits,
}

/// Loads the model of the configuration.
///
/// # Errors
/// When its files are broken, a limit cannot be met, the device has no room, or
/// the process is told to end meanwhile.
pub fn load_model<B: Ops>(
    mut ops: B,
    config: &WorkerConfig,
    lifecycle: &Lifecycle,
) -> Result<LoadedModel<B>, LoadError> {
    if config.world_size != 1 {
        return Err(LoadError::Config(format!(
            "a model over {} ranks is not supported, only one rank is",
            config.world_size
        )));
    }
    let open = slice(Event::LoadOpen, []);
    let source = ModelSource::open(&config.model)?;
    let model_config = source.config()?;
    let max_model_len = max_model_len(config, &model_config)?;
    let weights = Weights::open(&source)?;
    open.end([weights.file_bytes()]);

    let load = slice(Event::LoadWeights, []);
    let mut progress = Progress::new(&config.model.display().to_string());
    let model = models::load(ModelLoader {
        config: &model_config,
        weights: &weights,
        ops: &mut ops,
        max_rows: config.max_num_batched_tokens as usize,
        max_positions: max_model_len as usize,
        progress: &mut |done, total| {
            progress.log(done, total);
            match lifecycle.shutdown() {
                None => Ok(()),
                Some(_) => Err(LoadError::Shutdown),
            }
        },
    })?;
    load.end([ops.weight_bytes()]);

    let block = model.kv_cache_shape(1, config.block_size as usize);
    let bytes_per_block = ops.kv_cache_bytes(block);
    let num_kv_blocks = num_kv_blocks(config, bytes_per_block)?;
    let info = ModelRunnerInfo {
        architecture: model_config.architecture.name().to_owned(),
        dtype: ops.dtype_name(weights.main_dtype()),
        device: ops.device_name(),
        weight_bytes: ops.weight_bytes(),
        load_ms: lifecycle.elapsed().as_millis() as u64,
    };
    log::info!(
        "loaded {} {}: {} on {}, {num_kv_blocks} KV blocks of {} tokens ({} MB), context {max_model_len}, {:.1} s",
        info.architecture,
        config.model.display(),
        info.dtype,
        info.device,
        config.block_size,
        (u64::from(num_kv_blocks) * bytes_per_block) >> 20,
        lifecycle.elapsed().as_secs_f64(),
    );
    Ok(LoadedModel {
        ops,
        model,
        limits: PlanLimits {
            vocab_size: model_config.vocab_size,
            max_model_len: max_model_len as usize,
            block_size: config.block_size as usize,
            num_kv_blocks: num_kv_blocks as usize,
            max_num_batched_tokens: config.max_num_batched_tokens as usize,
            max_num_seqs: config.max_num_seqs as usize,
        },
        loaded: WorkerLoaded {
            num_kv_blocks,
            max_model_len,
            vocab_size: model_config.vocab_size as u32,
            info,
        },
    })
}

fn max_model_len(config: &WorkerConfig, model: &ModelConfig) -> Result<u32, LoadError> {
    // Within u32: the configuration bounds every dimension.
    let own = model.max_position_embeddings as u32;
    match config.max_model_len {
        None => Ok(own),
        Some(0) => Err(LoadError::Config(
            "--max-model-len is 0, it must be at least 1".to_owned(),
        )),
        Some(asked) if asked > own => Err(LoadError::Config(format!(
            "--max-model-len is {asked}, but the model was made for {own} positions"
        ))),
        Some(asked) => Ok(asked),
    }
}

fn num_kv_blocks(config: &WorkerConfig, bytes_per_block: u64) -> Result<u32, LoadError> {
    let blocks = match config.num_kv_blocks {
        Some(blocks) => blocks,
        None => (config.kv_cache_memory_bytes / bytes_per_block.max(1))
            .try_into()
            .unwrap_or(u32::MAX),
    };
    if blocks == 0 {
        return Err(LoadError::Config(format!(
            "no KV block fits: one block of {} tokens takes {bytes_per_block} bytes, \
             --kv-cache-memory-bytes is {}",
            config.block_size, config.kv_cache_memory_bytes
        )));
    }
    let bytes = u128::from(blocks) * u128::from(bytes_per_block);
    // Slots have numbers of 32 bits.
    let has_numbers = blocks.checked_mul(config.block_size).is_some();
    if !has_numbers || !system_grants(bytes) {
        return Err(LoadError::Config(format!(
            "a KV cache of {blocks} blocks takes {} MB, which this machine does not give: \
             lower --num-kv-blocks or --kv-cache-memory-bytes",
            bytes >> 20
        )));
    }
    Ok(blocks)
}

/// Whether the system grants so many bytes. They are not touched, and given
/// back at once: without asking, the cache's own allocation would abort.
fn system_grants(bytes: u128) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| {
        let mut asked = Vec::<u8>::new();
        let granted = asked.try_reserve_exact(bytes).is_ok();
        // Or the compiler leaves both the asking and the giving back away.
        std::hint::black_box(&mut asked);
        granted
    })
}

/// Lines about a load that takes its time.
struct Progress {
    model: String,
    logged: Instant,
}

impl Progress {
    const INTERVAL: Duration = Duration::from_millis(500);

    fn new(model: &str) -> Progress {
        log::info!("loading {model}");
        Progress {
            model: model.to_owned(),
            logged: Instant::now(),
        }
    }

    fn log(&mut self, done: usize, total: usize) {
        if self.logged.elapsed() >= Self::INTERVAL {
            self.logged = Instant::now();
            log::info!("loading {}: {} %", self.model, done * 100 / total);
        }
    }
}
