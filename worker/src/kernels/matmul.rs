//! `out = x * weights^T` for weights of every type.

use super::activations::{FloatRows, QuantRows, row_blocks};
use super::attention::AttentionBuffers;
use super::dequantize::{GROUP, ShapeError, check_shape, dequantize};
use super::disjoint::Disjoint;
use super::packed::{
    Bf16Lane, Bytes, BytesHalvesF32, BytesMin, BytesMinF32, Layout, LoadLane, NibblesMin,
    NibblesMinF32, NibblesMinusEight, QuantTiles, pack_floats,
};
use super::pool::Pool;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::tile::{QuantBlock, float_tiles, quant_tile};
use half::f16;
use nano_model::gguf::GgmlType;
use std::ops::Range;
use std::sync::Arc;

/// Tiles of one task at least.
const GRAIN: usize = 4;

/// Bytes of weights that stay in a core's cache while all rows pass.
const CACHED_WEIGHTS: usize = 96 << 10;

/// Buffers of a forward pass that its kernels share, and the threads they run on.
#[derive(Debug)]
pub struct Scratch {
    pool: Arc<Pool>,
    quant: QuantRows,
    float: FloatRows,
    attention: AttentionBuffers,
}

impl Scratch {
    /// Empty buffers: they grow to what the largest step needs.
    pub fn new(pool: Arc<Pool>) -> Scratch {
        Scratch {
            pool,
            quant: QuantRows::default(),
            float: FloatRows::default(),
            attention: AttentionBuffers::default(),
        }
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What attention needs: threads, and buffers of its own.
    pub(crate) fn attention(&mut self) -> (&Pool, &mut AttentionBuffers) {
        (&self.pool, &mut self.attention)
    }
}

/// A weight matrix `[rows = output features, cols = input features]`, laid out
/// for the kernels. Parts of it may have different types.
#[derive(Debug)]
pub struct PackedMatrix {
    parts: Vec<Part>,
    rows: usize,
    cols: usize,
}

#[derive(Debug)]
struct Part {
    rows: usize,
    tiles: Tiles,
}

#[derive(Debug)]
enum Tiles {
    NibblesMinusEight(QuantTiles<NibblesMinusEight>),
    NibblesMin(QuantTiles<NibblesMin>),
    NibblesMinF32(QuantTiles<NibblesMinF32>),
    Bytes(QuantTiles<Bytes>),
    BytesMin(QuantTiles<BytesMin>),
    BytesMinF32(QuantTiles<BytesMinF32>),
    BytesHalvesF32(QuantTiles<BytesHalvesF32>),
    F32(Vec<[f32; LANES]>),
    F16(Vec<[f16; LANES]>),
    Bf16(Vec<Bf16Lane>),
}

impl Tiles {
    fn is_quantized(&self) -> bool {
        !matches!(self, Tiles::F32(_) | Tiles::F16(_) | Tiles::Bf16(_))
    }
}

impl PackedMatrix {
    /// Packs a matrix as its file has it: `bytes` holds `rows` rows of `cols`
    /// elements of `dtype`.
    ///
    /// Quantized weights are multiplied with activations quantized to int8 in
    /// groups of 32; floats with f32 activations in f32.
    ///
    /// # Errors
    /// When the bytes do not fit the shape, or rows are not whole blocks.
    pub fn new(
        dtype: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, ShapeError> {
        check_shape(dtype, rows, cols, bytes)?;
        let tiles = match dtype {
            GgmlType::Q4_0 => Tiles::NibblesMinusEight(QuantTiles::pack(dtype, cols, bytes)),
            GgmlType::Q4_1 => Tiles::NibblesMin(QuantTiles::pack(dtype, cols, bytes)),
            GgmlType::Q4_K => Tiles::NibblesMinF32(QuantTiles::pack(dtype, cols, bytes)),
            GgmlType::Q5_0 | GgmlType::Q8_0 => Tiles::Bytes(QuantTiles::pack(dtype, cols, bytes)),
            GgmlType::Q5_1 => Tiles::BytesMin(QuantTiles::pack(dtype, cols, bytes)),
            GgmlType::Q5_K => Tiles::BytesMinF32(QuantTiles::pack(dtype, cols, bytes)),
            GgmlType::Q6_K => Tiles::BytesHalvesF32(QuantTiles::pack(dtype, cols, bytes)),
            GgmlType::F32 => Tiles::F32(pack_floats(rows, cols, 0.0, |i| {
                f32::from_le_bytes(bytes.as_chunks::<4>().0[i])
            })),
            GgmlType::F16 => Tiles::F16(pack_floats(rows, cols, f16::ZERO, |i| {
                f16::from_le_bytes(bytes.as_chunks::<2>().0[i])
            })),
            GgmlType::BF16 => Tiles::Bf16(
                pack_floats(rows, cols, 0, |i| {
                    u16::from_le_bytes(bytes.as_chunks::<2>().0[i])
                })
                .into_iter()
                .map(Bf16Lane)
                .collect(),
            ),
        };
        Ok(PackedMatrix {
            parts: vec![Part { rows, tiles }],
            rows,
            cols,
        })
    }

    /// Packs a matrix dequantized to f32: exact weights, arithmetic in f32.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn exact(
        dtype: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, ShapeError> {
        check_shape(dtype, rows, cols, bytes)?;
        let mut floats = vec![0.0; rows * cols];
        dequantize(dtype, bytes, &mut floats)?;
        Ok(PackedMatrix::from_f32(rows, cols, &floats))
    }

    /// Packs a matrix of f32, row after row.
    ///
    /// # Panics
    /// When `weights` are not `rows * cols`.
    pub fn from_f32(rows: usize, cols: usize, weights: &[f32]) -> PackedMatrix {
        assert_eq!(weights.len(), rows * cols, "weights of [{rows}, {cols}]");
        PackedMatrix {
            parts: vec![Part {
                rows,
                tiles: Tiles::F32(pack_floats(rows, cols, 0.0, |i| weights[i])),
            }],
            rows,
            cols,
        }
    }

    /// Puts matrices of equal width one above another, so that one product gives
    /// all their outputs side by side: q, k and v; gate and up. Types may differ.
    ///
    /// # Errors
    /// When the widths differ.
    pub fn stack(
        matrices: impl IntoIterator<Item = PackedMatrix>,
    ) -> Result<PackedMatrix, ShapeError> {
        let mut matrices = matrices.into_iter();
        let mut all = matrices.next().unwrap_or(PackedMatrix {
            parts: Vec::new(),
            rows: 0,
            cols: 0,
        });
        for matrix in matrices {
            if matrix.cols != all.cols {
                return Err(ShapeError::Columns(matrix.cols, all.cols));
            }
            all.rows += matrix.rows;
            all.parts.extend(matrix.parts);
        }
        Ok(all)
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes that one pass over the matrix reads.
    pub fn bytes(&self) -> usize {
        let tile_bytes = |part: &Part| part.tile_bytes(self.cols) * part.rows.div_ceil(LANES);
        self.parts.iter().map(tile_bytes).sum()
    }

    /// `out[m, rows] = x[m, cols] * self^T`.
    ///
    /// Row i of `out` depends on row i of `x` alone: bit for bit the same
    /// whatever `m` and the other rows are, and on any number of threads.
    ///
    /// # Panics
    /// When a slice's length does not fit.
    pub fn matmul(&self, x: &[f32], m: usize, out: &mut [f32], scratch: &mut Scratch) {
        assert_eq!(x.len(), m * self.cols, "x of [{m}, {}]", self.cols);
        assert_eq!(out.len(), m * self.rows, "out of [{m}, {}]", self.rows);
        if m == 0 {
            return;
        }
        let Scratch {
            pool, quant, float, ..
        } = scratch;
        if self.parts.iter().any(|part| part.tiles.is_quantized()) {
            quant.quantize(x, m, self.cols, pool);
        }
        if self.parts.iter().any(|part| !part.tiles.is_quantized()) {
            float.copy(x, m, self.cols, pool);
        }
        let out = Disjoint::new(out);
        let tiles = |part: &Part| part.rows.div_ceil(LANES);
        let all = self.parts.iter().map(tiles).sum();
        pool.run_ranges(all, GRAIN, |range| {
            let (mut first_tile, mut first_row) = (0, 0);
            for part in &self.parts {
                let count = tiles(part);
                let clip = |tile: usize| tile.saturating_sub(first_tile).min(count);
                let own = clip(range.start)..clip(range.end);
                let step = (CACHED_WEIGHTS / part.tile_bytes(self.cols).max(1)).max(4);
                for start in own.clone().step_by(step) {
                    let task = Task {
                        m,
                        cols: self.cols,
                        rows: part.rows,
                        tiles: start..own.end.min(start + step),
                        quant,
                        float,
                        out: &out,
                        out_cols: self.rows,
                        out_col: first_row,
                    };
                    part.tiles.run(task);
                }
                first_tile += count;
                first_row += part.rows;
            }
        });
    }
}

impl Part {
    fn tile_bytes(&self, cols: usize) -> usize {
        fn quant<L: Layout>(_: &QuantTiles<L>, cols: usize) -> usize {
            cols / GROUP * (L::LANES * 32 + L::SCALES * size_of::<L::Scale>())
        }
        match &self.tiles {
            Tiles::NibblesMinusEight(tiles) => quant(tiles, cols),
            Tiles::NibblesMin(tiles) => quant(tiles, cols),
            Tiles::NibblesMinF32(tiles) => quant(tiles, cols),
            Tiles::Bytes(tiles) => quant(tiles, cols),
            Tiles::BytesMin(tiles) => quant(tiles, cols),
            Tiles::BytesMinF32(tiles) => quant(tiles, cols),
            Tiles::BytesHalvesF32(tiles) => quant(tiles, cols),
            Tiles::F32(_) => cols * size_of::<[f32; LANES]>(),
            Tiles::F16(_) | Tiles::Bf16(_) => cols * size_of::<[f16; LANES]>(),
        }
    }
}

impl Tiles {
    fn run(&self, task: Task<'_>) {
        match self {
            Tiles::NibblesMinusEight(tiles) => dispatch(Quant { tiles, task }),
            Tiles::NibblesMin(tiles) => dispatch(Quant { tiles, task }),
            Tiles::NibblesMinF32(tiles) => dispatch(Quant { tiles, task }),
            Tiles::Bytes(tiles) => dispatch(Quant { tiles, task }),
            Tiles::BytesMin(tiles) => dispatch(Quant { tiles, task }),
            Tiles::BytesMinF32(tiles) => dispatch(Quant { tiles, task }),
            Tiles::BytesHalvesF32(tiles) => dispatch(Quant { tiles, task }),
            Tiles::F32(lanes) => dispatch(Float { lanes, task }),
            Tiles::F16(lanes) => dispatch(Float { lanes, task }),
            Tiles::Bf16(lanes) => dispatch(Float { lanes, task }),
        }
    }
}

/// Some tiles of a part, times all rows.
struct Task<'a> {
    m: usize,
    cols: usize,
    /// Of the part.
    rows: usize,
    tiles: Range<usize>,
    quant: &'a QuantRows,
    float: &'a FloatRows,
    out: &'a Disjoint<'a, f32>,
    out_cols: usize,
    /// Where the part's outputs begin.
    out_col: usize,
}

impl Task<'_> {
    /// Writes a tile's outputs for rows of a block.
    #[inline(always)]
    fn store<S: Simd, const M: usize>(&self, simd: S, row: usize, tile: usize, sums: [S::F; M]) {
        let col = tile * LANES;
        let width = LANES.min(self.rows - col);
        for (m, sum) in sums.into_iter().enumerate() {
            let at = (row + m) * self.out_cols + self.out_col + col;
            // SAFETY: tiles are columns of the output, and each belongs to one task.
            let out = unsafe { self.out.part(at..at + width) };
            if let Ok(out) = <&mut [f32; LANES]>::try_from(&mut *out) {
                simd.store(sum, out);
            } else {
                let mut lanes = [0.0; LANES];
                simd.store(sum, &mut lanes);
                out.copy_from_slice(&lanes[..width]);
            }
        }
    }
}

struct Quant<'a, L: Layout> {
    tiles: &'a QuantTiles<L>,
    task: Task<'a>,
}

