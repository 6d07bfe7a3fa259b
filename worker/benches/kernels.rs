//! Our kernels at the default model's shapes, beside candle's product of the
//! same blocks in the same run: `cargo bench --workspace --bench kernels`.
//!
//! Products of one row are bound by memory (throughput in bytes of weights),
//! those of many by arithmetic (throughput in elements: 2 * m * n * k, FLOP).

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nano_model::gguf::GgmlType;
use nano_worker::kernels::{
    AttentionSpan, KvDtype, KvLayer, KvShape, PackedMatrix, Pool, Queries, Scratch,
    instruction_set, log_sum_exp, paged_attention, silu_mul,
};
use std::hint::black_box;
use std::sync::Arc;

fn scratch() -> Scratch {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Scratch::new(Arc::new(Pool::new(threads).expect("threads")))
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn matmul(c: &mut Criterion) {
    let mut scratch = scratch();
    let shapes = [
        ("qkv", GgmlType::Q4_1, 960, 576),
        ("gate_up", GgmlType::Q4_1, 3072, 576),
        ("down", GgmlType::Q4_1, 576, 1536),
        ("lm_head", GgmlType::Q8_0, 49152, 576),
    ];
    for (name, dtype, n, k) in shapes {
        let candle_dtype = match dtype {
            GgmlType::Q8_0 => GgmlDType::Q8_0,
            _ => GgmlDType::Q4_1,
        };
        let weights = Tensor::from_vec(values(n * k), (n, k), &Device::Cpu).expect("tensor");
        let blocks = QTensor::quantize(&weights, candle_dtype).expect("quantize");
        let bytes = blocks.data().expect("bytes").into_owned();
        let ours = PackedMatrix::new(dtype, n, k, &bytes).expect("fits");
        let theirs = QMatMul::from_qtensor(blocks).expect("product");
        let mut group = c.benchmark_group(format!("{name} {dtype} {}", instruction_set()));
        group.sample_size(10);
        for m in [1, 8, 512] {
            if name == "lm_head" && m > 8 {
                continue;
            }
            group.throughput(if m == 1 {
                Throughput::Bytes(bytes.len() as u64)
            } else {
                Throughput::Elements(2 * (m * n * k) as u64)
            });
            let x = values(m * k);
            let mut out = vec![0.0; m * n];
            group.bench_function(BenchmarkId::new("ours", m), |b| {
                b.iter(|| ours.matmul(black_box(&x), m, &mut out, &mut scratch));
            });
            let x = Tensor::from_vec(x, (m, k), &Device::Cpu).expect("tensor");
            group.bench_function(BenchmarkId::new("candle", m), |b| {
                b.iter(|| theirs.forward(black_box(&x)).expect("product"));
            });
        }
    }
}

fn attention(c: &mut Criterion) {
    let mut scratch = scratch();
    let shape = KvShape {
        num_blocks: 128,
        block_size: 16,
        num_kv_heads: 3,
        head_dim: 64,
    };
    let block_table: Vec<u32> = (0..128).collect();
    let x = values(2048 * 960);
    let slots: Vec<u32> = (0..2048).collect();
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let mut layer = KvLayer::new(shape, dtype);
        layer.write(&x, 960, 576, &slots, scratch.pool());
        let mut group = c.benchmark_group(format!("attention {dtype:?}"));
        for (first_position, rows) in [(0, 512), (511, 1), (2047, 1)] {
            let flops = |row: usize| 4 * 9 * 64 * (first_position + row + 1);
            group.throughput(Throughput::Elements(
                (0..rows).map(flops).sum::<usize>() as u64
            ));
            let mut out = vec![0.0; rows * 576];
            let spans = [AttentionSpan {
                rows: 0..rows,
                first_position,
                block_table: &block_table,
            }];
            let queries = Queries {
                x: &x[..rows * 960],
                row_len: 960,
                num_heads: 9,
                scale: 0.125,
            };
            group.bench_function(format!("{rows} rows from {first_position}"), |b| {
                b.iter(|| paged_attention(queries, &spans, &layer, &mut out, &mut scratch));
            });
        }
    }
}

fn the_rest(c: &mut Criterion) {
    let scratch = scratch();
    let x = values(512 * 3072);
    let mut out = vec![0.0; 512 * 1536];
    c.bench_function("silu_mul 512 x 1536", |b| {
        b.iter(|| silu_mul(black_box(&x), 1536, &mut out, scratch.pool()));
    });
    c.bench_function("log_sum_exp 49152", |b| {
        b.iter(|| log_sum_exp(black_box(&x[..49152])));
    });
    c.bench_function("a parallel loop of nothing", |b| {
        b.iter(|| scratch.pool().run(8, |i| _ = black_box(i)));
    });
}

criterion_group!(benches, matmul, attention, the_rest);
criterion_main!(benches);
