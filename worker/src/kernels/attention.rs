//! Causal attention over the paged cache, read in place.
//!
//! A row's positions are taken in chunks of 64, from position 0 on: each chunk
//! gives a maximum, a sum of exponentials and a weighted sum of values, and the
//! chunks are merged in order. So the arithmetic of a row depends on its position
//! alone, not on the rows computed beside it, on the block size, on how the
//! prompt was cut, or on whether chunks were computed by several threads.

use super::attention_tile::{CHUNK, MergeTile, QueryTile, TileChunk};
use super::disjoint::Disjoint;
use super::kv::{KvLayer, KvShape, KvView};
use super::matmul::Scratch;
use super::pool::Pool;
use super::simd::dispatch;
use std::cell::RefCell;
use std::ops::Range;

/// Queries (rows x heads of a group) that pass a chunk together, at most, unless
/// a group alone has more.
const MAX_QUERIES: usize = 12;

/// Rows of one sequence within a batch.
#[derive(Clone, Debug)]
pub struct AttentionSpan<'a> {
    /// Its rows. Their positions follow each other.
    pub rows: Range<usize>,
    /// Position of the first row.
    pub first_position: usize,
    /// Blocks of the sequence; they cover the last row's position.
    pub block_table: &'a [u32],
}

/// Where a row's queries are, and their sizes.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Rows of `row_len` elements that begin with all query heads.
    pub x: &'a [f32],
    /// Elements of a row.
    pub row_len: usize,
    /// Query heads: a multiple of the key and value heads.
    pub num_heads: usize,
    /// Factor of the scores, usually 1 / sqrt(head_dim).
    pub scale: f32,
}

/// Attention of the queries of all spans over one layer's cache. A row of `out`
/// holds all query heads; rows of no span are left alone.
///
/// # Panics
/// When a row, a block or the heads lie outside of what is given.
pub fn paged_attention(
    queries: Queries<'_>,
    spans: &[AttentionSpan<'_>],
    layer: &KvLayer,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let shape = layer.shape();
    let group = queries.num_heads / shape.num_kv_heads.max(1);
    assert_eq!(
        group * shape.num_kv_heads,
        queries.num_heads,
        "query heads are a multiple of key and value heads"
    );
    if group == 0 {
        return;
    }
    let tile_rows = (MAX_QUERIES / group).max(1);
    let (pool, buffers) = scratch.attention();
    let tiles = &mut buffers.tiles;
    tiles.clear();
    for (span, of) in spans.iter().enumerate() {
        let last = of.first_position + of.rows.len();
        assert!(
            last <= of.block_table.len() * shape.block_size,
            "block table covers {last} positions"
        );
        for start in of.rows.clone().step_by(tile_rows) {
            tiles.push(Tile {
                span,
                rows: start..of.rows.end.min(start + tile_rows),
            });
        }
    }
    let work = Work {
        queries,
        spans,
        layer,
        shape,
        group,
        out: Disjoint::new(out),
    };
    let items = tiles.len() * shape.num_kv_heads;
    if items < 4 * pool.threads() && pool.threads() > 1 {
        work.by_chunks(buffers, pool);
    } else {
        // The longest ones first: they are the last rows of a prompt.
        pool.run(items, |i| {
            let i = items - 1 - i;
            work.tile(&tiles[i / shape.num_kv_heads], i % shape.num_kv_heads);
        });
    }
}

/// What attention keeps from call to call, so that it need not allocate.
#[derive(Debug, Default)]
pub(crate) struct AttentionBuffers {
    tiles: Vec<Tile>,
    chunks: Vec<ChunkOfTile>,
    partials: Vec<f32>,
}

/// Some rows of a span.
#[derive(Clone, Debug)]
struct Tile {
    span: usize,
    rows: Range<usize>,
}

/// One chunk of positions of one tile and head.
#[derive(Clone, Copy, Debug)]
struct ChunkOfTile {
    tile: usize,
    head: usize,
    chunk: usize,
    /// Where its partial results begin. Those of a tile and head follow each other.
    start: usize,
}

struct Work<'a> {
    queries: Queries<'a>,
    spans: &'a [AttentionSpan<'a>],
    layer: &'a KvLayer,
    shape: KvShape,
    group: usize,
    out: Disjoint<'a, f32>,
}

