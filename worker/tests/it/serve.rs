//! The worker's loop, against a core that plays by the book or does not.

use crate::driver::{self, Limits, worker_config};
use crate::golden::{self, Cases};
use nano_ipc::config::{DeviceKind, Dtype, WorkerConfig};
use nano_ipc::connection::{Connection, ConnectionError};
use nano_ipc::lifecycle::{Lifecycle, Shutdown};
use nano_ipc::role::Role;
use nano_ipc::sampling_params::SamplingParams;
use nano_ipc::scheduler_output::{
    BlockId, NewSequence, ScheduledSequence, SchedulerOutput, SequenceId, StepId,
};
use nano_ipc::to_core::{Hello, PROTOCOL_VERSION, ToCore, WorkerLoaded};
use nano_ipc::to_worker::ToWorker;
use nano_worker::WorkerError;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

const RUN: u64 = 0xfeed;

/// A worker on a thread of its own, and the core's end of its connection.
struct Served {
    core: Connection,
    lifecycle: Arc<Lifecycle>,
    worker: JoinHandle<Result<(), WorkerError>>,
}

impl Served {
    fn start(change: impl FnOnce(&mut WorkerConfig)) -> Served {
        let limits = Limits {
            num_kv_blocks: 8,
            ..driver::Limits::default()
        };
        let model = golden::path("models/tiny-llama");
        let mut config = worker_config(&model, Dtype::Auto, limits);
        change(&mut config);
        let (near, far) = UnixStream::pair().expect("socketpair");
        let lifecycle = Arc::new(Lifecycle::new(|_| ()).expect("eventfd"));
        let shared = Arc::clone(&lifecycle);
        Served {
            core: Connection::from_fd(near.into()),
            lifecycle,
            worker: std::thread::spawn(move || {
                nano_worker::run(&config, Connection::from_fd(far.into()), RUN, &shared)
            }),
        }
    }

    /// Up to the point where plans are legal.
    fn ready(change: impl FnOnce(&mut WorkerConfig)) -> Served {
        let mut served = Served::start(change);
        let hello = Hello {
            protocol_version: PROTOCOL_VERSION,
            role: Role::Worker { rank: 0 },
            run: RUN,
        };
        assert_eq!(served.receive(), ToCore::Hello(hello));
        let ToCore::Loaded(loaded) = served.receive() else {
            panic!("not Loaded");
        };
        let WorkerLoaded {
            num_kv_blocks,
            max_model_len,
            vocab_size,
            info,
        } = loaded;
        assert_eq!((num_kv_blocks, max_model_len, vocab_size), (8, 2048, 768));
        assert_eq!(info.architecture, "LlamaForCausalLM");
        assert!(info.weight_bytes > 0);
        served.send(ToWorker::AllocateKvCache { num_kv_blocks: 7 });
        served
    }

    fn send(&mut self, message: ToWorker) {
        self.core.send(&message).expect("the worker lives");
    }

    fn receive(&mut self) -> ToCore {
        self.core.receive().expect("the worker lives")
    }

    /// The end of a worker that was in the wrong, or was wronged.
    fn fatal(mut self) -> String {
        let ToCore::Fatal(told) = self.receive() else {
            panic!("not Fatal");
        };
        let closed = self.core.receive::<ToCore>();
        assert!(matches!(closed, Err(ConnectionError::Closed)));
        let error = self.worker.join().expect("no panic").expect_err("failed");
        assert_eq!(error.to_string(), told);
        told
    }
}

fn plan(step: u64, prompt: &[u32]) -> SchedulerOutput {
    SchedulerOutput {
        step_id: StepId(step),
        finished: vec![],
        new: vec![NewSequence {
            id: SequenceId(1),
            trace_key: 1,
            token_ids: prompt.to_vec(),
            num_prompt_tokens: prompt.len() as u32,
            num_computed_tokens: 0,
            block_ids: vec![BlockId(3)],
            sampling: SamplingParams::greedy(),
        }],
        scheduled: vec![ScheduledSequence {
            id: SequenceId(1),
            num_tokens: prompt.len() as u32,
            new_block_ids: vec![],
        }],
    }
}