impl<L: Layout> Kernel for Quant<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for block in row_blocks(self.task.m) {
            match block.len() {
                8 => self.block::<S, 8>(simd, block.start),
                4 => self.block::<S, 4>(simd, block.start),
                2 => self.block::<S, 2>(simd, block.start),
                _ => self.block::<S, 1>(simd, block.start),
            }
        }
    }
}

impl<L: Layout> Quant<'_, L> {
    #[inline(always)]
    fn block<S: Simd, const M: usize>(&self, simd: S, row: usize) {
        let task = &self.task;
        let groups = task.quant.groups;
        let at = row * groups..(row + M) * groups;
        let x = QuantBlock {
            quants: &task.quant.quants[at.clone()],
            scales: &task.quant.scales[at.clone()],
            sums: &task.quant.sums[at.clone()],
            scaled_sums: &task.quant.scaled_sums[at],
        };
        let (lanes, scales) = (groups * L::LANES, groups * L::SCALES);
        for tile in task.tiles.clone() {
            let sums: [S::F; M] = quant_tile::<S, L, M>(
                simd,
                &self.tiles.quants[tile * lanes..][..lanes],
                &self.tiles.scales[tile * scales..][..scales],
                x,
            );
            task.store(simd, row, tile, sums);
        }
    }
}

