//! A worker that speaks the real protocol and computes nothing. It records
//! what the real one does, so that its traces are whole.

use crate::doubles::mock_model::MockModel;
use nano_ipc::config::WorkerConfig;
use nano_ipc::connection::{Connection, ConnectionError};
use nano_ipc::engine_info::ModelRunnerInfo;
use nano_ipc::lifecycle::boottime_ns;
use nano_ipc::model_runner_output::ModelRunnerOutput;
use nano_ipc::recorder;
use nano_ipc::role::Role;
use nano_ipc::scheduler_output::SchedulerOutput;
use nano_ipc::to_core::{Hello, PROTOCOL_VERSION, ToCore, WorkerLoaded};
use nano_ipc::to_worker::{StepMark, ToWorker};
use nano_trace::{Event, Flow, slice, slice_with};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::time::Duration;

/// What a mock worker claims to be, and how slow it is.
#[derive(Clone, Debug)]
pub struct MockWorker {
    /// Tensor-parallel rank.
    pub rank: u32,
    /// Tokens a KV block holds.
    pub block_size: u32,
    /// KV blocks that it reports.
    pub num_kv_blocks: u32,
    /// Longest sequence that it reports.
    pub max_model_len: u32,
    /// Token ids are below it.
    pub vocab_size: u32,
    /// How long it seems to load.
    pub load_time: Duration,
    /// Added to every step.
    pub step_time: Duration,
    /// The step that never ends, if there is one.
    pub endless_step: Option<u64>,
    /// The first step from this number on that computes something takes so much
    /// longer, if there is one.
    pub slow_step: Cell<Option<(u64, Duration)>>,
}

impl MockWorker {
    /// As the launcher's configuration says; what that leaves open is made up.
    ///
    /// `NANO_MOCK_LOAD_MS` and `NANO_MOCK_STEP_MS` are the times of loading and
    /// of a step in milliseconds, `NANO_MOCK_VOCAB_SIZE` is the vocabulary's
    /// size (49152, as SmolLM2's), `NANO_MOCK_ENDLESS_STEP` the number of a step
    /// that never ends, and `NANO_MOCK_SLOW_STEP` that from which on one takes
    /// `NANO_MOCK_SLOW_MS` longer.
    ///
    /// # Errors
    /// When one of these is no number.
    pub fn from_config(config: &WorkerConfig) -> Result<MockWorker, String> {
        Ok(MockWorker {
            rank: config.rank,
            block_size: config.block_size,
            num_kv_blocks: config.num_kv_blocks.unwrap_or(512),
            max_model_len: config.max_model_len.unwrap_or(8192),
            vocab_size: number_from_env("NANO_MOCK_VOCAB_SIZE")?.unwrap_or(49152),
            load_time: Duration::from_millis(
                number_from_env("NANO_MOCK_LOAD_MS")?.unwrap_or(0).into(),
            ),
            step_time: Duration::from_millis(
                number_from_env("NANO_MOCK_STEP_MS")?.unwrap_or(0).into(),
            ),
            endless_step: number_from_env("NANO_MOCK_ENDLESS_STEP")?.map(u64::from),
            slow_step: Cell::new(
                number_from_env("NANO_MOCK_SLOW_STEP")?
                    .zip(number_from_env("NANO_MOCK_SLOW_MS")?)
                    .map(|(step, ms)| (step.into(), Duration::from_millis(ms.into()))),
            ),
        })
    }

    /// Serves the core until it closes the connection.
    ///
    /// # Errors
    /// When the core breaks the protocol; it is told so before.
    pub fn serve(&self, mut core: Connection, run: u64) -> Result<(), String> {
        match self.converse(&mut core, run) {
            Err(Failure::Connection(ConnectionError::Closed)) => Ok(()),
            Err(Failure::Connection(error)) => Err(error.to_string()),
            Err(Failure::Protocol(error)) => {
                // The core may be gone already; the error is returned anyway.
                let _ = core.send(&ToCore::Fatal(error.clone()));
                Err(error)
            }
            Ok(never) => match never {},
        }
    }