/// The plan that computes the token that the worker sampled last.
fn next(step: u64) -> SchedulerOutput {
    SchedulerOutput {
        step_id: StepId(step),
        scheduled: vec![ScheduledSequence {
            id: SequenceId(1),
            num_tokens: 1,
            new_block_ids: vec![],
        }],
        ..Default::default()
    }
}

#[test]
fn plans_sent_ahead_are_answered_in_order_with_the_golden_tokens() {
    let Cases { cases } = golden::read("models/tiny-llama/golden.json");
    let case = cases
        .iter()
        .find(|c| c.input_ids.len() == 7)
        .expect("a case of 7");
    let mut served = Served::ready(|_| ());
    // The core has not seen a token yet when it plans the next step.
    served.send(ToWorker::Step(plan(1, &case.input_ids)));
    for step in 2..=5 {
        served.send(ToWorker::Step(next(step)));
    }
    let finish = SchedulerOutput {
        step_id: StepId(6),
        finished: vec![SequenceId(1)],
        ..Default::default()
    };
    served.send(ToWorker::Step(finish));
    let mut token_ids = vec![];
    for step in 1..=6 {
        let ToCore::StepDone(output) = served.receive() else {
            panic!("not StepDone");
        };
        assert_eq!(output.step_id, StepId(step));
        token_ids.extend(output.sampled.iter().map(|sampled| sampled.token_id));
    }
    assert_eq!(token_ids, case.greedy.ids[..5]);
    assert_eq!(served.lifecycle.progress().0, 6);
    // The core is gone: that is how a worker ends.
    drop(served.core);
    assert!(served.worker.join().expect("no panic").is_ok());
}

#[test]
fn a_shutdown_ends_it_while_it_waits() {
    let served = Served::ready(|_| ());
    served.lifecycle.request_shutdown(Shutdown {
        drain_until: Instant::now(),
        reason: "test".into(),
    });
    assert!(served.worker.join().expect("no panic").is_ok());
}

#[test]
fn a_plan_that_breaks_a_rule_is_fatal_not_a_panic() {
    let mut served = Served::ready(|_| ());
    let mut bad = plan(1, &[1, 2, 3]);
    bad.new[0].block_ids[0] = BlockId(7);
    served.send(ToWorker::Step(bad));
    assert_eq!(
        served.fatal(),
        "plan of step 1: sequence 1 has KV block 7, there are 7"
    );
}

#[test]
fn messages_out_of_turn_are_fatal() {
    let mut early = Served::start(|_| ());
    early.send(ToWorker::Step(plan(1, &[1])));
    early.receive();
    early.receive();
    assert_eq!(early.fatal(), "the core sent a plan before AllocateKvCache");

    let mut twice = Served::ready(|_| ());
    twice.send(ToWorker::AllocateKvCache { num_kv_blocks: 7 });
    assert_eq!(twice.fatal(), "the core sent AllocateKvCache twice");
}

#[test]
fn what_cannot_be_loaded_is_said_in_one_line() {
    type Change = fn(&mut WorkerConfig);
    let changes: [(Change, &str); 4] = [
        (
            |c| c.model = "/nowhere/model.gguf".into(),
            "/nowhere/model.gguf: ",
        ),
        (|c| c.max_model_len = Some(4096), "made for 2048 positions"),
        (
            |c| (c.num_kv_blocks, c.kv_cache_memory_bytes) = (None, 1000),
            "no KV block fits",
        ),
        (|c| c.device = DeviceKind::Cuda, "--device cpu"),
    ];
    for (change, message) in changes {
        let mut served = Served::start(change);
        assert!(matches!(served.receive(), ToCore::Hello(_)));
        let told = served.fatal();
        assert!(told.contains(message), "{told:?}");
        assert!(!told.contains('\n'), "{told:?}");
    }
}
