//! The inner loops of attention: some queries of one key-value head times one
//! chunk of positions.

use super::kv::{KvElement, KvShape};
use super::math::exp;
use super::simd::{Kernel, LANES, Simd};
use std::ops::Range;

/// Positions of a chunk.
pub(crate) const CHUNK: usize = 64;

/// Queries of an inner loop at most.
const MAX_BLOCK: usize = 6;

/// Rows of one sequence times the query heads of one key-value head: query `i` is row
/// `i / group`, head `i % group`.
#[derive(Clone, Copy)]
pub(crate) struct QueryTile {
    pub group: usize,
    pub queries: usize,
    /// Position of the first row.
    pub first_position: usize,
    /// The key-value head.
    pub head: usize,
    pub head_dim: usize,
}

impl QueryTile {
    /// Positions that the query attends to.
    fn context(self, query: usize) -> usize {
        self.first_position + query / self.group + 1
    }

    /// Chunks up to the last query's position.
    pub(crate) fn chunks(self) -> usize {
        self.context(self.queries - 1).div_ceil(CHUNK)
    }

    /// The queries of each inner loop.
    pub(crate) fn blocks(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.queries)
            .step_by(MAX_BLOCK)
            .map(move |start| start..self.queries.min(start + MAX_BLOCK))
    }
}

/// One chunk: fills `partial` = `[query][max, sum, values..]`.
pub(crate) struct TileChunk<'a, T> {
    pub query: QueryTile,
    pub shape: KvShape,
    pub table: &'a [u32],
    pub keys: &'a [T],
    pub values: &'a [T],
    pub chunk: usize,
    /// Scaled queries in blocks, `[element][query]`.
    pub packed: &'a [f32],
    /// Room for `[query][CHUNK]`.
    pub scores: &'a mut [f32],
    pub partial: &'a mut [f32],
}

impl<T: KvElement> Kernel for TileChunk<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut start = 0;
        for block in self.query.blocks() {
            let len = block.len() * self.query.head_dim;
            let packed = &self.packed[start..start + len];
            start += len;
            match block.len() {
                1 => self.block::<S, 1, 4, 8>(simd, block.start, packed),
                2 => self.block::<S, 2, 4, 4>(simd, block.start, packed),
                3 => self.block::<S, 3, 4, 4>(simd, block.start, packed),
                4 => self.block::<S, 4, 2, 2>(simd, block.start, packed),
                5 => self.block::<S, 5, 2, 2>(simd, block.start, packed),
                _ => self.block::<S, 6, 2, 2>(simd, block.start, packed),
            }
        }
    }
}

impl<T: KvElement> TileChunk<'_, T> {
    /// M queries from `first` on; K octets of keys, or V vectors of values, at once.
    #[inline(always)]
    fn block<S: Simd, const M: usize, const K: usize, const V: usize>(
        &mut self,
        simd: S,
        first: usize,
        packed: &[f32],
    ) {
        let start = self.chunk * CHUNK;
        let valid = |query: usize| self.query.context(query).saturating_sub(start).min(CHUNK);
        let most = valid(first + M - 1);
        let octets = most.div_ceil(LANES);
        // Where each octet's keys and values begin: both are 8 x head_dim elements.
        let mut at = [0; CHUNK / LANES];
        for (octet, at) in at[..octets].iter_mut().enumerate() {
            let position = start + octet * LANES;
            let block = self.table[position / self.shape.block_size] as usize;
            *at = self.shape.head_start(block, self.query.head)
                + position % self.shape.block_size * self.shape.head_dim;
        }
        let at = &at[..octets];
        let (scores, _) = self.scores[first * CHUNK..].as_chunks_mut::<CHUNK>();
        let (packed, _) = packed.as_chunks::<M>();
        let len = LANES * self.shape.head_dim;

        let mut octet = 0;
        while octet + K <= octets {
            score::<S, T, M, K>(simd, self.keys, len, &at[octet..], packed, scores, octet);
            octet += K;
        }
        while octet < octets {
            score::<S, T, M, 1>(simd, self.keys, len, &at[octet..], packed, scores, octet);
            octet += 1;
        }

        let partial_len = self.shape.head_dim + 2;
        let partial = &mut self.partial[first * partial_len..];
        for (m, scores) in scores.iter_mut().enumerate().take(M) {
            scores[valid(first + m)..octets * LANES].fill(f32::NEG_INFINITY);
            let (max, sum) = softmax(simd, &mut scores[..octets * LANES]);
            partial[m * partial_len] = max;
            partial[m * partial_len + 1] = sum;
        }

        let mut dim = 0;
        while dim + V * LANES <= self.shape.head_dim {
            self.weigh::<S, M, V>(simd, first, at, most, dim);
            dim += V * LANES;
        }
        while dim < self.shape.head_dim {
            self.weigh::<S, M, 1>(simd, first, at, most, dim);
            dim += LANES;
        }
    }

    /// Weighted sums of V vectors of values from element `dim` on.
    #[inline(always)]
    fn weigh<S: Simd, const M: usize, const V: usize>(
        &mut self,
        simd: S,
        first: usize,
        at: &[usize],
        most: usize,
        dim: usize,
    ) {
        let head_dim = self.shape.head_dim;
        let (weights, _) = self.scores[first * CHUNK..].as_chunks::<CHUNK>();
        let weights: &[[f32; CHUNK]] = &weights[..M];
        let mut sums = [[simd.splat(0.0); V]; M];
        for (octet, &at) in at.iter().enumerate() {
            let slots = LANES.min(most - octet * LANES);
            let values = &self.values[at..at + LANES * head_dim];
            for (slot, values) in values.chunks_exact(head_dim).take(slots).enumerate() {
                let (values, _) = values[dim..dim + V * LANES].as_chunks::<LANES>();
                let values: [S::F; V] = std::array::from_fn(|v| T::load(simd, &values[v]));
                let position = (octet * LANES + slot) % CHUNK;
                for m in 0..M {
                    let weight = simd.splat(weights[m][position]);
                    for v in 0..V {
                        sums[m][v] = simd.mul_add(weight, values[v], sums[m][v]);
                    }
                }
            }
        }
        let partial_len = head_dim + 2;
        for (m, sums) in sums.into_iter().enumerate() {
            let to = &mut self.partial[(first + m) * partial_len + 2 + dim..][..V * LANES];
            for (to, sum) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
                simd.store(sum, to);
            }
        }
    }
}

