//! Rotary position embedding: base and scaling.

/// Rotary position embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies; above 0.
    pub theta: f64,
    /// How frequencies are changed for long contexts.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are changed for long contexts. Factors are above 0.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by one factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: long wavelengths are divided, short ones kept, those between
    /// interpolated.
    Llama3 {
        /// Divisor of long wavelengths.
        factor: f64,
        /// Wavelengths longer than the original context over this are divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than the original context over this are kept;
        /// above `low_freq_factor`.
        high_freq_factor: f64,
        /// Context length before scaling.
        original_max_position_embeddings: u32,
    },
    /// One divisor a frequency, `head_dim / 2` of them: how GGUF files store
    /// Llama 3's scaling (tensor `rope_freqs.weight`).
    Divisors(Vec<f32>),
}

impl Rope {
    /// Inverse frequencies: element `i` of `head_dim / 2` is the angle, in
    /// radians, by which one position turns the `i`-th pair of a head,
    /// `theta^(-2i/head_dim)` before scaling.
    ///
    /// Llama 3's rule is that of Meta's `apply_scaling` (llama-models,
    /// `models/llama3/model.py`).
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| {
                let frequency = self.theta.powf(-((2 * i) as f64) / head_dim as f64);
                self.scaling.scale(i, frequency) as f32
            })
            .collect()
    }
}

impl RopeScaling {
    fn scale(&self, index: usize, frequency: f64) -> f64 {
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Divisors(divisors) => {
                frequency / divisors.get(index).map_or(1.0, |&divisor| divisor.into())
            }
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let wavelengths =
                    f64::from(original_max_position_embeddings) * frequency / std::f64::consts::TAU;
                // 0 where the frequency is divided, 1 where it is kept.
                let kept = (wavelengths - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let kept = kept.clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(scaling: RopeScaling) -> Vec<f32> {
        let theta = 10_000.0;
        Rope { theta, scaling }.inverse_frequencies(8)
    }

    #[test]
    fn plain_linear_and_divisors() {
        assert_eq!(frequencies(RopeScaling::None), [1.0, 0.1, 0.01, 0.001]);
        let halved = [0.5, 0.05, 0.005, 0.0005];
        assert_eq!(frequencies(RopeScaling::Linear { factor: 2.0 }), halved);
        let divisors = RopeScaling::Divisors(vec![1.0, 1.0, 2.0, 8.0]);
        assert_eq!(frequencies(divisors), [1.0, 0.1, 0.005, 0.000125]);
    }

    #[test]
    fn llama3_keeps_divides_and_interpolates() {
        // Wavelengths 6.3, 63, 628, 6283 of an original context of 1000, with
        // bounds 1000/4 = 250 and 1000/1 = 1000.
        let scaled = frequencies(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 1000,
        });
        let kept = (1000.0 / (200.0 * std::f32::consts::PI) - 1.0) / 3.0;
        let between = 0.01 * ((1.0 - kept) / 8.0 + kept);
        for (got, want) in scaled.iter().zip([1.0, 0.1, between, 0.001 / 8.0]) {
            assert!((got / want - 1.0).abs() < 1e-6, "{got} {want}");
        }
    }
}