struct Float<'a, L> {
    lanes: &'a [L],
    task: Task<'a>,
}

impl<L: LoadLane> Kernel for Float<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for block in row_blocks(self.task.m) {
            // Eight chains of additions keep both multipliers of a core busy.
            match block.len() {
                8 => self.block::<S, 8, 1>(simd, block.start, self.task.tiles.clone()),
                4 => self.block::<S, 4, 2>(simd, block.start, self.task.tiles.clone()),
                2 => self.block::<S, 2, 4>(simd, block.start, self.task.tiles.clone()),
                _ => self.block::<S, 1, 8>(simd, block.start, self.task.tiles.clone()),
            }
        }
    }
}

impl<L: LoadLane> Float<'_, L> {
    #[inline(always)]
    fn block<S: Simd, const M: usize, const R: usize>(
        &self,
        simd: S,
        row: usize,
        mut tiles: Range<usize>,
    ) {
        while tiles.len() >= R {
            self.tiles::<S, M, R>(simd, row, tiles.start);
            tiles.start += R;
        }
        for tile in tiles {
            self.tiles::<S, M, 1>(simd, row, tile);
        }
    }

    #[inline(always)]
    fn tiles<S: Simd, const M: usize, const R: usize>(&self, simd: S, row: usize, tile: usize) {
        let cols = self.task.cols;
        let weights: [&[L]; R] = std::array::from_fn(|r| &self.lanes[(tile + r) * cols..][..cols]);
        let x = &self.task.float.values[row * cols..(row + M) * cols];
        for (r, sums) in float_tiles::<S, L, M, R>(simd, weights, x)
            .into_iter()
            .enumerate()
        {
            self.task.store(simd, row, tile + r, sums);
        }
    }
}
