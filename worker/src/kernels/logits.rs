//! What sampling needs of a row of logits as long as the vocabulary.

use super::math::exp;
use super::simd::{Kernel, LANES, Simd, dispatch};

/// Index of the largest logit; the first among equals; NaN is never largest.
/// 0 of an empty row.
pub fn argmax(logits: &[f32]) -> usize {
    let most = max(logits);
    logits.iter().position(|&x| x == most).unwrap_or(0)
}

/// The largest logit, NaN aside; negative infinity of an empty row.
pub fn max(logits: &[f32]) -> f32 {
    dispatch(Max(logits))
}

/// `ln(sum(exp(x)))`. Negative infinity of an empty row; NaN if a logit is.
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    let most = max(logits);
    if most == f32::NEG_INFINITY && !logits.iter().any(|x| x.is_nan()) {
        return most;
    }
    most + dispatch(SumExp { logits, most }).ln()
}

struct Max<'a>(&'a [f32]);

impl Kernel for Max<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (lanes, rest) = self.0.as_chunks::<LANES>();
        let (fours, odd) = lanes.as_chunks::<4>();
        let mut most = [simd.splat(f32::NEG_INFINITY); 4];
        for four in fours {
            for (most, x) in most.iter_mut().zip(four) {
                // A NaN as the first operand gives the second.
                *most = simd.max(simd.load(x), *most);
            }
        }
        for x in odd {
            most[0] = simd.max(simd.load(x), most[0]);
        }
        let most = simd.max(simd.max(most[0], most[1]), simd.max(most[2], most[3]));
        rest.iter().fold(
            simd.max_lane(most),
            |most, &x| if x > most { x } else { most },
        )
    }
}

struct SumExp<'a> {
    logits: &'a [f32],
    most: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let most = simd.splat(self.most);
        let term = |x| exp(simd, simd.sub(x, most));
        let (lanes, rest) = self.logits.as_chunks::<LANES>();
        let (fours, odd) = lanes.as_chunks::<4>();
        let mut sums = [simd.splat(0.0); 4];
        for four in fours {
            for (sum, x) in sums.iter_mut().zip(four) {
                *sum = simd.add(*sum, term(simd.load(x)));
            }
        }
        for x in odd {
            sums[0] = simd.add(sums[0], term(simd.load(x)));
        }
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        sums[1] = simd.add(sums[1], term(simd.load(&last)));
        simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::Portable;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agree_with_plain_loops(logits in prop::collection::vec(-30.0f32..30.0, 1..200)) {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assert_eq!(max(&logits), most);
            prop_assert_eq!(argmax(&logits), logits.iter().position(|&x| x == most).unwrap());
            let sum: f64 = logits.iter().map(|&x| f64::from(x - most).exp()).sum();
            let exact = f64::from(most) + sum.ln();
            prop_assert!((f64::from(log_sum_exp(&logits)) - exact).abs() < 1e-5);
            let kernel = || SumExp { logits: &logits, most };
            prop_assert_eq!(dispatch(kernel()).to_bits(), kernel().run(Portable).to_bits());
        }
    }

    #[test]
    fn rows_that_hold_no_numbers() {
        assert_eq!(argmax(&[]), 0);
        assert_eq!(argmax(&[f32::NAN, 1.0, f32::NAN]), 1);
        assert_eq!(argmax(&[f32::NEG_INFINITY; 9]), 0);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 9]), f32::NEG_INFINITY);
        assert!(log_sum_exp(&[1.0, f32::NAN]).is_nan());
        assert!(log_sum_exp(&[f32::NAN; 3]).is_nan());
    }
}
