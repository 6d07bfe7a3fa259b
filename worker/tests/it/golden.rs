//! Golden data: what it says and how it is compared.

use crate::driver::{self, Driver, Request};
use nano_model::ModelSource;
use nano_worker::forward_batch::ForwardBatch;
use nano_worker::models::{self, Model, ModelLoader};
use nano_worker::ops::Ops;
use nano_worker::weights::Weights;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A file below `tests/golden/` of the repository.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(name)
}

pub fn read<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    let path = path(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[derive(Deserialize)]
pub struct Cases {
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Case {
    pub name: String,
    pub input_ids: Vec<u32>,
    #[serde(alias = "top20")]
    pub top: Top,
    pub logsumexp: f64,
    pub prompt_logprobs: Vec<Option<f32>>,
    pub greedy: Greedy,
    pub last_logits: Option<Vec<f32>>,
}

/// Largest logits at the last position.
#[derive(Deserialize)]
pub struct Top {
    pub ids: Vec<u32>,
    pub logits: Vec<f32>,
}

#[derive(Deserialize)]
pub struct Greedy {
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// Best minus second logit at each step.
    pub margin: Vec<f32>,
}

/// How far a result may be from the golden one.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Largest difference of a logit.
    pub max: f32,
    /// Mean difference of a logit.
    pub mean: f32,
    /// Largest difference of a log-probability.
    pub logprob: f32,
    /// Greedy ids are compared up to the first step whose margin is below it.
    pub margin: f32,
}

impl Tolerance {
    /// Arithmetic in f32: differs by rounding alone.
    pub const fn f32(max: f32) -> Tolerance {
        Tolerance {
            max,
            mean: max,
            logprob: 1e-3,
            margin: 0.0,
        }
    }

    /// Arithmetic that rounds more: ids are compared where the margin says that
    /// they must agree, and a log-probability may move twice as far as a logit.
    pub const fn lossy(max: f32, mean: f32) -> Tolerance {
        Tolerance {
            max,
            mean,
            logprob: 2.0 * max,
            margin: max,
        }
    }
}

/// A bare model with a cache for one sequence.
pub struct Bare<B: Ops> {
    ops: B,
    model: Box<dyn Model<B>>,
    kv_cache: B::KvCache,
    logits: B::Buffer,
    batch: ForwardBatch,
    vocab_size: usize,
    num_blocks: usize,
}

const BLOCK_SIZE: usize = 16;

impl<B: Ops> Bare<B> {
    pub fn open(mut ops: B, path: &Path, positions: usize) -> Bare<B> {
        let source = ModelSource::open(path).expect("model opens");
        let config = source.config().expect("configuration is good");
        let weights = Weights::open(&source).expect("weights open");
        let model = models::load(ModelLoader {
            config: &config,
            weights: &weights,
            ops: &mut ops,
            max_rows: positions,
            max_positions: positions,
            progress: &mut |_, _| Ok(()),
        })
        .expect("model loads");
        let num_blocks = positions.div_ceil(BLOCK_SIZE);
        let shape = model.kv_cache_shape(num_blocks, BLOCK_SIZE);
        Bare {
            kv_cache: ops.new_kv_cache(shape).expect("room for the cache"),
            logits: ops.new_buffer(1, config.vocab_size).expect("room"),
            ops,
            model,
            batch: ForwardBatch::new(BLOCK_SIZE),
            vocab_size: config.vocab_size,
            num_blocks,
        }
    }

    /// Logits behind the last token.
    pub fn last_logits(&mut self, token_ids: &[u32]) -> Vec<f32> {
        self.last_logits_in_chunks(token_ids, token_ids.len())
    }

    /// The same, computed in steps of so many tokens.
    pub fn last_logits_in_chunks(&mut self, token_ids: &[u32], chunk: usize) -> Vec<f32> {
        for (index, chunk_ids) in token_ids.chunks(chunk).enumerate() {
            self.batch.clear();
            // Blocks in reverse, so that none lies where its position would put it.
            let blocks = (0..self.num_blocks as u32).rev();
            self.batch.push(chunk_ids, index * chunk, blocks);
            self.model
                .forward(&mut self.ops, &self.batch, &mut self.kv_cache)
                .expect("forward");
        }
        let last_row = self.batch.rows() - 1;
        self.model
            .logits(&mut self.ops, &[last_row], &mut self.logits)
            .expect("logits");
        let logits = self.ops.read(&mut self.logits, 1).expect("read").to_vec();
        assert_eq!(logits.len(), self.vocab_size);
        logits
    }
}

/// Compares logits, prompt log-probabilities and greedy ids of every case.
/// `ops` makes a fresh backend.
pub fn check<B: Ops>(ops: impl Fn() -> B, path: &Path, cases: &[Case], tolerance: Tolerance) {
    assert!(!cases.is_empty());
    let longest = cases.iter().map(|c| c.input_ids.len()).max().unwrap_or(0);
    let mut bare = Bare::open(ops(), path, longest);
    let mut driver = Driver::open(ops(), path, driver::Limits::default());
    for case in cases {
        let what = format!("{} {}", path.display(), case.name);
        check_logits(&what, &bare.last_logits(&case.input_ids), case, tolerance);

        let steps = case.greedy.ids.len();
        let generated = driver.run(&[Request {
            prompt_logprobs: Some(0),
            logprobs: Some(0),
            ..Request::greedy(&case.input_ids, steps)
        }]);
        let generated = &generated[0];
        check_prompt_logprobs(&what, &generated.prompt_logprobs, case, tolerance);
        let compared = case
            .greedy
            .margin
            .iter()
            .position(|&margin| margin < tolerance.margin)
            .unwrap_or(steps);
        assert_eq!(
            generated.token_ids[..compared],
            case.greedy.ids[..compared],
            "{what}: greedy ids"
        );
        for (step, expected) in case.greedy.logprobs[..compared].iter().enumerate() {
            let difference = (generated.logprobs[step].logprob - expected).abs();
            assert!(
                difference < tolerance.logprob,
                "{what}: log-probability of greedy step {step} is off by {difference}"
            );
        }
    }
}

fn check_logits(what: &str, logits: &[f32], case: &Case, tolerance: Tolerance) {
    let Top { ids, logits: top } = &case.top;
    let of_top = ids
        .iter()
        .map(|&id| logits[id as usize])
        .zip(top.iter().copied());
    let of_all = case.last_logits.as_deref().unwrap_or_default();
    let of_all = logits.iter().copied().zip(of_all.iter().copied());
    let differences: Vec<f32> = of_top.chain(of_all).map(|(a, b)| (a - b).abs()).collect();
    let max = differences.iter().copied().fold(0.0, f32::max);
    let mean = differences.iter().sum::<f32>() / differences.len() as f32;
    assert!(
        max < tolerance.max && mean < tolerance.mean,
        "{what}: logits are off by {max}, on average by {mean}"
    );
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let difference = (total.ln() - case.logsumexp).abs();
    assert!(
        difference < f64::from(tolerance.max),
        "{what}: logsumexp is off by {difference}"
    );
}

fn check_prompt_logprobs(what: &str, computed: &[f32], case: &Case, tolerance: Tolerance) {
    let expected: Vec<f32> = case
        .prompt_logprobs
        .iter()
        .skip(1)
        .flatten()
        .copied()
        .collect();
    assert_eq!(computed.len(), expected.len(), "{what}: prompt logprobs");
    for (position, (a, b)) in computed.iter().zip(&expected).enumerate() {
        assert!(
            (a - b).abs() < tolerance.logprob,
            "{what}: prompt logprob {position}: {a}, expected {b}"
        );
    }
}
