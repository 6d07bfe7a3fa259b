//! Keys and values of one layer, in blocks.
//!
//! Keys: `[block][kv_head][octet of slots][head_dim][8 slots]`, so that scores of 8
//! positions are one vector, without sums across lanes. Values:
//! `[block][kv_head][slot][head_dim]`. As f16, or f32 where every rounding counts.

use super::disjoint::Disjoint;
use super::pool::Pool;
use super::simd::{Kernel, LANES, Simd, dispatch};
use half::f16;
use half::slice::HalfBitsSliceExt;

/// Rows written by one thread alone.
const FEW_ROWS: usize = 8;

/// Sizes of one layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Blocks.
    pub num_blocks: usize,
    /// Slots (tokens) of a block: a multiple of 8.
    pub block_size: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Elements of a head: a multiple of 8.
    pub head_dim: usize,
}

impl KvShape {
    /// Elements of one head's keys (or values) in one block.
    pub(crate) fn head_len(self) -> usize {
        self.block_size * self.head_dim
    }

    /// Elements of the layer's keys (or values).
    pub fn len(self) -> usize {
        self.num_blocks * self.num_kv_heads * self.head_len()
    }

    /// Whether it has no slot.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Index of the first element of a head in a block.
    pub(crate) fn head_start(self, block: usize, head: usize) -> usize {
        (block * self.num_kv_heads + head) * self.head_len()
    }
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// Half the memory and the traffic.
    F16,
    /// Exact.
    F32,
}

impl KvDtype {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            KvDtype::F16 => 2,
            KvDtype::F32 => 4,
        }
    }
}

/// Keys and values of one layer.
#[derive(Debug)]
pub struct KvLayer {
    shape: KvShape,
    elements: Elements,
}

/// Zeroed memory comes from the system untouched, so blocks that are never used
/// cost nothing. That is why f16 is kept as u16.
#[derive(Debug)]
enum Elements {
    F16 { keys: Vec<u16>, values: Vec<u16> },
    F32 { keys: Vec<f32>, values: Vec<f32> },
}

/// One layer's keys and values as kernels read them.
pub(crate) enum KvView<'a> {
    F16(&'a [f16], &'a [f16]),
    F32(&'a [f32], &'a [f32]),
}

impl KvLayer {
    /// A zeroed cache.
    ///
    /// # Panics
    /// When `block_size` or `head_dim` is no multiple of 8.
    pub fn new(shape: KvShape, dtype: KvDtype) -> KvLayer {
        assert!(
            shape.block_size.is_multiple_of(LANES) && shape.head_dim.is_multiple_of(LANES),
            "block size {} and head size {} must be multiples of {LANES}",
            shape.block_size,
            shape.head_dim
        );
        let len = shape.len();
        let elements = match dtype {
            KvDtype::F16 => Elements::F16 {
                keys: vec![0; len],
                values: vec![0; len],
            },
            KvDtype::F32 => Elements::F32 {
                keys: vec![0.0; len],
                values: vec![0.0; len],
            },
        };
        KvLayer { shape, elements }
    }

    /// Its sizes.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    pub(crate) fn view(&self) -> KvView<'_> {
        match &self.elements {
            Elements::F16 { keys, values } => {
                KvView::F16(keys.reinterpret_cast(), values.reinterpret_cast())
            }
            Elements::F32 { keys, values } => KvView::F32(keys, values),
        }
    }

    /// Writes the keys and values of rows: `slots[row]` is block * block size +
    /// slot; a row of `x` holds `row_len` elements, from `keys_at` on the keys of
    /// all heads, then their values.
    ///
    /// # Panics
    /// When a slot or a row lies outside.
    pub fn write(&mut self, x: &[f32], row_len: usize, keys_at: usize, slots: &[u32], pool: &Pool) {
        let rows = Rows {
            x,
            row_len,
            keys_at,
            slots,
        };
        match &mut self.elements {
            Elements::F16 { keys, values } => {
                write(
                    self.shape,
                    keys.reinterpret_cast_mut::<f16>(),
                    values.reinterpret_cast_mut::<f16>(),
                    rows,
                    pool,
                );
            }
            Elements::F32 { keys, values } => write(self.shape, keys, values, rows, pool),
        }
    }
}

#[derive(Clone, Copy)]
struct Rows<'a> {
    x: &'a [f32],
    row_len: usize,
    keys_at: usize,
    slots: &'a [u32],
}

/// Elements of the cache.
pub(crate) trait KvElement: Copy + Send + Sync + 'static {
    fn load<S: Simd>(simd: S, x: &[Self; LANES]) -> S::F;
    fn convert<S: Simd>(simd: S, x: &[f32; LANES]) -> [Self; LANES];
}

impl KvElement for f16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, x: &[f16; LANES]) -> S::F {
        simd.load_f16(x)
    }
    #[inline(always)]
    fn convert<S: Simd>(simd: S, x: &[f32; LANES]) -> [f16; LANES] {
        simd.to_f16(simd.load(x))
    }
}

impl KvElement for f32 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, x: &[f32; LANES]) -> S::F {
        simd.load(x)
    }
    #[inline(always)]
    fn convert<S: Simd>(_: S, x: &[f32; LANES]) -> [f32; LANES] {
        *x
    }
}

fn write<T: KvElement>(
    shape: KvShape,
    keys: &mut [T],
    values: &mut [T],
    rows: Rows<'_>,
    pool: &Pool,
) {
    let (keys, values) = (Disjoint::new(keys), Disjoint::new(values));
    let heads = shape.num_kv_heads;
    let task = |i: usize| {
        let (head, is_key) = (i % heads, i < heads);
        dispatch(WriteHead {
            shape,
            head,
            is_key,
            to: if is_key { &keys } else { &values },
            rows,
        });
    };
    if rows.slots.len() <= FEW_ROWS {
        (0..2 * heads).for_each(task);
    } else {
        pool.run(2 * heads, task);
    }
}

/// All rows of one head's keys or values.
struct WriteHead<'a, T> {
    shape: KvShape,
    head: usize,
    is_key: bool,
    to: &'a Disjoint<'a, T>,
    rows: Rows<'a>,
}

impl<T: KvElement> Kernel for WriteHead<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let KvShape {
            block_size,
            head_dim,
            num_kv_heads,
            ..
        } = self.shape;
        let from = if self.is_key { 0 } else { num_kv_heads } + self.head;
        for (row, &slot) in self.rows.slots.iter().enumerate() {
            let at = row * self.rows.row_len + self.rows.keys_at + from * head_dim;
            let x = self.rows.x[at..at + head_dim].as_chunks::<LANES>().0;
            let (block, slot) = (slot as usize / block_size, slot as usize % block_size);
            let start = self.shape.head_start(block, self.head);
            // SAFETY: a task alone touches a head's keys or values.
            let to = unsafe { self.to.part(start..start + self.shape.head_len()) };
            if self.is_key {
                let octet = &mut to[slot / LANES * LANES * head_dim..][..LANES * head_dim];
                let (columns, _) = octet.as_chunks_mut::<LANES>();
                for (columns, x) in columns.chunks_exact_mut(LANES).zip(x) {
                    for (column, x) in columns.iter_mut().zip(T::convert(simd, x)) {
                        column[slot % LANES] = x;
                    }
                }
            } else {
                let to = to[slot * head_dim..][..head_dim].as_chunks_mut::<LANES>().0;
                for (to, x) in to.iter_mut().zip(x) {
                    *to = T::convert(simd, x);
                }
            }
        }
    }
}
