//! Weights laid out for the kernels: rows in tiles of 8, so that one vector
//! serves 8 output features.
//!
//! | file's type | quants | scales |
//! |---|---|---|
//! | Q4_0, Q4_1 | nibbles | f16 |
//! | Q4_K | nibbles | f32: what the block's two levels multiply to |
//! | Q5_0, Q5_1, Q8_0 | signed bytes | f16 |
//! | Q5_K, Q6_K | signed bytes | f32 |
//!
//! Within a tile groups of 32 columns follow each other. Bytes: vector `v` of a
//! group holds columns `4v..4v+4` of rows 0 to 7, row after row. Nibbles: the
//! same, where vector `v` has the columns of `4v` in its low and those of
//! `4v + 16` in its high nibbles. Missing rows of the last tile are 0.

use super::dequantize::{GROUP, Group, each_group};
use super::simd::{LANES, Lane, Simd};
use half::f16;
use nano_model::gguf::GgmlType;

/// Scales or floats of 8 rows.
pub(crate) trait LoadLane: Copy + Send + Sync {
    /// Exact.
    fn load<S: Simd>(&self, simd: S) -> S::F;
}

/// Scales of 8 rows, packed at load.
pub(crate) trait ScaleLane: LoadLane {
    /// Exact for the values that a type's blocks hold.
    fn pack(values: [f32; LANES]) -> Self;
}

impl LoadLane for [f16; LANES] {
    #[inline(always)]
    fn load<S: Simd>(&self, simd: S) -> S::F {
        simd.load_f16(self)
    }
}

impl ScaleLane for [f16; LANES] {
    fn pack(values: [f32; LANES]) -> Self {
        values.map(f16::from_f32)
    }
}

impl LoadLane for [f32; LANES] {
    #[inline(always)]
    fn load<S: Simd>(&self, simd: S) -> S::F {
        simd.load(self)
    }
}

impl ScaleLane for [f32; LANES] {
    fn pack(values: [f32; LANES]) -> Self {
        values
    }
}

/// The upper halves of eight f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bf16Lane(pub [u16; LANES]);

impl LoadLane for Bf16Lane {
    #[inline(always)]
    fn load<S: Simd>(&self, simd: S) -> S::F {
        simd.load_bf16(&self.0)
    }
}

/// What is added to `scale * quant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Min {
    /// Nothing.
    None,
    /// A minimum of each group, beside its scale.
    Stored,
    /// The quants are nibbles from which 8 is taken.
    MinusEight,
}

/// How a group's quants and scales are kept.
pub(crate) trait Layout: Send + Sync {
    /// Nibbles, else signed bytes.
    const NIBBLES: bool;
    /// A scale for each half of a group.
    const HALVES: bool = false;
    const MIN: Min;
    type Scale: ScaleLane;

    /// Vectors of quants a group.
    const LANES: usize = if Self::NIBBLES { 4 } else { 8 };
    /// Vectors of scales and minima a group.
    const SCALES: usize = 1 + Self::HALVES as usize + matches!(Self::MIN, Min::Stored) as usize;
}

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident: $nibbles:expr, $halves:expr, $min:expr, $scale:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;
        impl Layout for $name {
            const NIBBLES: bool = $nibbles;
            const HALVES: bool = $halves;
            const MIN: Min = $min;
            type Scale = [$scale; LANES];
        }
    )*};
}

layouts! {
    /// Q4_0.
    NibblesMinusEight: true, false, Min::MinusEight, f16;
    /// Q4_1.
    NibblesMin: true, false, Min::Stored, f16;
    /// Q4_K.
    NibblesMinF32: true, false, Min::Stored, f32;
    /// Q5_0 and Q8_0.
    Bytes: false, false, Min::None, f16;
    /// Q5_1.
    BytesMin: false, false, Min::Stored, f16;
    /// Q5_K.
    BytesMinF32: false, false, Min::Stored, f32;
    /// Q6_K.
    BytesHalvesF32: false, true, Min::None, f32;
}

/// Tiles of a quantized matrix.
#[derive(Debug)]
pub(crate) struct QuantTiles<L: Layout> {
    pub quants: Vec<Lane>,
    pub scales: Vec<L::Scale>,
}

impl<L: Layout> QuantTiles<L> {
    /// Packs rows of whole blocks; shapes are checked before.
    pub(crate) fn pack(dtype: GgmlType, cols: usize, bytes: &[u8]) -> Self {
        let groups = cols / GROUP;
        let row_bytes = cols / dtype.block_size() as usize * dtype.block_bytes() as usize;
        let rows = bytes.chunks_exact(row_bytes.max(1));
        let tiles = rows.len().div_ceil(LANES);
        let mut packed = QuantTiles {
            quants: Vec::with_capacity(tiles * groups * L::LANES),
            scales: Vec::with_capacity(tiles * groups * L::SCALES),
        };
        let mut tile: [Vec<Group>; LANES] = std::array::from_fn(|_| Vec::with_capacity(groups));
        for rows in bytes.chunks(row_bytes.max(1) * LANES) {
            tile.iter_mut().for_each(Vec::clear);
            for (row, groups) in rows.chunks_exact(row_bytes).zip(&mut tile) {
                each_group(dtype, row, |group| groups.push(group));
            }
            for group in 0..groups {
                // A missing row is one of zeros.
                let rows: [Option<&Group>; LANES] = std::array::from_fn(|row| tile[row].get(group));
                packed.push(rows);
            }
        }
        packed
    }

    fn push(&mut self, rows: [Option<&Group>; LANES]) {
        let offset = if L::MIN == Min::MinusEight { 8 } else { 0 };
        let quant = |row: usize, col: usize| {
            rows[row].map_or(0, |group| (group.quants[col] + offset) as u8)
        };
        for lane in 0..L::LANES {
            self.quants.push(Lane(std::array::from_fn(|i| {
                let (row, col) = (i / 4, 4 * lane + i % 4);
                if L::NIBBLES {
                    quant(row, col) | quant(row, col + 16) << 4
                } else {
                    quant(row, col)
                }
            })));
        }
        let mut lane = |f: &dyn Fn(&Group) -> f32| {
            self.scales
                .push(L::Scale::pack(rows.map(|group| group.map_or(0.0, f))));
        };
        lane(&|group| group.scales[0]);
        if L::HALVES {
            lane(&|group| group.scales[1]);
        }
        if L::MIN == Min::Stored {
            lane(&|group| group.min.unwrap_or(0.0));
        }
    }
}

/// Tiles of a matrix of plain floats: column after column, 8 rows each.
pub(crate) fn pack_floats<T: Copy>(
    rows: usize,
    cols: usize,
    zero: T,
    element: impl Fn(usize) -> T,
) -> Vec<[T; LANES]> {
    let mut lanes = Vec::with_capacity(rows.div_ceil(LANES) * cols);
    for first in (0..rows).step_by(LANES) {
        for col in 0..cols {
            lanes.push(std::array::from_fn(|i| {
                let row = first + i;
                if row < rows {
                    element(row * cols + col)
                } else {
                    zero
                }
            }));
        }
    }
    lanes
}
