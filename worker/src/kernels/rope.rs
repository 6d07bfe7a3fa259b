//! Rotary positions.

use super::disjoint::Disjoint;
use super::pool::Pool;
use super::simd::{Kernel, LANES, Simd, dispatch};

/// Rows of one task at least.
const GRAIN: usize = 16;

/// Cosines and sines: `[positions, half_dim]` each.
#[derive(Clone, Copy, Debug)]
pub struct RopeAngles<'a> {
    /// Pairs of a head that are rotated.
    pub half_dim: usize,
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
}

/// Rotates the first `num_heads` heads of `head_dim` elements of each row of
/// `x` = `[positions.len(), row_len]` in place. Pairs are the elements `i` and
/// `i + half_dim` of a head; elements from `2 * half_dim` on stay.
///
/// # Panics
/// When a position is not in the table, or a row does not hold the heads.
pub fn rope(
    x: &mut [f32],
    row_len: usize,
    num_heads: usize,
    head_dim: usize,
    positions: &[u32],
    angles: RopeAngles<'_>,
    pool: &Pool,
) {
    assert_eq!(x.len(), positions.len() * row_len, "rows of x");
    let half = angles.half_dim;
    assert!(2 * half <= head_dim, "rotated part of a head");
    let x = Disjoint::new(x);
    pool.run_ranges(positions.len(), GRAIN, |range| {
        for row in range {
            // SAFETY: rows do not overlap.
            let heads = unsafe { x.part(row * row_len..(row + 1) * row_len) };
            let at = positions[row] as usize * half;
            dispatch(RopeRow {
                heads: &mut heads[..num_heads * head_dim],
                head_dim,
                cos: &angles.cos[at..at + half],
                sin: &angles.sin[at..at + half],
            });
        }
    });
}

struct RopeRow<'a> {
    heads: &'a mut [f32],
    head_dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for RopeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let half = self.cos.len();
        let (cos, cos_rest) = self.cos.as_chunks::<LANES>();
        let (sin, sin_rest) = self.sin.as_chunks::<LANES>();
        for head in self.heads.chunks_exact_mut(self.head_dim) {
            let (first, second) = head[..2 * half].split_at_mut(half);
            let (first, first_rest) = first.as_chunks_mut::<LANES>();
            let (second, second_rest) = second.as_chunks_mut::<LANES>();
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                let (x, y) = (simd.load(a), simd.load(b));
                let (cos, sin) = (simd.load(cos), simd.load(sin));
                simd.store(simd.sub(simd.mul(x, cos), simd.mul(y, sin)), a);
                simd.store(simd.add(simd.mul(y, cos), simd.mul(x, sin)), b);
            }
            let rest = first_rest.iter_mut().zip(second_rest);
            for (((a, b), cos), sin) in rest.zip(cos_rest).zip(sin_rest) {
                let (x, y) = (*a, *b);
                *a = x * cos - y * sin;
                *b = y * cos + x * sin;
            }
        }
    }
}
