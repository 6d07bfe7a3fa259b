//! Where operations are carried out. Which backends a build has stands here and
//! nowhere else.

mod cpu;
mod cuda_stub;
mod reference;

pub use cpu::CpuOps;
pub use cuda_stub::CudaOps;
pub use reference::ReferenceOps;