    fn converse(
        &self,
        core: &mut Connection,
        run: u64,
    ) -> Result<std::convert::Infallible, Failure> {
        let load = slice(Event::Load, []);
        core.send(&ToCore::Hello(Hello {
            protocol_version: PROTOCOL_VERSION,
            role: Role::Worker { rank: self.rank },
            run,
        }))?;
        std::thread::sleep(self.load_time);
        core.send(&ToCore::Loaded(self.loaded()))?;
        let ToWorker::AllocateKvCache { num_kv_blocks } = core.receive()? else {
            return Err(Failure::Protocol("a plan before AllocateKvCache".into()));
        };
        let mut model = MockModel::new(num_kv_blocks, self.block_size, self.vocab_size);
        drop(load);
        let mut step_id = 0;
        loop {
            step_id += 1;
            while core.buffered() == 0 {
                wait_for_bytes(core)?;
            }
            let began_ns = boottime_ns();
            let step = slice_with(
                Event::WorkerStep,
                [],
                &[Flow::step_to_rank(step_id, self.rank)],
            );
            let (mark, plan) = receive_plan(core)?;
            if let Some(mark) = &mark {
                recorder::step_began(mark, began_ns);
            }
            let output = self.step(&mut model, &plan).map_err(Failure::Protocol)?;
            let send = slice_with(
                Event::WorkerSend,
                [],
                &[Flow::rank_to_core(step_id, self.rank)],
            );
            let bytes = core.send(&ToCore::StepDone(output))?;
            send.end([bytes as u64]);
            step.end([
                step_id,
                plan.scheduled.iter().map(|s| u64::from(s.num_tokens)).sum(),
                plan.scheduled.len() as u64,
            ]);
            if let Some(mark) = &mark {
                recorder::step_ended(mark);
            }
        }
    }

    fn step(
        &self,
        model: &mut MockModel,
        plan: &SchedulerOutput,
    ) -> Result<ModelRunnerOutput, String> {
        let prepare = slice(Event::PrepareInputs, []);
        let first = model.prepare(plan)?;
        drop(prepare);
        if !plan.scheduled.is_empty() {
            let tokens = plan.scheduled.iter().map(|s| u64::from(s.num_tokens)).sum();
            let flows: Vec<Flow> = first.into_iter().map(Flow::request).collect();
            let _slice = slice_with(Event::Forward, [tokens], &flows);
            if self.endless_step == Some(plan.step_id.0) {
                std::thread::sleep(Duration::MAX);
            }
            std::thread::sleep(self.step_time);
            if let Some((step_id, time)) = self.slow_step.get()
                && step_id <= plan.step_id.0
            {
                self.slow_step.set(None);
                std::thread::sleep(time);
            }
            model.forward(plan)?;
        }
        let sample = slice(Event::Sample, []);
        let output = model.sample(plan)?;
        sample.end([output.sampled.len() as u64]);
        Ok(output)
    }

    /// What it reports after its `Hello`.
    pub fn loaded(&self) -> WorkerLoaded {
        WorkerLoaded {
            num_kv_blocks: self.num_kv_blocks,
            max_model_len: self.max_model_len,
            vocab_size: self.vocab_size,
            info: ModelRunnerInfo {
                architecture: "Mock".into(),
                dtype: "none".into(),
                device: "none".into(),
                weight_bytes: 0,
                load_ms: 0,
            },
        }
    }
}

/// Takes the plan whose first bytes have come.
fn receive_plan(core: &mut Connection) -> Result<(Option<StepMark>, SchedulerOutput), Failure> {
    let receive = slice(Event::WorkerReceive, []);
    let mut mark = None;
    loop {
        let buffered = core.buffered();
        match core.next()? {
            Some(ToWorker::Step(plan)) => {
                receive.end([(buffered - core.buffered()) as u64]);
                return Ok((mark, plan));
            }
            Some(ToWorker::Mark(step)) => mark = Some(step),
            Some(ToWorker::AllocateKvCache { .. }) => {
                return Err(Failure::Protocol("AllocateKvCache twice".into()));
            }
            None => wait_for_bytes(core)?,
        }
    }
}

fn wait_for_bytes(core: &mut Connection) -> Result<(), ConnectionError> {
    let mut fds = [PollFd::new(core.as_fd(), PollFlags::POLLIN)];
    // Interrupted, it looks in vain, and is called again.
    let _ = poll(&mut fds, PollTimeout::NONE);
    core.fill()
}

enum Failure {
    Connection(ConnectionError),
    Protocol(String),
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Failure {
        Failure::Connection(error)
    }
}

fn number_from_env(name: &str) -> Result<Option<u32>, String> {
    let Ok(text) = std::env::var(name) else {
        return Ok(None);
    };
    let number = text.parse();
    number
        .map(Some)
        .map_err(|_| format!("{name}={text} is no number"))
}
