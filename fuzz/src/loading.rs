//! A model's whole way from files to weights that a forward pass could use.

use nano_ipc::config::Dtype;
use nano_model::ModelSource;
use nano_worker::backend::CpuOps;
use nano_worker::error::LoadError;
use nano_worker::kernels::Pool;
use nano_worker::models::{self, ModelLoader};
use nano_worker::weights::Weights;
use std::path::Path;
use std::sync::Arc;

/// Loads the model as the launcher and the worker do. An error must be one line
/// that begins with the file it is about.
pub fn load(path: &Path) {
    if let Err(error) = try_load(path) {
        let line = error.to_string();
        let names_a_file = line.starts_with(&*path.to_string_lossy());
        assert!(names_a_file && !line.contains('\n'), "{line:?}");
    }
}

fn try_load(path: &Path) -> Result<(), LoadError> {
    let source = ModelSource::open(path)?;
    let config = source.validate()?;
    let weights = Weights::open(&source)?;
    let pool = Pool::new(1).expect("the calling thread is enough");
    models::load(ModelLoader {
        config: &config,
        weights: &weights,
        ops: &mut CpuOps::new(Dtype::Auto, Arc::new(pool)),
        max_rows: 1,
        max_positions: config.max_position_embeddings.min(64),
        progress: &mut |_, _| Ok(()),
    })?;
    Ok(())
}
