//! `nano-faulty-worker`: the worker itself, around a model with a bug. (An
//! example, because an example may use what only tests depend on.)

use nano_ipc::child;
use nano_ipc::config::WorkerConfig;
use nano_ipc::connection::Connection;
use nano_worker::WorkerError;
use nano_worker::backend::CpuOps;
use nano_worker::forward_batch::ForwardBatch;
use nano_worker::kernels::Pool;
use nano_worker::kv_cache::KvCacheShape;
use nano_worker::load::{LoadedModel, load_model};
use nano_worker::models::Model;
use nano_worker::ops::{OpError, Ops};
use nano_worker::worker::run_model;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How long a step takes: streams are still open when the bug is met.
const STEP_TIME: Duration = Duration::from_millis(10);

/// The token that the model panics at.
const BUG: u32 = 700;

/// A model that panics at a token, on whatever thread comes to its row: as a
/// bug in a kernel would.
struct Faulty {
    model: Box<dyn Model<CpuOps>>,
    pool: Arc<Pool>,
}

impl Model<CpuOps> for Faulty {
    fn kv_cache_shape(&self, num_blocks: usize, block_size: usize) -> KvCacheShape {
        self.model.kv_cache_shape(num_blocks, block_size)
    }

    fn forward(
        &mut self,
        ops: &mut CpuOps,
        batch: &ForwardBatch,
        kv_cache: &mut <CpuOps as Ops>::KvCache,
    ) -> Result<(), OpError> {
        std::thread::sleep(STEP_TIME);
        self.pool.run(batch.token_ids.len(), |row| {
            assert!(batch.token_ids[row] != BUG, "a bug at token {BUG}");
        });
        self.model.forward(ops, batch, kv_cache)
    }

    fn logits(
        &mut self,
        ops: &mut CpuOps,
        rows: &[usize],
        logits: &mut <CpuOps as Ops>::Buffer,
    ) -> Result<(), OpError> {
        self.model.logits(ops, rows, logits)
    }
}

fn main() -> ExitCode {
    child::main(
        |config: WorkerConfig, run, lifecycle| -> Result<(), WorkerError> {
            let core = Connection::connect(&config.engine_socket)?;
            run_model(&config, core, run, &lifecycle, |pool| {
                let ops = CpuOps::new(config.dtype, Arc::clone(&pool));
                let loaded = load_model(ops, &config, &lifecycle)?;
                let model = Box::new(Faulty {
                    model: loaded.model,
                    pool,
                });
                Ok(LoadedModel { model, ..loaded })
            })
        },
    )
}
