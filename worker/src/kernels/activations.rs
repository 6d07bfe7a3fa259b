//! The left side of a matrix product, laid out for the kernels.
//!
//! Rows are taken in blocks of 8, 4, 2 or 1, and a block is stored so that a
//! kernel reads it from front to back: `[group][row of the block][element]`.
//! What is computed of a row depends on that row alone.

use super::dequantize::GROUP;
use super::disjoint::Disjoint;
use super::pool::Pool;
use super::simd::{Kernel, Simd, dispatch};
use std::ops::Range;

/// Most rows of a block.
pub(crate) const MAX_ROWS: usize = 8;

/// Blocks whose rows one task prepares.
const GRAIN: usize = 2;

/// The blocks that `rows` rows are taken in.
pub(crate) fn row_blocks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let left = rows - start;
        let take = if left >= MAX_ROWS {
            MAX_ROWS
        } else if left > 0 {
            1 << left.ilog2()
        } else {
            return None;
        };
        start += take;
        Some(start - take..start)
    })
}

/// One group of a quantized row, four bytes at a time.
pub(crate) type QuantGroup = [[i8; 4]; GROUP / 4];

/// Rows quantized to int8: element = `scale * quant`, one scale a group.
#[derive(Debug, Default)]
pub(crate) struct QuantRows {
    pub groups: usize,
    pub quants: Vec<QuantGroup>,
    pub scales: Vec<f32>,
    /// Sums of the quants of a group.
    pub sums: Vec<f32>,
    /// `scale * sum`.
    pub scaled_sums: Vec<f32>,
}

impl QuantRows {
    /// Quantizes `x` = `[rows, cols]`, with `cols` whole groups.
    pub(crate) fn quantize(&mut self, x: &[f32], rows: usize, cols: usize, pool: &Pool) {
        self.groups = cols / GROUP;
        let len = rows * self.groups;
        self.quants.resize(len, Default::default());
        self.scales.resize(len, 0.0);
        self.sums.resize(len, 0.0);
        self.scaled_sums.resize(len, 0.0);
        let to = (
            Disjoint::new(&mut self.quants),
            Disjoint::new(&mut self.scales),
            Disjoint::new(&mut self.sums),
            Disjoint::new(&mut self.scaled_sums),
        );
        let groups = self.groups;
        each_block(rows, pool, |block| {
            let at = block.start * groups..block.end * groups;
            // SAFETY: blocks do not overlap.
            let (quants, scales, sums, scaled_sums) = unsafe {
                (
                    to.0.part(at.clone()),
                    to.1.part(at.clone()),
                    to.2.part(at.clone()),
                    to.3.part(at),
                )
            };
            dispatch(QuantizeBlock {
                rows: block.len(),
                x: &x[block.start * cols..block.end * cols],
                cols,
                quants,
                scales,
                sums,
                scaled_sums,
            });
        });
    }
}

/// Calls `f` with every block, on several threads if there are many.
fn each_block(rows: usize, pool: &Pool, f: impl Fn(Range<usize>) + Sync) {
    let whole = rows / MAX_ROWS;
    pool.run_ranges(whole, GRAIN, |range| {
        range.for_each(|i| f(i * MAX_ROWS..(i + 1) * MAX_ROWS));
    });
    row_blocks(rows).skip(whole).for_each(f);
}

struct QuantizeBlock<'a> {
    rows: usize,
    x: &'a [f32],
    cols: usize,
    quants: &'a mut [QuantGroup],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    scaled_sums: &'a mut [f32],
}

impl Kernel for QuantizeBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (row, x) in self.x.chunks_exact(self.cols).enumerate() {
            for (group, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                let to = group * self.rows + row;
                let (quants, scale, sum) = quantize_group(simd, x);
                self.quants[to] = quants;
                self.scales[to] = scale;
                self.sums[to] = sum;
                self.scaled_sums[to] = scale * sum;
            }
        }
    }
}

/// Symmetric quantization: scale = max |x| / 127. A NaN or an infinity makes
/// the scale NaN or infinite, so that it shows in the result.
#[inline(always)]
fn quantize_group<S: Simd>(simd: S, x: &[f32; GROUP]) -> (QuantGroup, f32, f32) {
    let (parts, _) = x.as_chunks::<8>();
    let x: [S::F; 4] = std::array::from_fn(|i| simd.load(&parts[i]));
    let bits = x.map(|x| simd.abs_bits(x));
    let most = simd.max_i32(
        simd.max_i32(bits[0], bits[1]),
        simd.max_i32(bits[2], bits[3]),
    );
    let most = f32::from_bits(simd.max_lane_i32(most) as u32);
    let scale = most / 127.0;
    // Below, the inverse would overflow; such a group is 0 beside any other.
    let inverse = if most > 1e-30 { 127.0 / most } else { 0.0 };
    let (inverse, low, high) = (simd.splat(inverse), simd.splat(-127.0), simd.splat(127.0));
    // `max` gives its second operand for a NaN.
    let scaled = x.map(|x| simd.min(simd.max(simd.mul(x, inverse), low), high));
    let bytes = simd.to_bytes(scaled);
    let rounded = scaled.map(|x| simd.round(x));
    let sum = simd.sum(simd.add(
        simd.add(rounded[0], rounded[1]),
        simd.add(rounded[2], rounded[3]),
    ));
    let (quads, _) = bytes.as_chunks::<4>();
    (std::array::from_fn(|i| quads[i]), scale, sum)
}

/// Rows in f32, laid out like [`QuantRows`] with groups of one element.
#[derive(Debug, Default)]
pub(crate) struct FloatRows {
    pub cols: usize,
    pub values: Vec<f32>,
}

impl FloatRows {
    /// Takes over `x` = `[rows, cols]`.
    pub(crate) fn copy(&mut self, x: &[f32], rows: usize, cols: usize, pool: &Pool) {
        self.cols = cols;
        self.values.resize(rows * cols, 0.0);
        let to = Disjoint::new(&mut self.values);
        each_block(rows, pool, |block| {
            let at = block.start * cols..block.end * cols;
            // SAFETY: blocks do not overlap.
            let to = unsafe { to.part(at.clone()) };
            for (row, x) in x[at].chunks_exact(cols).enumerate() {
                for (to, &x) in to[row..].iter_mut().step_by(block.len()).zip(x) {
                    *to = x;
                }
            }
        });
    }
}
