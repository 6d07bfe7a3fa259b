//! The loop over real sockets, with the mock worker.

use super::*;
use crate::test_support::{VOCAB_SIZE, request};
use nano_ipc::connection::Connection;
use nano_ipc::role::Role;
use nano_ipc::to_core::{Hello, PROTOCOL_VERSION};
use nano_tests::doubles::mock_model::expected_token_ids;
use nano_tests::doubles::mock_worker::{MockWorker, greedy};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

const RUN: u64 = 77;

fn config() -> CoreConfig {
    CoreConfig {
        engine_listener_fd: -1,
        world_size: 1,
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        block_size: 4,
        enable_prefix_caching: true,
        max_waiting: 8,
    }
}

fn mock_worker(num_kv_blocks: u32) -> MockWorker {
    MockWorker {
        rank: 0,
        block_size: 4,
        num_kv_blocks,
        max_model_len: 256,
        vocab_size: VOCAB_SIZE,
        step_time: Duration::ZERO,
    }
}

fn hello(role: Role) -> ToCore {
    ToCore::Hello(Hello {
        protocol_version: PROTOCOL_VERSION,
        role,
        run: RUN,
    })
}

/// Both ends of a new connection to the core.
fn connection() -> (Connection, OwnedFd) {
    let (near, far) = UnixStream::pair().expect("socketpair");
    (Connection::from_fd(near.into()), far.into())
}

/// A core in a thread, with a mock worker in another and frontends here.
struct Server {
    lifecycle: Arc<Lifecycle>,
    core: JoinHandle<Result<(), CoreError>>,
    worker: JoinHandle<Result<(), String>>,
    frontends: Vec<Connection>,
}

impl Server {
    fn start(num_frontends: usize) -> Server {
        let (worker, of_worker) = connection();
        let mut fds = vec![of_worker];
        let mut frontends = Vec::new();
        for _ in 0..num_frontends {
            let (mut frontend, fd) = connection();
            frontend
                .send(&hello(Role::Frontend))
                .expect("core is there");
            frontends.push(frontend);
            fds.push(fd);
        }
        let lifecycle = Arc::new(Lifecycle::new(|_| {}).expect("eventfd"));
        let of_core = Arc::clone(&lifecycle);
        let core = thread::spawn(move || run(&config(), Endpoint::Connected(fds), RUN, &of_core));
        let worker = thread::spawn(move || mock_worker(64).serve(worker, RUN));
        for frontend in &mut frontends {
            let ready = frontend.receive::<ToFrontend>().expect("core is there");
            assert!(matches!(ready, ToFrontend::Ready(_)), "{ready:?}");
        }
        Server {
            lifecycle,
            core,
            worker,
            frontends,
        }
    }

    fn stop(self) {
        self.lifecycle
            .request_shutdown(nano_ipc::lifecycle::Shutdown {
                drain_until: std::time::Instant::now(),
                reason: "the test is over".into(),
            });
        self.core.join().expect("no panic").expect("a clean end");
        self.worker.join().expect("no panic").expect("a clean end");
    }
}

/// Reads until `count` requests have ended; their tokens and reasons.
fn read_to_the_end(
    frontend: &mut Connection,
    count: usize,
) -> HashMap<u64, (Vec<u32>, FinishReason)> {
    let mut token_ids = HashMap::<u64, Vec<u32>>::new();
    let mut ended = HashMap::new();
    while ended.len() < count {
        let message = frontend.receive().expect("core is there");
        let ToFrontend::Outputs { outputs, .. } = message else {
            panic!("{message:?}");
        };
        for output in outputs {
            let known = token_ids.entry(output.id.0).or_default();
            known.extend(output.token_ids);
            if let Some(reason) = output.finish_reason {
                ended.insert(output.id.0, (known.clone(), reason));
            }
        }
    }
    ended
}

#[test]
fn two_frontends_with_equal_ids_each_get_their_own_tokens() {
    let mut server = Server::start(2);
    let prompts = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]];
    for (frontend, prompt) in server.frontends.iter_mut().zip(&prompts) {
        let add = ToCore::Add(request(1, prompt, 20));
        frontend.send(&add).expect("core is there");
    }
    for (frontend, prompt) in server.frontends.iter_mut().zip(&prompts) {
        let ended = read_to_the_end(frontend, 1);
        let expected = expected_token_ids(prompt, &greedy(), 20, VOCAB_SIZE);
        assert_eq!(ended[&1], (expected, FinishReason::Length));
    }
    server.stop();
}
