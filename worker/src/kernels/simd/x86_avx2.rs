//! [`Simd`] with AVX2, FMA and F16C.
//!
//! The intrinsics become single instructions because every kernel is inlined
//! into [`Avx2::run`], which is compiled for these features.

use super::{Kernel, Simd};
use half::f16;
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C: only [`Avx2::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Present when the processor has all three features (asked once, then remembered).
    #[inline]
    pub(crate) fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx2(()))
    }

    /// Runs a kernel compiled for these features.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe { compiled(self, kernel) }
    }
}

/// An intrinsic, in a method of [`Avx2`].
macro_rules! avx2 {
    ($e:expr) => {{
        // SAFETY: `Avx2` proves that the processor has the features; pointers
        // come from references to as many bytes as are read or written.
        unsafe { $e }
    }};
}

impl Simd for Avx2 {
    type F = __m256;
    type I32 = __m256i;
    type I16 = __m256i;
    type B = __m256i;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        avx2!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; 8]) -> __m256 {
        avx2!(_mm256_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; 8]) -> __m256 {
        avx2!(_mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; 8]) -> __m256 {
        avx2!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()))
        )))
    }
    #[inline(always)]
    fn store(self, x: __m256, to: &mut [f32; 8]) {
        avx2!(_mm256_storeu_ps(to.as_mut_ptr(), x))
    }
    #[inline(always)]
    fn to_f16(self, x: __m256) -> [f16; 8] {
        let mut to = [f16::ZERO; 8];
        avx2!(_mm_storeu_si128(
            to.as_mut_ptr().cast(),
            _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x)
        ));
        to
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        avx2!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn round(self, x: __m256) -> __m256 {
        avx2!(_mm256_round_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(x))
    }
    #[inline(always)]
    fn exp2_integral(self, n: __m256) -> __m256 {
        avx2!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(
            _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127))
        )))
    }
    #[inline(always)]
    fn zero_below(self, x: __m256, limit: __m256, y: __m256) -> __m256 {
        avx2!(_mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, limit), y))
    }
    #[inline(always)]
    fn sum(self, x: __m256) -> f32 {
        avx2!({
            let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn max_lane(self, x: __m256) -> f32 {
        avx2!({
            let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn abs_bits(self, x: __m256) -> __m256i {
        avx2!(_mm256_and_si256(
            _mm256_castps_si256(x),
            _mm256_set1_epi32(0x7fff_ffff)
        ))
    }
    #[inline(always)]
    fn max_i32(self, a: __m256i, b: __m256i) -> __m256i {
        avx2!(_mm256_max_epi32(a, b))
    }
    #[inline(always)]
    fn max_lane_i32(self, x: __m256i) -> i32 {
        avx2!({
            let four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        })
    }
    #[inline(always)]
    fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        avx2!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn zero_i32(self) -> __m256i {
        avx2!(_mm256_setzero_si256())
    }
    #[inline(always)]
    fn to_f32(self, x: __m256i) -> __m256 {
        avx2!(_mm256_cvtepi32_ps(x))
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 32]) -> __m256i {
        avx2!(_mm256_loadu_si256(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn low_nibbles(self, x: __m256i) -> __m256i {
        avx2!(_mm256_and_si256(x, _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    fn high_nibbles(self, x: __m256i) -> __m256i {
        avx2!(_mm256_and_si256(
            _mm256_srli_epi16::<4>(x),
            _mm256_set1_epi8(15)
        ))
    }
    #[inline(always)]
    fn splat4(self, x: &[i8; 4]) -> __m256i {
        avx2!(_mm256_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8))))
    }
    #[inline(always)]
    fn abs_bytes(self, x: __m256i) -> __m256i {
        avx2!(_mm256_abs_epi8(x))
    }
    #[inline(always)]
    fn apply_sign(self, x: __m256i, by: __m256i) -> __m256i {
        avx2!(_mm256_sign_epi8(x, by))
    }
    #[inline(always)]
    fn dot_pairs(self, u: __m256i, s: __m256i) -> __m256i {
        avx2!(_mm256_maddubs_epi16(u, s))
    }
    #[inline(always)]
    fn zero_i16(self) -> __m256i {
        avx2!(_mm256_setzero_si256())
    }
    #[inline(always)]
    fn add_i16(self, a: __m256i, b: __m256i) -> __m256i {
        avx2!(_mm256_add_epi16(a, b))
    }
    #[inline(always)]
    fn widen_pairs(self, x: __m256i) -> __m256i {
        avx2!(_mm256_madd_epi16(x, _mm256_set1_epi16(1)))
    }
    #[inline(always)]
    fn to_bytes(self, x: [__m256; 4]) -> [i8; 32] {
        let mut to = [0; 32];
        avx2!({
            let [a, b, c, d] = x.map(|x| _mm256_cvtps_epi32(x));
            let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            // The packs work within 128-bit halves: a0 b0 c0 d0 a1 b1 c1 d1.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            _mm256_storeu_si256(
                to.as_mut_ptr().cast(),
                _mm256_permutevar8x32_epi32(packed, order),
            );
        });
        to
    }
}
