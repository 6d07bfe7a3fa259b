//! Means and percentiles.

use serde::Serialize;

/// A measured value that stands for `weight` of its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// In milliseconds.
    pub value: f32,
    /// More than 0.
    pub weight: f32,
}

/// In ascending order of their values.
pub fn sorted(mut samples: Vec<Sample>) -> Vec<Sample> {
    samples.sort_unstable_by(|a, b| a.value.total_cmp(&b.value));
    samples
}

/// A latency, in milliseconds; `None` where nothing was measured.
///
/// A percentile p is the smallest measured value that at least p per cent of
/// all values do not exceed (nearest rank): a value that did occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// How many values.
    pub count: f64,
    /// Their mean.
    pub mean: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p99_9: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
}

impl Distribution {
    /// Of samples in ascending order.
    pub fn of(samples: &[Sample]) -> Distribution {
        let count: f64 = samples.iter().map(|sample| f64::from(sample.weight)).sum();
        let sum: f64 = samples
            .iter()
            .map(|sample| f64::from(sample.value) * f64::from(sample.weight))
            .sum();
        let [p50, p90, p99, p99_9] = percentiles(samples, count, [50.0, 90.0, 99.0, 99.9]);
        Distribution {
            count,
            mean: (count > 0.0).then(|| sum / count),
            p50,
            p90,
            p99,
            p99_9,
            max: samples.last().map(|last| f64::from(last.value)),
        }
    }
}

/// Percentiles in ascending order, in one pass.
fn percentiles<const N: usize>(
    samples: &[Sample],
    count: f64,
    wanted: [f64; N],
) -> [Option<f64>; N] {
    let mut below = 0.0;
    let mut rest = samples.iter();
    let mut value = None;
    wanted.map(|percent| {
        // Sums of fractional weights are not exact.
        let rank = count * percent / 100.0 * (1.0 - 1e-9);
        while below < rank {
            let Some(sample) = rest.next() else { break };
            below += f64::from(sample.weight);
            value = Some(f64::from(sample.value));
        }
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples(values: &[(f32, f32)]) -> Vec<Sample> {
        let samples = values
            .iter()
            .map(|&(value, weight)| Sample { value, weight });
        sorted(samples.collect())
    }

    #[test]
    fn percentiles_are_of_nearest_rank() {
        let thousand: Vec<(f32, f32)> = (1..=1000).rev().map(|n| (n as f32, 1.0)).collect();
        let distribution = Distribution::of(&samples(&thousand));
        assert_eq!(
            distribution,
            Distribution {
                count: 1000.0,
                mean: Some(500.5),
                p50: Some(500.0),
                p90: Some(900.0),
                p99: Some(990.0),
                p99_9: Some(999.0),
                max: Some(1000.0),
            }
        );
        let one = Distribution::of(&samples(&[(7.0, 1.0)]));
        assert_eq!(
            (one.p50, one.p99_9, one.mean),
            (Some(7.0), Some(7.0), Some(7.0))
        );
        assert_eq!(Distribution::of(&[]), Distribution::default());
    }

    proptest! {
        #[test]
        fn a_weight_is_as_good_as_that_many_values(
            values in prop::collection::vec((0_u16..500, 1_u8..6), 1..60)
        ) {
            let weighted: Vec<(f32, f32)> =
                values.iter().map(|&(v, n)| (f32::from(v), f32::from(n))).collect();
            let repeated: Vec<(f32, f32)> = values
                .iter()
                .flat_map(|&(v, n)| (0..n).map(move |_| (f32::from(v), 1.0)))
                .collect();
            prop_assert_eq!(
                Distribution::of(&samples(&weighted)),
                Distribution::of(&samples(&repeated))
            );
        }
    }
}
