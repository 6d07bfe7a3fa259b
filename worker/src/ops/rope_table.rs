//! Cosines and sines of rotary positions.

/// Cosines and sines of `position x inverse frequency`, for every position
/// below the context's end: `[positions, head_dim / 2]` each.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    half_dim: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// The table of `positions` positions. Angles are products in f32, as the
    /// models were trained with; their cosines are exact to f32.
    pub fn new(inverse_frequencies: &[f32], positions: usize) -> RopeTable {
        let angles = (0..positions)
            .flat_map(|position| inverse_frequencies.iter().map(move |f| position as f32 * f));
        let (cos, sin) = angles
            .map(|angle| (f64::from(angle).cos() as f32, f64::from(angle).sin() as f32))
            .unzip();
        RopeTable {
            half_dim: inverse_frequencies.len(),
            cos,
            sin,
        }
    }

    /// Pairs of a head that are rotated.
    pub fn half_dim(&self) -> usize {
        self.half_dim
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half_dim.max(1)
    }

    /// `[positions, half_dim]`.
    pub fn cos(&self) -> &[f32] {
        &self.cos
    }

    /// `[positions, half_dim]`.
    pub fn sin(&self) -> &[f32] {
        &self.sin
    }
}
