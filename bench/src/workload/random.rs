//! Numbers that depend on the seed, and on nothing else.

use rand::SeedableRng;
use rand_pcg::Pcg64;

/// A generator whose numbers are the same on every machine and in every version.
pub type Random = Pcg64;

/// What numbers are for: each purpose has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Requests of the warm-up.
    WarmUp = 1,
    /// Requests that are measured.
    Measured,
    /// The order of a dataset.
    Order,
    /// The times of arrivals.
    Arrivals,
}

/// The generator of the `index`th thing of a purpose, which does not depend on
/// how many others were made before.
pub fn random(seed: u64, purpose: Purpose, index: u64) -> Random {
    // Multiplications scatter neighbours; `seed_from_u64` scatters again.
    let folded = [seed, purpose as u64, index]
        .iter()
        .fold(0, |state: u64, word| {
            (state ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        });
    Pcg64::seed_from_u64(folded)
}
