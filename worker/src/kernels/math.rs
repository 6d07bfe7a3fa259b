//! Functions of eight lanes that no instruction gives.

use super::simd::Simd;

/// exp(x), within 2 units in the last place; 0 below -87, where f32 would leave
/// the normal numbers, and about f32's largest above 88. NaN stays NaN.
///
/// exp(x) = 2^n * exp(r) with n = round(x / ln 2): |r| <= ln 2 / 2, where the
/// Taylor polynomial of degree 7 is exact to f32.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::F) -> S::F {
    let c = |x: f32| simd.splat(x);
    let limited = simd.max(c(-87.0), simd.min(c(88.0), x));
    let n = simd.round(simd.mul(limited, c(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, the first with few enough bits that n times it is exact.
    let r = simd.mul_add(n, c(-355.0 / 512.0), limited);
    let r = simd.mul_add(n, c(2.121_944_4e-4), r);
    let mut p = c(1.0 / 5040.0);
    for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        p = simd.mul_add(p, r, c(1.0 / factorial));
    }
    simd.zero_below(x, c(-87.0), simd.mul(p, simd.exp2_integral(n)))
}

/// x / (1 + exp(-x)).
#[inline(always)]
pub(crate) fn silu<S: Simd>(simd: S, x: S::F) -> S::F {
    let e = exp(simd, simd.sub(simd.splat(0.0), x));
    simd.div(x, simd.add(simd.splat(1.0), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::{Kernel, Portable, dispatch};

    struct Map(fn(f32) -> f32, Vec<f32>, bool);

    impl Kernel for &Map {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<f32> {
            let mut out = self.1.clone();
            for x in out.as_chunks_mut::<8>().0 {
                let lanes = simd.load(x);
                let y = if self.2 {
                    silu(simd, lanes)
                } else {
                    exp(simd, lanes)
                };
                simd.store(y, x);
            }
            out
        }
    }

    fn check(map: &Map, tolerance: f64) {
        let fast = dispatch(map);
        let plain = map.run(Portable);
        for ((&x, fast), plain) in map.1.iter().zip(fast).zip(plain) {
            assert_eq!(fast.to_bits(), plain.to_bits(), "at {x}");
            let exact = f64::from(map.0(x));
            let error = (f64::from(fast) - exact).abs();
            assert!(
                error <= exact.abs() * tolerance + 1e-37,
                "{x}: {fast} {exact}"
            );
        }
    }

    #[test]
    fn exp_and_silu_are_exact_to_a_few_units() {
        let xs: Vec<f32> = (-87_000..=88_000)
            .step_by(7)
            .map(|i| i as f32 / 1000.0)
            .collect();
        let xs = xs[..xs.len() / 8 * 8].to_vec();
        check(
            &Map(|x| f64::from(x).exp() as f32, xs.clone(), false),
            2.5e-7,
        );
        let silu = |x: f32| (f64::from(x) / (1.0 + (-f64::from(x)).exp())) as f32;
        check(&Map(silu, xs, true), 4e-7);
    }

    #[test]
    fn exp_of_what_is_no_number() {
        let xs = [
            f32::NEG_INFINITY,
            -1e30,
            -88.0,
            0.0,
            f32::NAN,
            f32::INFINITY,
            1e30,
            -0.0,
        ];
        let y = dispatch(&Map(|x| x, xs.to_vec(), false));
        assert_eq!(y[..4], [0.0, 0.0, 0.0, 1.0]);
        assert!(y[4].is_nan());
        assert!(y[5] > 1e38 && y[6] > 1e38 && y[7] == 1.0);
    }
}