thread_local! {
    /// Packed queries, one chunk's scores and partial results.
    static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with buffers of these lengths.
fn with_buffers<const N: usize>(lens: [usize; N], f: impl FnOnce([&mut [f32]; N])) {
    BUFFER.with_borrow_mut(|buffer| {
        let all = lens.iter().sum();
        if buffer.len() < all {
            buffer.resize(all, 0.0);
        }
        let mut rest = &mut buffer[..];
        f(lens.map(|len| {
            let (part, more) = std::mem::take(&mut rest).split_at_mut(len);
            rest = more;
            part
        }));
    });
}

impl Work<'_> {
    fn query_tile(&self, tile: &Tile, head: usize) -> QueryTile {
        let span = &self.spans[tile.span];
        QueryTile {
            group: self.group,
            queries: tile.rows.len() * self.group,
            first_position: span.first_position + (tile.rows.start - span.rows.start),
            head,
            head_dim: self.shape.head_dim,
        }
    }

    /// Elements of one chunk's partial results for a tile.
    fn partial_len(&self, queries: usize) -> usize {
        queries * (self.shape.head_dim + 2)
    }

    /// The packed queries: blocks of up to 6, `[element][query]`.
    fn pack(&self, tile: &Tile, query: QueryTile, to: &mut [f32]) {
        let dim = query.head_dim;
        let mut start = 0;
        for block in query.blocks() {
            for (i, of) in block.clone().enumerate() {
                let (row, head) = (of / self.group, of % self.group + query.head * self.group);
                let at = (tile.rows.start + row) * self.queries.row_len + head * dim;
                let to = to[start + i..].iter_mut().step_by(block.len());
                for (to, x) in to.zip(&self.queries.x[at..at + dim]) {
                    *to = x * self.queries.scale;
                }
            }
            start += block.len() * dim;
        }
    }

    fn chunk(
        &self,
        tile: &Tile,
        query: QueryTile,
        chunk: usize,
        packed: &[f32],
        scores: &mut [f32],
        partial: &mut [f32],
    ) {
        let table = self.spans[tile.span].block_table;
        match self.layer.view() {
            KvView::F16(keys, values) => dispatch(TileChunk {
                query,
                shape: self.shape,
                table,
                keys,
                values,
                chunk,
                packed,
                scores,
                partial,
            }),
            KvView::F32(keys, values) => dispatch(TileChunk {
                query,
                shape: self.shape,
                table,
                keys,
                values,
                chunk,
                packed,
                scores,
                partial,
            }),
        }
    }

    /// Merges partials into a state, `[query][max, sum, values..]` both.
    fn merge(&self, query: QueryTile, state: &mut [f32], partial: &[f32]) {
        dispatch(MergeTile {
            len: self.partial_len(1),
            queries: query.queries,
            state,
            partial,
        });
    }

    fn finish(&self, tile: &Tile, query: QueryTile, state: &[f32]) {
        let dim = query.head_dim;
        for (of, state) in state
            .chunks_exact(self.partial_len(1))
            .take(query.queries)
            .enumerate()
        {
            let (row, head) = (of / self.group, of % self.group + query.head * self.group);
            let at = ((tile.rows.start + row) * self.queries.num_heads + head) * dim;
            // SAFETY: a tile's rows and a head's elements belong to one task.
            let out = unsafe { self.out.part(at..at + dim) };
            let inverse = 1.0 / state[1];
            for (out, x) in out.iter_mut().zip(&state[2..]) {
                // Masked positions add 0, which may turn -0 to 0: so does this.
                *out = x * inverse + 0.0;
            }
        }
    }

    /// One tile and head from its first chunk to its last.
    fn tile(&self, tile: &Tile, head: usize) {
        let query = self.query_tile(tile, head);
        let len = self.partial_len(query.queries);
        let lens = [
            query.queries * query.head_dim,
            query.queries * CHUNK,
            len,
            len,
        ];
        with_buffers(lens, |[packed, scores, partial, state]| {
            self.pack(tile, query, packed);
            self.chunk(tile, query, 0, packed, scores, state);
            for chunk in 1..query.chunks() {
                self.chunk(tile, query, chunk, packed, scores, partial);
                self.merge(query, state, partial);
            }
            self.finish(tile, query, state);
        });
    }

    /// Few tiles: first all chunks on all threads, then the merging.
    fn by_chunks(&self, buffers: &mut AttentionBuffers, pool: &Pool) {
        let AttentionBuffers {
            tiles,
            chunks,
            partials,
        } = buffers;
        chunks.clear();
        let mut start = 0;
        for (index, tile) in tiles.iter().enumerate() {
            for head in 0..self.shape.num_kv_heads {
                let query = self.query_tile(tile, head);
                for chunk in 0..query.chunks() {
                    chunks.push(ChunkOfTile {
                        tile: index,
                        head,
                        chunk,
                        start,
                    });
                    start += self.partial_len(query.queries);
                }
            }
        }
        if partials.len() < start {
            partials.resize(start, 0.0);
        }
        let to = Disjoint::new(partials);
        pool.run(chunks.len(), |i| {
            let ChunkOfTile { start, chunk, .. } = chunks[i];
            let tile = &tiles[chunks[i].tile];
            let query = self.query_tile(tile, chunks[i].head);
            // SAFETY: each chunk has its own part.
            let partial = unsafe { to.part(start..start + self.partial_len(query.queries)) };
            let lens = [query.queries * query.head_dim, query.queries * CHUNK];
            with_buffers(lens, |[packed, scores]| {
                self.pack(tile, query, packed);
                self.chunk(tile, query, chunk, packed, scores, partial);
            });
        });
        for first in chunks.iter().filter(|chunk| chunk.chunk == 0) {
            let tile = &tiles[first.tile];
            let query = self.query_tile(tile, first.head);
            let len = self.partial_len(query.queries);
            let all = &mut partials[first.start..first.start + len * query.chunks()];
            let (state, rest) = all.split_at_mut(len);
            for partial in rest.chunks_exact(len) {
                self.merge(query, state, partial);
            }
            self.finish(tile, query, state);
        }
    }
}
