//! A core in miniature: plans steps for a runner and gathers what comes of them.

use nano_ipc::config::{DeviceKind, Dtype, WorkerConfig};
use nano_ipc::lifecycle::Lifecycle;
use nano_ipc::model_runner_output::TokenLogprobs;
use nano_ipc::sampling_params::SamplingParams;
use nano_ipc::scheduler_output::{
    BlockId, NewSequence, ScheduledSequence, SchedulerOutput, SequenceId, StepId,
};
use nano_worker::kernels::Pool;
use nano_worker::load::load_model;
use nano_worker::model_runner::ModelRunner;
use nano_worker::ops::Ops;
use std::path::Path;
use std::sync::Arc;

/// Bounds of the runner.
#[derive(Clone, Copy)]
pub struct Limits {
    pub block_size: usize,
    pub num_kv_blocks: usize,
    pub max_num_batched_tokens: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            block_size: 16,
            num_kv_blocks: 512,
            max_num_batched_tokens: 512,
        }
    }
}

/// A configuration for a model on the host.
pub fn worker_config(path: &Path, dtype: Dtype, limits: Limits) -> WorkerConfig {
    WorkerConfig {
        model: path.to_owned(),
        rank: 0,
        world_size: 1,
        engine_socket: "unused".into(),
        dtype,
        device: DeviceKind::Cpu,
        block_size: limits.block_size as u32,
        num_kv_blocks: Some(limits.num_kv_blocks as u32),
        kv_cache_memory_bytes: 0,
        max_model_len: None,
        max_num_seqs: 64,
        max_num_batched_tokens: limits.max_num_batched_tokens as u32,
        threads: Some(2),
    }
}

/// A sequence to generate.
#[derive(Clone)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub max_tokens: usize,
    /// Tokens of the prompt in one step at most.
    pub chunk: usize,
    /// Steps that pass before it enters.
    pub delay: usize,
    pub logprobs: Option<u32>,
    pub prompt_logprobs: Option<u32>,
    pub sampling: SamplingParams,
}

impl Request {
    pub fn greedy(prompt: &[u32], max_tokens: usize) -> Request {
        Request {
            prompt: prompt.to_vec(),
            max_tokens,
            chunk: usize::MAX,
            delay: 0,
            logprobs: None,
            prompt_logprobs: None,
            sampling: SamplingParams::greedy(),
        }
    }
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    pub token_ids: Vec<u32>,
    pub logprobs: Vec<TokenLogprobs>,
    pub prompt_logprobs: Vec<f32>,
    /// Why it ended early.
    pub failed: Option<String>,
}

struct Running {
    request: usize,
    id: SequenceId,
    computed: usize,
    blocks: Vec<u32>,
}

/// A core in miniature.
pub struct Driver<B: Ops> {
    pub runner: ModelRunner<B>,
    limits: Limits,
    step: u64,
    next_id: u64,
    free: Vec<u32>,
}

impl<B: Ops> Driver<B> {
    pub fn open(ops: B, path: &Path, limits: Limits) -> Driver<B> {
        let pool = Arc::new(Pool::new(2).expect("threads"));
        let lifecycle = Lifecycle::new(|_| ()).expect("eventfd");
        let config = worker_config(path, Dtype::Auto, limits);
        let loaded = load_model(ops, &config, &lifecycle).expect("model loads");
        let runner = ModelRunner::new(loaded.ops, loaded.model, loaded.limits, pool)
            .expect("room for the cache");
        Driver {
            runner,
            limits,
            step: 0,
            next_id: 0,
            // Out of order, so that no block lies where its position would put it.
            free: (0..limits.num_kv_blocks as u32)
                .map(|i| i * 37 % limits.num_kv_blocks as u32)
                .collect(),
        }
    }

    /// Runs requests side by side until each has its tokens.
    pub fn run(&mut self, requests: &[Request]) -> Vec<Generated> {
        let generated = self.run_to_end(requests);
        assert!(generated.iter().all(|g| g.failed.is_none()));
        generated
    }

    /// Runs requests side by side until each has its tokens or has failed. Blocks
    /// that come free are the first to be used again.
    pub fn run_to_end(&mut self, requests: &[Request]) -> Vec<Generated> {
        let mut generated = vec![Generated::default(); requests.len()];
        let mut running: Vec<Running> = Vec::new();
        let mut finished: Vec<SequenceId> = Vec::new();
        let first_step = self.step;
        loop {
            let round = (self.step - first_step) as usize;
            let mut plan = SchedulerOutput {
                finished: std::mem::take(&mut finished),
                ..Default::default()
            };
            for (index, request) in requests.iter().enumerate() {
                if request.delay == round {
                    running.push(self.enter(index, request, &mut plan));
                }
            }
            let done = running.is_empty() && requests.iter().all(|r| r.delay <= round);
            if done && plan.finished.is_empty() {
                return generated;
            }
            for sequence in &mut running {
                let scheduled = self.schedule(sequence, &requests[sequence.request], &generated);
                plan.scheduled.push(scheduled);
            }
            self.step += 1;
            plan.step_id = StepId(self.step);
            let output = self.runner.execute(&plan).expect("a good plan");
            self.runner.states().check_integrity();
            for (id, reason) in output.failed {
                let sequence = running.iter().find(|s| s.id == id).expect("scheduled");
                generated[sequence.request].failed = Some(reason);
            }
            for (id, logprobs) in output.prompt_logprobs {
                let sequence = running.iter().find(|s| s.id == id).expect("scheduled");
                generated[sequence.request]
                    .prompt_logprobs
                    .extend(logprobs.iter().map(|l| l.logprob));
            }
            for sampled in output.sampled {
                let sequence = running.iter().find(|s| s.id == sampled.id);
                let to = &mut generated[sequence.expect("scheduled").request];
                to.token_ids.push(sampled.token_id);
                to.logprobs.extend(sampled.logprobs);
            }
            running.retain_mut(|sequence| {
                let index = sequence.request;
                let ends = generated[index].token_ids.len() == requests[index].max_tokens
                    || generated[index].failed.is_some();
                if ends {
                    finished.push(sequence.id);
                    self.free.append(&mut sequence.blocks);
                }
                !ends
            });
        }
    }

    fn enter(&mut self, index: usize, request: &Request, plan: &mut SchedulerOutput) -> Running {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        plan.new.push(NewSequence {
            id,
            trace_key: id.0,
            token_ids: request.prompt.clone(),
            num_prompt_tokens: request.prompt.len() as u32,
            num_computed_tokens: 0,
            block_ids: vec![],
            sampling: SamplingParams {
                logprobs: request.logprobs,
                prompt_logprobs: request.prompt_logprobs,
                ..request.sampling.clone()
            },
        });
        Running {
            request: index,
            id,
            computed: 0,
            blocks: vec![],
        }
    }

    fn schedule(
        &mut self,
        sequence: &mut Running,
        request: &Request,
        generated: &[Generated],
    ) -> ScheduledSequence {
        let len = request.prompt.len() + generated[sequence.request].token_ids.len();
        let num_tokens = (len - sequence.computed).min(request.chunk);
        sequence.computed += num_tokens;
        let needed = sequence.computed.div_ceil(self.limits.block_size);
        let new_blocks: Vec<u32> = (sequence.blocks.len()..needed)
            .map(|_| self.free.pop().expect("a free block"))
            .collect();
        sequence.blocks.extend(&new_blocks);
        ScheduledSequence {
            id: sequence.id,
            num_tokens: num_tokens as u32,
            new_block_ids: new_blocks.into_iter().map(BlockId).collect(),
        }
    }
}
