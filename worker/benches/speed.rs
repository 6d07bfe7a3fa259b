//! Prefill and decode of the default model beside candle's own
//! `quantized_llama`, on the same file, in the same run, taking turns:
//! `cargo bench --workspace --bench speed`. It takes about a minute on two idle cores.
//!
//! Prints tokens a second of both and their ratio, round by round, and exits
//! with 1 when the median of the rounds' ratios is below its floor.

use candle_core::quantized::gguf_file;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use nano_ipc::config::{DeviceKind, Dtype, WorkerConfig};
use nano_ipc::lifecycle::Lifecycle;
use nano_ipc::sampling_params::SamplingParams;
use nano_ipc::scheduler_output::{
    BlockId, NewSequence, ScheduledSequence, SchedulerOutput, SequenceId, StepId,
};
use nano_worker::backend::CpuOps;
use nano_worker::kernels::Pool;
use nano_worker::load::load_model;
use nano_worker::model_runner::ModelRunner;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROMPT: usize = 512;
const DECODE: usize = 32;
/// Tokens that one side decodes before it is the other's turn: what else the
/// machine does then falls on both.
const DECODE_TURN: usize = 8;
const BLOCK_SIZE: usize = 16;
const ROUNDS: usize = 3;
/// No round begins later than this: on a machine that has other work, candle's
/// threads wait for each other for minutes.
const BUDGET: Duration = Duration::from_secs(60);
const PREFILL_FLOOR: f64 = 1.9;
const DECODE_FLOOR: f64 = 1.2;

/// One side of the comparison: prefills a prompt, then decodes greedily.
trait Side {
    fn prefill(&mut self, prompt: &[u32]) -> u32;
    /// The token after `token_id`, which stands at `position`.
    fn decode(&mut self, token_id: u32, position: usize) -> u32;
}

struct Candle {
    model: ModelWeights,
}

impl Candle {
    fn open(path: &Path) -> Candle {
        let mut file = std::fs::File::open(path).expect("model opens");
        let content = gguf_file::Content::read(&mut file).expect("a GGUF file");
        let model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu).expect("loads");
        Candle { model }
    }

    fn step(&mut self, token_ids: &[u32], position: usize) -> u32 {
        let input = Tensor::new(token_ids, &Device::Cpu).and_then(|input| input.unsqueeze(0));
        let logits = input.and_then(|input| self.model.forward(&input, position));
        logits
            .and_then(|logits| logits.flatten_all()?.argmax(0)?.to_scalar())
            .expect("forward")
    }
}

impl Side for Candle {
    fn prefill(&mut self, prompt: &[u32]) -> u32 {
        self.step(prompt, 0)
    }

    fn decode(&mut self, token_id: u32, position: usize) -> u32 {
        self.step(&[token_id], position)
    }
}

/// The runner as it serves: plans in, tokens out.
struct Ours {
    runner: ModelRunner<CpuOps>,
    step: u64,
    sequence: u64,
}

impl Ours {
    fn open(path: &Path) -> Ours {
        let config = WorkerConfig {
            model: path.to_owned(),
            rank: 0,
            world_size: 1,
            engine_socket: PathBuf::new(),
            dtype: Dtype::Auto,
            device: DeviceKind::Cpu,
            block_size: BLOCK_SIZE as u32,
            num_kv_blocks: Some((PROMPT + DECODE).div_ceil(BLOCK_SIZE) as u32),
            kv_cache_memory_bytes: 0,
            max_model_len: None,
            max_num_seqs: 1,
            max_num_batched_tokens: PROMPT as u32,
            threads: None,
        };
        let lifecycle = Lifecycle::new(|_| ()).expect("eventfd");
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = Arc::new(Pool::new(threads).expect("threads"));
        let ops = CpuOps::new(config.dtype, Arc::clone(&pool));
        let loaded = load_model(ops, &config, &lifecycle).expect("model loads");
        Ours {
            runner: ModelRunner::new(loaded.ops, loaded.model, loaded.limits, pool).expect("room"),
            step: 0,
            sequence: 0,
        }
    }

    fn run(&mut self, mut plan: SchedulerOutput, num_tokens: usize) -> u32 {
        self.step += 1;
        plan.step_id = StepId(self.step);
        plan.scheduled.push(ScheduledSequence {
            id: SequenceId(self.sequence),
            num_tokens: num_tokens as u32,
            new_block_ids: vec![],
        });
        let output = self.runner.execute(&plan).expect("a good plan");
        output.sampled[0].token_id
    }
}

