//! Every kernel against plain loops written apart from it, and what all kernels
//! promise: rows that do not depend on each other, on threads, or on the
//! instruction set.

use super::activations::QuantRows;
use super::*;
use crate::kernels::simd::{Kernel, LANES, Portable, Simd, dispatch};
use half::f16;
use nano_model::gguf::GgmlType;
use proptest::prelude::*;
use std::sync::Arc;

/// Small cases under valgrind and Miri alike; the shapes matter, not the number.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(count)
    }
}

/// Numbers in -1..1 that depend on `seed` alone (splitmix64).
fn noise(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64)
        .map(|i| {
            let mut z = (seed << 32 | i)
                .wrapping_add(1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Rows of random blocks of a type, with scales that are small numbers.
fn weights(dtype: GgmlType, elements: usize, seed: u64) -> Vec<u8> {
    let blocks = elements / dtype.block_size() as usize;
    let len = dtype.block_bytes() as usize;
    let mut bytes: Vec<u8> = noise(seed, blocks * len)
        .iter()
        .map(|x| ((x + 1.0) * 128.0) as u8)
        .collect();
    let halves: &[usize] = match dtype {
        GgmlType::F32 => {
            return noise(seed, elements)
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect();
        }
        GgmlType::F16 => &[0],
        GgmlType::BF16 => {
            // Upper halves of small f32.
            return noise(seed, elements)
                .iter()
                .flat_map(|x| (((x.to_bits()) >> 16) as u16).to_le_bytes())
                .collect();
        }
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 => &[0],
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q6_K => &[208],
    };
    for (i, block) in bytes.chunks_exact_mut(len).enumerate() {
        for (&at, x) in halves.iter().zip(noise(seed ^ i as u64 ^ 77, 2)) {
            block[at..at + 2].copy_from_slice(&f16::from_f32(x / 16.0).to_le_bytes());
        }
    }
    bytes
}

fn scratch(threads: usize) -> Scratch {
    Scratch::new(Arc::new(Pool::new(threads).expect("threads")))
}

fn any_dtype() -> impl Strategy<Value = GgmlType> {
    prop::sample::select(GgmlType::ALL.to_vec())
}

/// `x * w^T` in f64.
fn product(x: &[f32], w: &[f32], m: usize, rows: usize, cols: usize) -> Vec<f64> {
    let dot = |i: usize, n: usize| {
        (0..cols)
            .map(|k| f64::from(x[i * cols + k]) * f64::from(w[n * cols + k]))
            .sum()
    };
    (0..m * rows).map(|i| dot(i / rows, i % rows)).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(cases(60))]

    /// Quantized activations are the only difference to the exact product: with
    /// activations that are whole multiples of their scale there is none.
    #[test]
    fn matmul_equals_the_plain_product(
        dtype in any_dtype(), rows in 1usize..40, blocks in 1usize..4, m in 1usize..20, seed: u32,
    ) {
        let seed = u64::from(seed);
        let cols = 32.max(dtype.block_size() as usize) * blocks;
        let bytes = weights(dtype, rows * cols, seed);
        let mut w = vec![0.0; rows * cols];
        dequantize(dtype, &bytes, &mut w).expect("fits");
        // Integers with 127 in every group: scale 1, no rounding.
        let x: Vec<f32> = noise(seed + 1, m * cols).iter().enumerate()
            .map(|(i, x)| if i % 32 == 5 { 127.0 } else { (x * 127.0).round() }).collect();
        let matrix = PackedMatrix::new(dtype, rows, cols, &bytes).expect("fits");
        let mut out = vec![f32::NAN; m * rows];
        matrix.matmul(&x, m, &mut out, &mut scratch(2));
        let exact = product(&x, &w, m, rows, cols);
        let magnitude = product(
            &x.iter().map(|x| x.abs()).collect::<Vec<_>>(),
            &w.iter().map(|w| w.abs()).collect::<Vec<_>>(), m, rows, cols);
        // K types and minima: sums of terms larger than the elements.
        for ((out, exact), magnitude) in out.iter().zip(exact).zip(magnitude) {
            prop_assert!((f64::from(*out) - exact).abs() <= 2e-6 * magnitude + 127.0 * 32.0 * 1e-5,
                "{dtype}: {out} {exact} {magnitude}");
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_others(
        dtype in any_dtype(), rows in 1usize..70, m in 2usize..30, pick: prop::sample::Index, seed: u32,
    ) {
        let cols = 256;
        let bytes = weights(dtype, rows * cols, u64::from(seed));
        let matrix = PackedMatrix::new(dtype, rows, cols, &bytes).expect("fits");
        let x = noise(u64::from(seed) + 9, m * cols);
        let mut all = vec![f32::NAN; m * rows];
        matrix.matmul(&x, m, &mut all, &mut scratch(3));
        let row = pick.index(m);
        let mut alone = vec![f32::NAN; rows];
        matrix.matmul(&x[row * cols..][..cols], 1, &mut alone, &mut scratch(1));
        prop_assert_eq!(bits(&alone), bits(&all[row * rows..][..rows]));
    }

    #[test]
    fn stacked_matrices_give_their_outputs_side_by_side(seed: u32, m in 1usize..12) {
        let cols = 256;
        let parts = [(GgmlType::Q4_K, 24), (GgmlType::F32, 9), (GgmlType::Q6_K, 3), (GgmlType::Q8_0, 16)];
        let x = noise(u64::from(seed), m * cols);
        let matrix = |(dtype, rows)| {
            PackedMatrix::new(dtype, rows, cols, &weights(dtype, rows * cols, 3)).expect("fits")
        };
        let stacked = PackedMatrix::stack(parts.map(matrix)).expect("equal widths");
        let mut all = vec![f32::NAN; m * stacked.rows()];
        stacked.matmul(&x, m, &mut all, &mut scratch(2));
        let mut first = 0;
        for part in parts {
            let mut own = vec![f32::NAN; m * part.1];
            matrix(part).matmul(&x, m, &mut own, &mut scratch(1));
            for row in 0..m {
                prop_assert_eq!(
                    bits(&own[row * part.1..][..part.1]),
                    bits(&all[row * stacked.rows() + first..][..part.1])
                );
            }
            first += part.1;
        }
    }

    #[test]
    fn quantized_rows_stay_within_half_a_step(seed: u32, rows in 1usize..20) {
        let cols = 96;
        let x = noise(u64::from(seed), rows * cols);
        let mut quant = QuantRows::default();
        quant.quantize(&x, rows, cols, &Pool::new(1).expect("threads"));
        let mut at = 0;
        for block in activations::row_blocks(rows) {
            for group in 0..cols / GROUP {
                for row in block.clone() {
                    let x = &x[row * cols + group * GROUP..][..GROUP];
                    let most = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                    let scale = quant.scales[at];
                    prop_assert!((scale - most / 127.0).abs() <= 1e-7);
                    let quants = quant.quants[at].as_flattened();
                    for (x, &q) in x.iter().zip(quants) {
                        prop_assert!((x - scale * f32::from(q)).abs() <= 0.5001 * scale);
                    }
                    let sum: i32 = quants.iter().map(|&q| i32::from(q)).sum();
                    prop_assert_eq!(quant.sums[at], sum as f32);
                    at += 1;
                }
            }
        }
    }

    #[test]
    fn rms_norm_and_silu_equal_plain_loops(seed: u32, rows in 1usize..5, width in 1usize..70) {
        let seed = u64::from(seed);
        let pool = Pool::new(2).expect("threads");
        let (x, delta) = (noise(seed, rows * width), noise(seed + 1, rows * width));
        let weight = noise(seed + 2, width);
        let mut residual = x.clone();
        let mut out = vec![f32::NAN; rows * width];
        add_rms_norm(&mut residual, &delta, &weight, 1e-5, &mut out, &pool);
        for row in 0..rows {
            let at = row * width..(row + 1) * width;
            let sum: Vec<f64> = at.clone().map(|i| f64::from(x[i] + delta[i])).collect();
            let square: f64 = sum.iter().map(|x| x * x).sum();
            let factor = 1.0 / (square / width as f64 + 1e-5).sqrt();
            for (i, at) in at.enumerate() {
                prop_assert_eq!(residual[at], x[at] + delta[at]);
                let exact = sum[i] * factor * f64::from(weight[i]);
                prop_assert!((f64::from(out[at]) - exact).abs() < 1e-5);
            }
        }
        let mut again = vec![f32::NAN; rows * width];
        rms_norm(&residual, &weight, 1e-5, &mut again, &pool);
        prop_assert_eq!(bits(&again), bits(&out));

        let gate_up: Vec<f32> = noise(seed + 3, 2 * rows * width).iter().map(|x| x * 20.0).collect();
        silu_mul(&gate_up, width, &mut out, &pool);
        for (i, out) in out.iter().enumerate() {
            let at = i / width * 2 * width + i % width;
            let (gate, up) = (f64::from(gate_up[at]), f64::from(gate_up[at + width]));
            let exact = gate / (1.0 + (-gate).exp()) * up;
            prop_assert!((f64::from(*out) - exact).abs() <= 1e-6 * exact.abs() + 1e-7);
        }
    }

    #[test]
    fn rope_rotates_pairs(seed: u32, half in 1usize..20, more in 0usize..9, heads in 1usize..4) {
        let head_dim = 2 * half + more;
        let positions = [3u32, 0, 7];
        let row_len = heads * head_dim + 5;
        let angles = noise(u64::from(seed), 8 * half);
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
        let x = noise(u64::from(seed) + 1, positions.len() * row_len);
        let mut out = x.clone();
        let table = RopeAngles { half_dim: half, cos: &cos, sin: &sin };
        rope(&mut out, row_len, heads, head_dim, &positions, table, &Pool::new(2).expect("threads"));
        for (i, (&out, &x)) in out.iter().zip(&x).enumerate() {
            let (row, col) = (i / row_len, i % row_len);
            let (head, at) = (col / head_dim, col % head_dim);
            let exact = if head >= heads || at >= 2 * half {
                x
            } else {
                let angle = positions[row] as usize * half + at % half;
                let partner = i - at + (at + half) % (2 * half);
                let sign = if at < half { -1.0 } else { 1.0 };
                x * cos[angle] + sign * noise(u64::from(seed) + 1, positions.len() * row_len)[partner] * sin[angle]
            };
            prop_assert!((out - exact).abs() < 1e-6);
        }
    }
}

#[test]
fn what_is_no_number_shows_and_does_not_crash() {
    let cols = 64;
    for dtype in [
        GgmlType::Q4_1,
        GgmlType::Q4_0,
        GgmlType::Q8_0,
        GgmlType::F32,
    ] {
        let matrix = PackedMatrix::new(dtype, 9, cols, &weights(dtype, 9 * cols, 1)).expect("fits");
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = noise(5, 3 * cols);
            x[cols + 40] = bad;
            let mut out = vec![0.0; 27];
            matrix.matmul(&x, 3, &mut out, &mut scratch(1));
            assert!(
                out[9..18].iter().all(|x| !x.is_finite()),
                "{dtype} {bad}: {out:?}"
            );
            assert!(out[..9].iter().chain(&out[18..]).all(|x| x.is_finite()));
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let error = |dtype, rows, cols, len| {
        PackedMatrix::new(dtype, rows, cols, &vec![0; len])
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(
        error(GgmlType::Q4_1, 2, 33, 40),
        "33 elements are not whole Q4_1 blocks of 32"
    );
    assert_eq!(
        error(GgmlType::Q4_1, 2, 64, 79),
        "128 elements of Q4_1 need 80 bytes, not 79"
    );
    let narrow = PackedMatrix::from_f32(1, 2, &[0.0; 2]);
    let wide = PackedMatrix::from_f32(1, 3, &[0.0; 3]);
    assert_eq!(
        PackedMatrix::stack([narrow, wide]).expect_err("refused"),
        ShapeError::Columns(3, 2)
    );
    assert!(dequantize_row(GgmlType::Q8_0, &[0; 68], 2, &mut [0.0; 32]).is_err());
    assert!(dequantize_row(GgmlType::Q8_0, &[0; 68], 1, &mut [0.0; 32]).is_ok());
}

/// Sequences over one cache, and their attention.
struct Paged {
    shape: KvShape,
    num_heads: usize,
    layer: KvLayer,
    /// `[position][kv_head][head_dim]` of each sequence.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    tables: Vec<Vec<u32>>,
}

impl Paged {
    /// Writes sequences of these lengths into blocks that alternate between them.
    fn new(
        lens: &[usize],
        block_size: usize,
        heads: (usize, usize),
        head_dim: usize,
        dtype: KvDtype,
        seed: u64,
    ) -> Paged {
        let per_sequence = lens.iter().max().map_or(0, |len| len.div_ceil(block_size));
        let shape = KvShape {
            num_blocks: per_sequence * lens.len() + 1,
            block_size,
            num_kv_heads: heads.1,
            head_dim,
        };
        let mut layer = KvLayer::new(shape, dtype);
        let pool = Pool::new(2).expect("threads");
        let width = heads.1 * head_dim;
        // What other sequences left behind must not matter.
        let stale = vec![f32::NAN; 2 * width * shape.num_blocks * block_size];
        let slots: Vec<u32> = (0..(shape.num_blocks * block_size) as u32).collect();
        layer.write(&stale, 2 * width, 0, &slots, &pool);
        let (mut keys, mut values, mut tables) = (Vec::new(), Vec::new(), Vec::new());
        for (i, &len) in lens.iter().enumerate() {
            let round = |x: f32| f16::from_f32(x).to_f32();
            let x: Vec<f32> = noise(seed + i as u64, len * 2 * width)
                .iter()
                .map(|x| round(x * 2.0))
                .collect();
            let table: Vec<u32> = (0..per_sequence)
                .map(|b| (1 + b * lens.len() + i) as u32)
                .collect();
            let slots: Vec<u32> = (0..len)
                .map(|p| table[p / block_size] * block_size as u32 + (p % block_size) as u32)
                .collect();
            layer.write(&x, 2 * width, 0, &slots, &pool);
            keys.push(
                x.chunks_exact(2 * width)
                    .flat_map(|r| r[..width].to_vec())
                    .collect(),
            );
            values.push(
                x.chunks_exact(2 * width)
                    .flat_map(|r| r[width..].to_vec())
                    .collect(),
            );
            tables.push(table);
        }
        Paged {
            shape,
            num_heads: heads.0,
            layer,
            keys,
            values,
            tables,
        }
    }

    fn queries(&self, sequence: usize, len: usize) -> Vec<f32> {
        noise(
            1000 + sequence as u64,
            len * self.num_heads * self.shape.head_dim,
        )
    }

    /// Attention of (sequence, range of positions) as one batch.
    fn run(&self, spans: &[(usize, std::ops::Range<usize>)], threads: usize) -> Vec<f32> {
        let width = self.num_heads * self.shape.head_dim;
        let (mut x, mut of) = (Vec::new(), Vec::new());
        for (sequence, positions) in spans {
            let row = x.len() / width;
            x.extend_from_slice(&self.queries(*sequence, positions.end)[positions.start * width..]);
            of.push(AttentionSpan {
                rows: row..row + positions.len(),
                first_position: positions.start,
                block_table: &self.tables[*sequence],
            });
        }
        let mut out = vec![f32::NAN; x.len()];
        let queries = Queries {
            x: &x,
            row_len: width,
            num_heads: self.num_heads,
            scale: 0.3,
        };
        paged_attention(queries, &of, &self.layer, &mut out, &mut scratch(threads));
        out
    }

    /// Plain attention in f64 of one position.
    fn plain(&self, sequence: usize, position: usize) -> Vec<f64> {
        let dim = self.shape.head_dim;
        let width = self.num_heads * dim;
        let q = self.queries(sequence, position + 1)[position * width..].to_vec();
        let mut out = Vec::new();
        for (head, q) in q.chunks_exact(dim).enumerate() {
            let kv = head / (self.num_heads / self.shape.num_kv_heads);
            let at = |p: usize| (p * self.shape.num_kv_heads + kv) * dim;
            let score = |p: usize| -> f64 {
                let k = &self.keys[sequence][at(p)..][..dim];
                q.iter()
                    .zip(k)
                    .map(|(q, k)| f64::from(*q) * f64::from(*k))
                    .sum::<f64>()
                    * 0.3
            };
            let weights: Vec<f64> = (0..=position).map(|p| score(p).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..dim {
                let value = |p: usize| f64::from(self.values[sequence][at(p) + d]);
                out.push(
                    weights
                        .iter()
                        .enumerate()
                        .map(|(p, w)| w * value(p))
                        .sum::<f64>()
                        / sum,
                );
            }
        }
        out
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn attention_equals_plain_loops_however_it_is_cut(
        heads in prop::sample::select(vec![(1, 1), (3, 1), (9, 3), (4, 2), (7, 1), (14, 1), (8, 2), (5, 1)]),
        head_dim in prop::sample::select(vec![8usize, 16, 24, 64]),
        block_size in prop::sample::select(vec![8usize, 16, 32, 72]),
        lens in prop::collection::vec(1usize..200, 1..3),
        half: bool, cut: prop::sample::Index, threads in 1usize..4, seed: u16,
    ) {
        let dtype = if half { KvDtype::F16 } else { KvDtype::F32 };
        let paged = Paged::new(&lens, block_size, heads, head_dim, dtype, u64::from(seed));
        let width = heads.0 * head_dim;
        let spans: Vec<_> = lens.iter().enumerate().map(|(i, &len)| (i, 0..len)).collect();
        let whole = paged.run(&spans, threads);
        for row in [0, lens[0] / 2, lens[0] - 1] {
            for (out, exact) in whole[row * width..].iter().zip(paged.plain(0, row)) {
                prop_assert!((f64::from(*out) - exact).abs() < 2e-5, "{out} {exact}");
            }
        }
        // The last sequence in two steps, the others behind it.
        let (last, len) = (lens.len() - 1, lens[lens.len() - 1]);
        let at = cut.index(len);
        let before: usize = lens[..last].iter().sum();
        let tail = paged.run(&[(last, at..len)], 1);
        prop_assert_eq!(bits(&tail), bits(&whole[(before + at) * width..]));
        // One row alone on threads that split it by chunks.
        let row = paged.run(&[(last, at..at + 1)], 4);
        prop_assert_eq!(bits(&row), bits(&tail[..width]));
    }
}

#[test]
fn attention_does_not_depend_on_the_block_size() {
    let run = |block_size| {
        Paged::new(&[150, 70], block_size, (6, 2), 32, KvDtype::F16, 8)
            .run(&[(0, 0..150), (1, 69..70)], 2)
    };
    assert_eq!(bits(&run(8)), bits(&run(64)));
    assert_eq!(bits(&run(8)), bits(&run(24)));
}

/// All operations of an instruction set on two vectors and some bytes.
struct Everything([[f32; 8]; 4], [u8; 32], [i8; 32]);

impl Kernel for &Everything {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let Everything(floats, u, i) = self;
        let x: [S::F; 4] = floats.each_ref().map(|x| s.load(x));
        let [a, b, c, _] = x;
        let small = |x| s.round(s.max(s.splat(-100.0), s.min(s.splat(100.0), x)));
        let mut out: Vec<f32> = Vec::new();
        for x in [
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.mul_add(a, b, c),
            s.max(a, b),
            s.min(a, b),
            s.round(a),
            s.exp2_integral(small(a)),
            s.zero_below(a, b, c),
            s.load_f16(&s.to_f16(a)),
            s.load_bf16(&std::array::from_fn(|k| u16::from(u[k]) << 5)),
            s.to_f32(s.max_i32(s.abs_bits(a), s.abs_bits(b))),
        ] {
            let mut lanes = [0.0; LANES];
            s.store(x, &mut lanes);
            out.extend(lanes);
        }
        out.extend([
            s.sum(a),
            s.max_lane(b),
            s.max_lane_i32(s.abs_bits(c)) as f32,
        ]);
        let signed = s.load_bytes(&i.map(|x| x as u8));
        let unsigned = s.load_bytes(u);
        let quad = i.first_chunk().expect("32 bytes");
        let pairs = s.dot_pairs(s.low_nibbles(unsigned), s.splat4(quad));
        let more = s.dot_pairs(s.high_nibbles(unsigned), signed);
        let signs = s.dot_pairs(s.abs_bytes(signed), s.apply_sign(s.splat4(quad), signed));
        for x in [
            s.widen_pairs(s.add_i16(pairs, more)),
            s.add_i32(s.widen_pairs(signs), s.widen_pairs(s.zero_i16())),
            s.zero_i32(),
        ] {
            let mut lanes = [0.0; LANES];
            s.store(s.to_f32(x), &mut lanes);
            out.extend(lanes);
        }
        let bytes = s.to_bytes(x.map(small));
        out.iter()
            .map(|x| x.to_bits())
            .chain(bytes.iter().map(|&x| x as u32))
            .collect()
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn instruction_sets_agree(
        floats in prop::array::uniform4(prop::array::uniform8(-1e5f32..1e5)),
        u: [u8; 32],
        i in prop::array::uniform32(-127i8..=127),
    ) {
        let all = Everything(floats, u, i);
        prop_assert_eq!(dispatch(&all), (&all).run(Portable));
    }
}
