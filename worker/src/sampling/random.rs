//! Random numbers without a state.

/// A number in `[0, 1)` that depends on seed and position alone, so that a
/// sequence draws the same numbers in any batch and after any preemption.
///
/// Two rounds of the mixing function of SplitMix64 (Steele, Lea and Flood,
/// "Fast splittable pseudorandom number generators", 2014).
pub fn uniform(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(position.wrapping_mul(GOLDEN_GAMMA)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN_GAMMA);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::uniform;

    /// Pearson's statistic over 16 bins: 37.7 is exceeded once in a thousand.
    fn chi_square(numbers: impl Iterator<Item = f64>) -> f64 {
        let mut bins = [0.0; 16];
        let mut count = 0.0;
        for number in numbers {
            bins[(number * 16.0) as usize] += 1.0;
            count += 1.0;
        }
        let expected = count / 16.0;
        bins.iter()
            .map(|bin: &f64| (bin - expected).powi(2) / expected)
            .sum()
    }

    #[test]
    fn numbers_are_uniform_along_positions_and_along_seeds() {
        assert!(chi_square((0..100_000).map(|position| uniform(7, position))) < 37.7);
        assert!(chi_square((0..100_000).map(|seed| uniform(seed, 3))) < 37.7);
        // Neighbours do not repeat each other's numbers, shifted.
        assert!(chi_square((0..100_000).map(|i| (uniform(i, 1) - uniform(i + 1, 0)).abs())) > 37.7);
        assert_ne!(uniform(1, 0), uniform(0, 1));
    }
}
