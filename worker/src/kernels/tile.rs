//! The inner loops: one tile of 8 rows of weights times one block of rows.
//!
//! Every output is one chain of fused multiply-adds over the groups in order,
//! whatever the block's size is. That makes a row's result independent of the
//! rows beside it, bit for bit.

use super::activations::QuantGroup;
use super::dequantize::GROUP;
use super::packed::{Layout, LoadLane, Min};
use super::simd::{Lane, Simd};

/// A block of quantized rows, as [`super::activations::QuantRows`] lays it out.
#[derive(Clone, Copy)]
pub(crate) struct QuantBlock<'a> {
    pub quants: &'a [QuantGroup],
    pub scales: &'a [f32],
    pub sums: &'a [f32],
    pub scaled_sums: &'a [f32],
}

/// `[M rows, 8 outputs]` of a tile of quantized weights.
#[inline(always)]
pub(crate) fn quant_tile<S: Simd, L: Layout, const M: usize>(
    simd: S,
    weights: &[Lane],
    scales: &[L::Scale],
    x: QuantBlock<'_>,
) -> [S::F; M] {
    let mut sums = [simd.splat(0.0); M];
    let mut min_sums = [simd.splat(0.0); M];
    let weights = weights.chunks_exact(L::LANES);
    let scales = scales.chunks_exact(L::SCALES);
    let (quants, _) = x.quants.as_chunks::<M>();
    let (x_scales, _) = x.scales.as_chunks::<M>();
    let (x_sums, _) = x.sums.as_chunks::<M>();
    let (x_scaled, _) = x.scaled_sums.as_chunks::<M>();
    let x = quants.iter().zip(x_scales).zip(x_sums.iter().zip(x_scaled));
    for ((weights, scales), ((quants, x_scales), (x_sums, x_scaled))) in weights.zip(scales).zip(x)
    {
        let dots = if L::NIBBLES {
            [nibble_dots(simd, weights, quants), [simd.zero_i32(); M]]
        } else {
            let (first, second) = weights.split_at(4);
            [
                byte_dots(simd, first, quants, 0),
                byte_dots(simd, second, quants, 4),
            ]
        };
        let scale = scales[0].load(simd);
        for m in 0..M {
            let x_scale = simd.splat(x_scales[m]);
            if L::HALVES {
                let second = scales[1].load(simd);
                let dot = simd.to_f32(dots[0][m]);
                sums[m] = simd.mul_add(dot, simd.mul(scale, x_scale), sums[m]);
                let dot = simd.to_f32(dots[1][m]);
                sums[m] = simd.mul_add(dot, simd.mul(second, x_scale), sums[m]);
            } else {
                let dot = if L::NIBBLES {
                    dots[0][m]
                } else {
                    simd.add_i32(dots[0][m], dots[1][m])
                };
                let mut dot = simd.to_f32(dot);
                if L::MIN == Min::MinusEight {
                    // Exact: integers far below 2^24.
                    dot = simd.mul_add(simd.splat(x_sums[m]), simd.splat(-8.0), dot);
                }
                sums[m] = simd.mul_add(dot, simd.mul(scale, x_scale), sums[m]);
            }
            if L::MIN == Min::Stored {
                let min = scales[L::SCALES - 1].load(simd);
                min_sums[m] = simd.mul_add(min, simd.splat(x_scaled[m]), min_sums[m]);
            }
        }
    }
    if L::MIN == Min::Stored {
        std::array::from_fn(|m| simd.add(sums[m], min_sums[m]))
    } else {
        sums
    }
}

/// Dot products of a group of nibbles. They fit 16 bits up to the end:
/// 16 products of at most 15 * 127 a lane are 30480.
#[inline(always)]
fn nibble_dots<S: Simd, const M: usize>(
    simd: S,
    weights: &[Lane],
    x: &[QuantGroup; M],
) -> [S::I32; M] {
    let mut dots = [simd.zero_i16(); M];
    for (v, lane) in weights.iter().enumerate() {
        let lane = simd.load_bytes(&lane.0);
        let (low, high) = (simd.low_nibbles(lane), simd.high_nibbles(lane));
        for m in 0..M {
            dots[m] = simd.add_i16(dots[m], simd.dot_pairs(low, simd.splat4(&x[m][v])));
        }
        for m in 0..M {
            dots[m] = simd.add_i16(dots[m], simd.dot_pairs(high, simd.splat4(&x[m][v + 4])));
        }
    }
    dots.map(|dots| simd.widen_pairs(dots))
}

/// Dot products of half a group of signed bytes. A pair of products is at most
/// 2 * 128 * 127 = 32512, so it fits 16 bits; two pairs do not.
#[inline(always)]
fn byte_dots<S: Simd, const M: usize>(
    simd: S,
    weights: &[Lane],
    x: &[QuantGroup; M],
    first: usize,
) -> [S::I32; M] {
    let mut dots = [simd.zero_i32(); M];
    for (v, lane) in weights.iter().enumerate() {
        let lane = simd.load_bytes(&lane.0);
        let magnitude = simd.abs_bytes(lane);
        for m in 0..M {
            let x = simd.apply_sign(simd.splat4(&x[m][first + v]), lane);
            let pairs = simd.widen_pairs(simd.dot_pairs(magnitude, x));
            dots[m] = simd.add_i32(dots[m], pairs);
        }
    }
    dots
}

/// Columns whose products are summed before they join the total: keeps rounding
/// errors of long rows small.
const SPAN: usize = 4 * GROUP;

/// `[R tiles, M rows, 8 outputs]` of tiles of plain floats; `x` is
/// `[column][M]`.
#[inline(always)]
pub(crate) fn float_tiles<S: Simd, L: LoadLane, const M: usize, const R: usize>(
    simd: S,
    weights: [&[L]; R],
    x: &[f32],
) -> [[S::F; M]; R] {
    let (x, _) = x.as_chunks::<M>();
    let mut totals = [[simd.splat(0.0); M]; R];
    for (span, x) in x.chunks(SPAN).enumerate() {
        let weights = weights.map(|w| &w[span * SPAN..][..x.len()]);
        let mut sums = [[simd.splat(0.0); M]; R];
        for (k, x) in x.iter().enumerate() {
            for r in 0..R {
                let weight = weights[r][k].load(simd);
                for m in 0..M {
                    sums[r][m] = simd.mul_add(weight, simd.splat(x[m]), sums[r][m]);
                }
            }
        }
        for r in 0..R {
            for m in 0..M {
                totals[r][m] = simd.add(totals[r][m], sums[r][m]);
            }
        }
    }
    totals
}
