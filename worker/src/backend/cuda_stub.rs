//! The place of a CUDA backend in builds that have none.

use crate::forward_batch::ForwardBatch;
use crate::kv_cache::KvCacheShape;
use crate::ops::{AttentionHeads, LinearRole, OpError, Ops, RopeTable};
use crate::weights::WeightTensor;
use nano_model::gguf::GgmlType;
use std::convert::Infallible;

/// A CUDA device. This build cannot make one.
#[derive(Debug)]
pub enum CudaOps {}

impl CudaOps {
    /// The first CUDA device.
    ///
    /// # Errors
    /// Always, in this build.
    pub fn new() -> Result<CudaOps, OpError> {
        Err(OpError::Device(
            "this build computes on the host's processors only; start it with --device cpu",
        ))
    }
}

/// Every operation of a backend that cannot exist.
macro_rules! unreachable_ops {
    ($(fn $name:ident($($arg:ty),*) -> $out:ty;)*) => {
        $(fn $name(&mut self, $(_: $arg),*) -> $out { match *self {} })*
    };
}

impl Ops for CudaOps {
    type Buffer = Infallible;
    type Vector = Infallible;
    type Linear = Infallible;
    type Embedding = Infallible;
    type Rope = Infallible;
    type KvCache = Infallible;

    fn device_name(&self) -> String {
        match *self {}
    }

    fn dtype_name(&self, _: GgmlType) -> String {
        match *self {}
    }

    fn kv_cache_bytes(&self, _: KvCacheShape) -> u64 {
        match *self {}
    }

    fn weight_bytes(&self) -> u64 {
        match *self {}
    }

    fn read<'a>(&mut self, _: &'a mut Infallible, _: usize) -> Result<&'a [f32], OpError> {
        match *self {}
    }

    unreachable_ops! {
        fn load_vector(&WeightTensor) -> Result<Infallible, OpError>;
        fn load_linear(LinearRole, &[WeightTensor]) -> Result<Infallible, OpError>;
        fn load_embedding(&WeightTensor) -> Result<Infallible, OpError>;
        fn load_rope(RopeTable) -> Result<Infallible, OpError>;
        fn new_buffer(usize, usize) -> Result<Infallible, OpError>;
        fn new_kv_cache(KvCacheShape) -> Result<Infallible, OpError>;
        fn embed(&Infallible, &[u32], &mut Infallible) -> Result<(), OpError>;
        fn rms_norm(usize, &Infallible, &Infallible, f32, &mut Infallible) -> Result<(), OpError>;
        fn add_rms_norm(
            usize, &mut Infallible, &Infallible, &Infallible, f32, &mut Infallible
        ) -> Result<(), OpError>;
        fn linear(&Infallible, usize, &Infallible, &mut Infallible) -> Result<(), OpError>;
        fn rope_and_write_kv(
            &ForwardBatch, AttentionHeads, &Infallible, usize, &mut Infallible, &mut Infallible
        ) -> Result<(), OpError>;
        fn paged_attention(
            &ForwardBatch, AttentionHeads, usize, &Infallible, &Infallible, &mut Infallible
        ) -> Result<(), OpError>;
        fn silu_mul(usize, &Infallible, &mut Infallible) -> Result<(), OpError>;
        fn gather_rows(&Infallible, &[usize], &mut Infallible) -> Result<(), OpError>;
    }
}
