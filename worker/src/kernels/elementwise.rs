//! Norms and activations: what happens to each row alone.

use super::disjoint::Disjoint;
use super::math::silu;
use super::pool::Pool;
use super::simd::{Kernel, LANES, Simd, dispatch};

/// Elements of one task at least.
const GRAIN: usize = 16 << 10;

/// Calls `f(row)` for all rows, on several threads if there is enough to do.
fn each_row(rows: usize, width: usize, pool: &Pool, f: impl Fn(usize) + Sync) {
    pool.run_ranges(rows, GRAIN.div_ceil(width.max(1)), |range| {
        range.for_each(&f);
    });
}

/// `out = x / sqrt(mean(x^2) + eps) * weight` for rows of `weight.len()` elements.
///
/// # Panics
/// When `x` and `out` differ in length.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32], pool: &Pool) {
    assert_eq!(x.len(), out.len(), "rows of x and out");
    let width = weight.len();
    let out = Disjoint::new(out);
    each_row(x.len() / width.max(1), width, pool, |row| {
        let at = row * width..(row + 1) * width;
        // SAFETY: rows do not overlap.
        let out = unsafe { out.part(at.clone()) };
        dispatch(RmsNorm {
            x: &x[at],
            weight,
            eps,
            out,
        });
    });
}

/// `residual += delta`, then `out = rms_norm(residual)`.
///
/// # Panics
/// When `residual`, `delta` and `out` differ in length.
pub fn add_rms_norm(
    residual: &mut [f32],
    delta: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
    pool: &Pool,
) {
    assert_eq!(residual.len(), delta.len(), "rows of residual and delta");
    assert_eq!(residual.len(), out.len(), "rows of residual and out");
    let width = weight.len();
    let rows = residual.len() / width.max(1);
    let (residual, out) = (Disjoint::new(residual), Disjoint::new(out));
    each_row(rows, width, pool, |row| {
        let at = row * width..(row + 1) * width;
        // SAFETY: rows do not overlap.
        let (residual, out) = unsafe { (residual.part(at.clone()), out.part(at.clone())) };
        for (x, delta) in residual.iter_mut().zip(&delta[at]) {
            *x += delta;
        }
        dispatch(RmsNorm {
            x: residual,
            weight,
            eps,
            out,
        });
    });
}

/// One row.
struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (lanes, rest) = self.x.as_chunks::<LANES>();
        let (pairs, odd) = lanes.as_chunks::<2>();
        let mut sums = [simd.splat(0.0); 2];
        for pair in pairs {
            for (sum, x) in sums.iter_mut().zip(pair) {
                let x = simd.load(x);
                *sum = simd.mul_add(x, x, *sum);
            }
        }
        for x in odd {
            let x = simd.load(x);
            sums[0] = simd.mul_add(x, x, sums[0]);
        }
        let mut sum = simd.sum(simd.add(sums[0], sums[1]));
        for x in rest {
            sum += x * x;
        }
        let factor = 1.0 / (sum / self.x.len() as f32 + self.eps).sqrt();
        for ((to, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *to = x * factor * weight;
        }
    }
}

/// `out = silu(gate) * up`, where a row of `gate_up` holds `width` gates, then
/// as many ups.
///
/// # Panics
/// When `gate_up` is not twice as long as `out`.
pub fn silu_mul(gate_up: &[f32], width: usize, out: &mut [f32], pool: &Pool) {
    assert_eq!(gate_up.len(), 2 * out.len(), "gates and ups, and out");
    let rows = out.len() / width.max(1);
    let out = Disjoint::new(out);
    each_row(rows, 4 * width, pool, |row| {
        let (gate, up) = gate_up[2 * row * width..][..2 * width].split_at(width);
        // SAFETY: rows do not overlap.
        let out = unsafe { out.part(row * width..(row + 1) * width) };
        dispatch(SiluMul { gate, up, out });
    });
}

/// One row.
struct SiluMul<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (gates, gates_rest) = self.gate.as_chunks::<LANES>();
        let (ups, ups_rest) = self.up.as_chunks::<LANES>();
        let (outs, outs_rest) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            let product = simd.mul(silu(simd, simd.load(gate)), simd.load(up));
            simd.store(product, out);
        }
        let mut lanes = [0.0; LANES];
        lanes[..gates_rest.len()].copy_from_slice(gates_rest);
        simd.store(silu(simd, simd.load(&lanes)), &mut lanes);
        for ((out, silu), up) in outs_rest.iter_mut().zip(lanes).zip(ups_rest) {
            *out = silu * up;
        }
    }
}
