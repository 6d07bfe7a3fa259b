//! Eight lanes of f32 (or 32 bytes) as a type: every kernel is written once
//! over [`Simd`] and compiled for each instruction set.
//!
//! [`dispatch`] is the only place that chooses. An instruction set more means
//! one more implementation of [`Simd`] and one more arm there. All
//! implementations give the same bits: an operation is either exact, or
//! rounded once (`mul_add` is fused everywhere), and reductions have one order.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_avx2;

pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_avx2::Avx2;

use half::f16;

/// Lanes of one vector of f32.
pub(crate) const LANES: usize = 8;

/// 32 bytes, aligned as a vector register wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub(crate) struct Lane(pub [u8; 32]);

/// One instruction set, by value: having one proves that the processor has it.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Eight f32.
    type F: Copy;
    /// Eight i32.
    type I32: Copy;
    /// Sixteen i16.
    type I16: Copy;
    /// 32 bytes, signed or not as the operation says.
    type B: Copy;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; 8]) -> Self::F;
    fn load_f16(self, x: &[f16; 8]) -> Self::F;
    /// Upper halves of f32.
    fn load_bf16(self, x: &[u16; 8]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; 8]);
    /// Rounds to nearest, ties to even.
    fn to_f16(self, x: Self::F) -> [f16; 8];
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: a NaN in either gives `b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: a NaN in either gives `b`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Nearest integer, ties to even.
    fn round(self, x: Self::F) -> Self::F;
    /// 2^n for integral n in -126..=127.
    fn exp2_integral(self, n: Self::F) -> Self::F;
    /// `if x < limit { 0 } else { y }`.
    fn zero_below(self, x: Self::F, limit: Self::F, y: Self::F) -> Self::F;
    /// `((x0+x4) + (x2+x6)) + ((x1+x5) + (x3+x7))`.
    fn sum(self, x: Self::F) -> f32;
    /// Largest lane, as a fold of [`max`](Self::max) in some order: with no NaN
    /// among the lanes.
    fn max_lane(self, x: Self::F) -> f32;

    /// Bit patterns without the sign: ordered as the absolute values are, NaN above all.
    fn abs_bits(self, x: Self::F) -> Self::I32;
    fn max_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    fn max_lane_i32(self, x: Self::I32) -> i32;
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    fn zero_i32(self) -> Self::I32;
    /// Exact below 2^24.
    fn to_f32(self, x: Self::I32) -> Self::F;

    fn load_bytes(self, x: &[u8; 32]) -> Self::B;
    fn low_nibbles(self, x: Self::B) -> Self::B;
    fn high_nibbles(self, x: Self::B) -> Self::B;
    /// Four bytes, eight times.
    fn splat4(self, x: &[i8; 4]) -> Self::B;
    fn abs_bytes(self, x: Self::B) -> Self::B;
    /// `x` with the sign of `by`, 0 where `by` is 0.
    fn apply_sign(self, x: Self::B, by: Self::B) -> Self::B;
    /// `u[2i] * s[2i] + u[2i+1] * s[2i+1]` of unsigned and signed bytes; the
    /// caller knows that it fits.
    fn dot_pairs(self, u: Self::B, s: Self::B) -> Self::I16;
    fn zero_i16(self) -> Self::I16;
    fn add_i16(self, a: Self::I16, b: Self::I16) -> Self::I16;
    /// `x[2i] + x[2i+1]`.
    fn widen_pairs(self, x: Self::I16) -> Self::I32;
    /// Nearest integers, ties to even; the lanes lie in -127..=127.
    fn to_bytes(self, x: [Self::F; 4]) -> [i8; 32];
}

/// A computation that is compiled for each instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`, and so must every function with `S` that it calls.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs a kernel with the best instruction set of this processor.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = Avx2::detect() {
        return simd.run(kernel);
    }
    kernel.run(Portable)
}

/// The instruction set that `dispatch` chooses, for logs.
pub fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if Avx2::detect().is_some() {
        return "avx2";
    }
    "portable"
}
