//! [`Simd`] in plain Rust: the fallback, and the oracle of the others.

use super::Simd;
use half::f16;
use std::array::from_fn;

/// Plain Rust, on every processor. Its operations are calls unless the compiler
/// finds inlining worth it: whole kernels of unrolled loops would take minutes to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

type F = [f32; 8];

#[inline]
fn zip(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type F = F;
    type I32 = [i32; 8];
    type I16 = [i16; 16];
    type B = [u8; 32];

    #[inline]
    fn splat(self, x: f32) -> F {
        [x; 8]
    }
    #[inline]
    fn load(self, x: &[f32; 8]) -> F {
        *x
    }
    #[inline]
    fn load_f16(self, x: &[f16; 8]) -> F {
        x.map(f16::to_f32)
    }
    #[inline]
    fn load_bf16(self, x: &[u16; 8]) -> F {
        x.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline]
    fn store(self, x: F, to: &mut [f32; 8]) {
        *to = x;
    }
    #[inline]
    fn to_f16(self, x: F) -> [f16; 8] {
        x.map(f16::from_f32)
    }
    #[inline]
    fn add(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline]
    fn sub(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline]
    fn mul(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline]
    fn div(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    #[inline]
    fn mul_add(self, a: F, b: F, c: F) -> F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline]
    fn max(self, a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline]
    fn min(self, a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline]
    fn round(self, x: F) -> F {
        x.map(f32::round_ties_even)
    }
    #[inline]
    fn exp2_integral(self, n: F) -> F {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline]
    fn zero_below(self, x: F, limit: F, y: F) -> F {
        from_fn(|i| if x[i] < limit[i] { 0.0 } else { y[i] })
    }
    #[inline]
    fn sum(self, x: F) -> f32 {
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }
    #[inline]
    fn max_lane(self, x: F) -> f32 {
        x.into_iter()
            .reduce(|a, b| if a > b { a } else { b })
            .unwrap_or(f32::NEG_INFINITY)
    }

    #[inline]
    fn abs_bits(self, x: F) -> [i32; 8] {
        x.map(|x| (x.to_bits() & 0x7fff_ffff) as i32)
    }
    #[inline]
    fn max_i32(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        from_fn(|i| a[i].max(b[i]))
    }
    #[inline]
    fn max_lane_i32(self, x: [i32; 8]) -> i32 {
        x.into_iter().fold(i32::MIN, i32::max)
    }
    #[inline]
    fn add_i32(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline]
    fn zero_i32(self) -> [i32; 8] {
        [0; 8]
    }
    #[inline]
    fn to_f32(self, x: [i32; 8]) -> F {
        x.map(|x| x as f32)
    }

    #[inline]
    fn load_bytes(self, x: &[u8; 32]) -> [u8; 32] {
        *x
    }
    #[inline]
    fn low_nibbles(self, x: [u8; 32]) -> [u8; 32] {
        x.map(|x| x & 15)
    }
    #[inline]
    fn high_nibbles(self, x: [u8; 32]) -> [u8; 32] {
        x.map(|x| x >> 4)
    }
    #[inline]
    fn splat4(self, x: &[i8; 4]) -> [u8; 32] {
        from_fn(|i| x[i % 4] as u8)
    }
    #[inline]
    fn abs_bytes(self, x: [u8; 32]) -> [u8; 32] {
        x.map(|x| (x as i8).unsigned_abs())
    }
    #[inline]
    fn apply_sign(self, x: [u8; 32], by: [u8; 32]) -> [u8; 32] {
        from_fn(|i| match (by[i] as i8).signum() {
            0 => 0,
            1 => x[i],
            _ => x[i].wrapping_neg(),
        })
    }
    #[inline]
    fn dot_pairs(self, u: [u8; 32], s: [u8; 32]) -> [i16; 16] {
        let product = |i: usize| i32::from(u[i]) * i32::from(s[i] as i8);
        from_fn(|i| (product(2 * i) + product(2 * i + 1)) as i16)
    }
    #[inline]
    fn zero_i16(self) -> [i16; 16] {
        [0; 16]
    }
    #[inline]
    fn add_i16(self, a: [i16; 16], b: [i16; 16]) -> [i16; 16] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline]
    fn widen_pairs(self, x: [i16; 16]) -> [i32; 8] {
        from_fn(|i| i32::from(x[2 * i]) + i32::from(x[2 * i + 1]))
    }
    #[inline]
    fn to_bytes(self, x: [F; 4]) -> [i8; 32] {
        from_fn(|i| x[i / 8][i % 8].round_ties_even() as i8)
    }
}
