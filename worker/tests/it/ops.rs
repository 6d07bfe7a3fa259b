//! The backends under test.

use candle_core::Device;
use nano_ipc::config::Dtype;
use nano_worker::backend::{CpuOps, ReferenceOps};
use nano_worker::kernels::Pool;
use std::sync::Arc;

/// Plain tensors in f32.
pub fn reference() -> ReferenceOps {
    ReferenceOps::new(Device::Cpu)
}

/// What serves with `--dtype float32`.
pub fn exact() -> CpuOps {
    cpu(Dtype::Float32, 2)
}

/// What serves by default.
pub fn serving() -> CpuOps {
    cpu(Dtype::Auto, 2)
}

pub fn cpu(dtype: Dtype, threads: usize) -> CpuOps {
    CpuOps::new(dtype, Arc::new(Pool::new(threads).expect("threads")))
}