/// Scores of M queries for K octets of keys.
#[inline(always)]
fn score<S: Simd, T: KvElement, const M: usize, const K: usize>(
    simd: S,
    keys: &[T],
    len: usize,
    at: &[usize],
    packed: &[[f32; M]],
    scores: &mut [[f32; CHUNK]],
    octet: usize,
) {
    let keys: [&[[T; LANES]]; K] =
        std::array::from_fn(|k| &keys[at[k]..at[k] + len].as_chunks::<LANES>().0[..packed.len()]);
    let mut sums = [[simd.splat(0.0); K]; M];
    for (d, query) in packed.iter().enumerate() {
        let keys: [S::F; K] = std::array::from_fn(|k| T::load(simd, &keys[k][d]));
        for m in 0..M {
            let query = simd.splat(query[m]);
            for k in 0..K {
                sums[m][k] = simd.mul_add(query, keys[k], sums[m][k]);
            }
        }
    }
    for (sums, scores) in sums.into_iter().zip(scores) {
        let to = scores[octet * LANES..].as_chunks_mut::<LANES>().0;
        for (sum, to) in sums.into_iter().zip(to) {
            simd.store(sum, to);
        }
    }
}

/// Turns scores into exp(score - max); the maximum and the sum. Trailing scores of
/// negative infinity change nothing, nor would more of them.
#[inline(always)]
fn softmax<S: Simd>(simd: S, scores: &mut [f32]) -> (f32, f32) {
    let (lanes, _) = scores.as_chunks_mut::<LANES>();
    let mut max = simd.splat(f32::NEG_INFINITY);
    for x in lanes.iter() {
        max = simd.max(simd.load(x), max);
    }
    let max = simd.max_lane(max);
    if max == f32::NEG_INFINITY {
        // No position, or none with a weight.
        scores.fill(0.0);
        return (max, 0.0);
    }
    let shift = simd.splat(max);
    let mut sum = simd.splat(0.0);
    for x in lanes {
        let weight = exp(simd, simd.sub(simd.load(x), shift));
        sum = simd.add(sum, weight);
        simd.store(weight, x);
    }
    (max, simd.sum(sum))
}

/// Merges a later chunk's partial results into those of the chunks before.
pub(crate) struct MergeTile<'a> {
    /// Elements of a query's partial result: max, sum, values.
    pub len: usize,
    pub queries: usize,
    pub state: &'a mut [f32],
    pub partial: &'a [f32],
}

impl Kernel for MergeTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let states = self.state.chunks_exact_mut(self.len);
        let partials = self.partial.chunks_exact(self.len);
        for (state, partial) in states.zip(partials).take(self.queries) {
            if partial[0] == f32::NEG_INFINITY {
                // Beyond the row's position.
                continue;
            }
            let max = if partial[0] > state[0] {
                partial[0]
            } else {
                state[0]
            };
            let mut differences = [0.0; LANES];
            differences[0] = state[0] - max;
            differences[1] = partial[0] - max;
            let mut factors = [0.0; LANES];
            simd.store(exp(simd, simd.load(&differences)), &mut factors);
            state[0] = max;
            state[1] = state[1] * factors[0] + partial[1] * factors[1];
            let (old, new) = (simd.splat(factors[0]), simd.splat(factors[1]));
            let (state, _) = state[2..].as_chunks_mut::<LANES>();
            let (partial, _) = partial[2..].as_chunks::<LANES>();
            for (state, partial) in state.iter_mut().zip(partial) {
                let scaled = simd.mul(simd.load(state), old);
                simd.store(simd.mul_add(simd.load(partial), new, scaled), state);
            }
        }
    }
}