impl Side for Ours {
    fn prefill(&mut self, prompt: &[u32]) -> u32 {
        // The one before, if there was one.
        let finished = (self.sequence > 0).then_some(SequenceId(self.sequence));
        self.sequence += 1;
        let blocks = (PROMPT + DECODE).div_ceil(BLOCK_SIZE) as u32;
        let new = NewSequence {
            id: SequenceId(self.sequence),
            trace_key: 0,
            token_ids: prompt.to_vec(),
            num_prompt_tokens: prompt.len() as u32,
            num_computed_tokens: 0,
            block_ids: (0..blocks).map(BlockId).collect(),
            sampling: SamplingParams::greedy(),
        };
        let plan = SchedulerOutput {
            finished: finished.into_iter().collect(),
            new: vec![new],
            ..Default::default()
        };
        self.run(plan, prompt.len())
    }

    fn decode(&mut self, _token_id: u32, _position: usize) -> u32 {
        // The runner knows the token: it sampled it.
        self.run(SchedulerOutput::default(), 1)
    }
}

/// Seconds that both sides took for the same work.
#[derive(Clone, Copy, Default)]
struct Times {
    ours: f64,
    candle: f64,
}

impl Times {
    fn ratio(self) -> f64 {
        self.candle / self.ours
    }
}

fn seconds<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

/// One round: both prefill the prompt, then both decode, in turns.
fn round(ours: &mut Ours, candle: &mut Candle, prompt: &[u32]) -> (Times, Times) {
    let (mut our_token, our_prefill) = seconds(|| ours.prefill(prompt));
    let (mut candles_token, candles_prefill) = seconds(|| candle.prefill(prompt));
    let prefill = Times {
        ours: our_prefill,
        candle: candles_prefill,
    };
    let mut decode = Times::default();
    for start in (0..DECODE).step_by(DECODE_TURN) {
        let positions = prompt.len() + start..prompt.len() + start + DECODE_TURN;
        let turn = |side: &mut dyn Side, token_id: &mut u32| {
            let turn = || {
                for position in positions.clone() {
                    *token_id = side.decode(*token_id, position);
                }
            };
            seconds(turn).1
        };
        decode.ours += turn(ours, &mut our_token);
        decode.candle += turn(candle, &mut candles_token);
    }
    (prefill, decode)
}

fn print(what: &str, tokens: usize, times: Times) {
    println!(
        "{what:8} {:8.1} tokens/s, candle {:8.1} tokens/s, ratio {:5.2}",
        tokens as f64 / times.ours,
        tokens as f64 / times.candle,
        times.ratio()
    );
}

/// Prints the verdict; whether the floor is met.
fn judge(what: &str, rounds: &[Times], floor: f64) -> bool {
    let mut ratios: Vec<f64> = rounds.iter().map(|times| times.ratio()).collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let verdict = if median >= floor { "ok" } else { "BELOW" };
    println!("{what:8} median ratio {median:5.2}, floor {floor}: {verdict}");
    median >= floor
}

fn main() -> ExitCode {
    let path = std::env::var_os("NANO_TEST_MODEL")
        .map(PathBuf::from)
        .or_else(nano_model::default_model_path)
        .expect("NANO_TEST_MODEL, or a home directory");
    if !path.is_file() {
        eprintln!(
            "{} is missing: scripts/fetch-model fetches it, or set NANO_TEST_MODEL",
            path.display()
        );
        return ExitCode::from(2);
    }
    println!(
        "{} on {} threads, prefill of {PROMPT} tokens, decode of {DECODE}",
        path.display(),
        std::thread::available_parallelism().map_or(1, usize::from)
    );
    // Any ids will do: work does not depend on them.
    let prompt: Vec<u32> = (0..PROMPT as u32)
        .map(|i| 1000 + i * 7919 % 40_000)
        .collect();
    let (mut ours, mut candle) = (Ours::open(&path), Candle::open(&path));
    // Pages and buffers are touched once before time counts.
    round(&mut ours, &mut candle, &prompt[..16]);
    let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for number in 1..=ROUNDS {
        if number > 1 && start.elapsed() > BUDGET {
            break;
        }
        let (prefill, decode) = round(&mut ours, &mut candle, &prompt);
        println!("round {number} of {ROUNDS}");
        print("prefill", PROMPT, prefill);
        print("decode", DECODE, decode);
        prefills.push(prefill);
        decodes.push(decode);
    }
    let prefill = judge("prefill", &prefills, PREFILL_FLOOR);
    let decode = judge("decode", &decodes, DECODE_FLOOR);
    if prefill && decode {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
