//! The loop over real sockets, with the mock worker.

use super::*;
use crate::test_support::{VOCAB_SIZE, request};
use nano_ipc::connection::{Connection, ConnectionError};
use nano_ipc::lifecycle::Shutdown;
use nano_ipc::role::Role;
use nano_ipc::sampling_params::SamplingParams;
use nano_ipc::scheduler_output::SchedulerOutput;
use nano_ipc::to_core::{Hello, PROTOCOL_VERSION};
use nano_tests::doubles::mock_model::expected_token_ids;
use nano_tests::doubles::mock_worker::MockWorker;
use std::collections::HashMap;
use std::io::Write;
use std::net::Shutdown as Direction;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

const RUN: u64 = 77;

fn config() -> CoreConfig {
    CoreConfig {
        engine_listener_fd: -1,
        world_size: 1,
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        block_size: 4,
        enable_prefix_caching: true,
        max_waiting: 16,
        workers_record: true,
        rules: Default::default(),
    }
}

fn mock_worker(num_kv_blocks: u32) -> MockWorker {
    MockWorker {
        rank: 0,
        block_size: 4,
        num_kv_blocks,
        max_model_len: 256,
        vocab_size: VOCAB_SIZE,
        load_time: Duration::ZERO,
        step_time: Duration::ZERO,
        endless_step: None,
        slow_step: Default::default(),
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

fn worker_hello(rank: u32) -> ToCore {
    hello(Role::Worker { rank })
}

/// A core in a thread. Workers and frontends are the test's.
struct Core {
    lifecycle: Arc<Lifecycle>,
    thread: JoinHandle<Result<(), CoreError>>,
}

impl Core {
    fn start(endpoint: Endpoint, world_size: u32) -> Core {
        let lifecycle = Arc::new(Lifecycle::new(|_| {}).expect("eventfd"));
        let of_core = Arc::clone(&lifecycle);
        let config = CoreConfig {
            world_size,
            ..config()
        };
        let thread = thread::spawn(move || run(&config, endpoint, RUN, &of_core));
        Core { lifecycle, thread }
    }

    fn end(self) -> Result<(), CoreError> {
        self.thread.join().expect("no panic leaves the core")
    }

    fn stop(self) {
        self.lifecycle.request_shutdown(Shutdown {
            drain_until: Instant::now(),
            reason: "the test is over".into(),
        });
        self.end().expect("a clean end");
    }
}

/// A core with a mock worker, and frontends that said their hello.
fn serve_frontends(
    num_frontends: usize,
) -> (Core, Vec<Connection>, JoinHandle<Result<(), String>>) {
    let (worker, of_worker) = connection();
    let (mut frontends, mut fds): (Vec<_>, Vec<_>) =
        (0..num_frontends).map(|_| connection()).unzip();
    for frontend in &mut frontends {
        send(frontend, hello(Role::Frontend));
    }
    fds.push(of_worker);
    let core = Core::start(Endpoint::Connected(fds), 1);
    let worker = thread::spawn(move || mock_worker(64).serve(worker, RUN));
    for frontend in &mut frontends {
        let ready = receive(frontend);
        assert!(matches!(ready, ToFrontend::Ready(_)), "{ready:?}");
    }
    (core, frontends, worker)
}

/// A core with a frontend, and with a worker that the test plays from its
/// allocation on.
fn serve_by_hand() -> (Core, Connection, Connection) {
    let (mut worker, of_worker) = connection();
    let (mut frontend, of_frontend) = connection();
    send(&mut worker, worker_hello(0));
    send(&mut worker, ToCore::Loaded(mock_worker(64).loaded()));
    send(&mut frontend, hello(Role::Frontend));
    let core = Core::start(Endpoint::Connected(vec![of_worker, of_frontend]), 1);
    assert!(matches!(receive(&mut frontend), ToFrontend::Ready(_)));
    (core, frontend, worker)
}

#[track_caller]
fn send(connection: &mut Connection, message: ToCore) {
    connection.send(&message).expect("the core is there");
}

#[track_caller]
fn receive(frontend: &mut Connection) -> ToFrontend {
    frontend.receive().expect("the core is there")
}

/// Reads until so many requests have ended: their tokens and reasons.
#[track_caller]
fn read_to_the_end(
    frontend: &mut Connection,
    num_requests: usize,
) -> HashMap<u64, (Vec<u32>, FinishReason)> {
    let mut token_ids = HashMap::<u64, Vec<u32>>::new();
    let mut ended = HashMap::new();
    while ended.len() < num_requests {
        let message = receive(frontend);
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

/// What a prompt yields alone.
fn alone(prompt: &[u32], max_tokens: u32) -> (Vec<u32>, FinishReason) {
    let token_ids = expected_token_ids(prompt, &SamplingParams::greedy(), max_tokens, VOCAB_SIZE);
    (token_ids, FinishReason::Length)
}

/// The frontend gets its tokens: the core serves.
#[track_caller]
fn check_served(frontend: &mut Connection) {
    let prompt = [1, 2, 3, 4, 5];
    send(frontend, ToCore::Add(request(900, &prompt, 7)));
    assert_eq!(read_to_the_end(frontend, 1)[&900], alone(&prompt, 7));
}

/// The next message is the last and says so.
#[track_caller]
fn check_fatal(frontend: &mut Connection, words: &str) {
    loop {
        match receive(frontend) {
            ToFrontend::Fatal(reason) => {
                assert!(reason.contains(words), "{reason}");
                break;
            }
            ToFrontend::Ready(_) | ToFrontend::Outputs { .. } => {}
        }
    }
    let next = frontend.receive::<ToFrontend>();
    assert!(matches!(next, Err(ConnectionError::Closed)), "{next:?}");
}

#[test]
fn two_frontends_with_equal_ids_each_get_their_own_tokens() {
    let (core, mut frontends, worker) = serve_frontends(2);
    let prompts = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]];
    for (frontend, prompt) in frontends.iter_mut().zip(&prompts) {
        send(frontend, ToCore::Add(request(1, prompt, 20)));
    }
    for (frontend, prompt) in frontends.iter_mut().zip(&prompts) {
        assert_eq!(read_to_the_end(frontend, 1)[&1], alone(prompt, 20));
    }
    core.stop();
    worker.join().expect("no panic").expect("a clean end");
}

#[test]
fn all_ranks_get_every_plan() {
    let (workers, mut fds): (Vec<_>, Vec<_>) = (0..2).map(|_| connection()).unzip();
    let (mut frontend, fd) = connection();
    send(&mut frontend, hello(Role::Frontend));
    fds.push(fd);
    let core = Core::start(Endpoint::Connected(fds), 2);
    let workers: Vec<_> = workers
        .into_iter()
        .zip([(0, 64), (1, 32)])
        .map(|(connection, (rank, num_kv_blocks))| {
            thread::spawn(move || {
                MockWorker {
                    rank,
                    ..mock_worker(num_kv_blocks)
                }
                .serve(connection, RUN)
            })
        })
        .collect();
    let ready = receive(&mut frontend);
    let ToFrontend::Ready(info) = ready else {
        panic!("{ready:?}");
    };
    assert_eq!(
        (info.num_kv_blocks, info.max_model_len),
        (32, 128),
        "the least of all ranks"
    );
    check_served(&mut frontend);
    core.stop();
    for worker in workers {
        worker.join().expect("no panic").expect("a clean end");
    }
}

#[test]
fn a_frontend_may_join_late_and_a_stranger_is_turned_away() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("engine");
    let listener = UnixListener::bind(&path).expect("a fresh path");
    let core = Core::start(Endpoint::Listener(listener.into()), 1);
    let connect = || Connection::connect(&path).expect("the core listens");

    let mut stranger = connect();
    send(
        &mut stranger,
        ToCore::Hello(Hello {
            protocol_version: PROTOCOL_VERSION,
            role: Role::Frontend,
            run: RUN + 1,
        }),
    );
    let answer = stranger.receive::<ToFrontend>();
    assert!(matches!(answer, Err(ConnectionError::Closed)), "{answer:?}");

    let worker = connect();
    let worker = thread::spawn(move || mock_worker(64).serve(worker, RUN));
    let mut first = connect();
    send(&mut first, hello(Role::Frontend));
    assert!(matches!(receive(&mut first), ToFrontend::Ready(_)));
    check_served(&mut first);
    let mut late = connect();
    send(&mut late, hello(Role::Frontend));
    assert!(matches!(receive(&mut late), ToFrontend::Ready(_)));
    check_served(&mut late);
    drop(first);
    check_served(&mut late);
    core.stop();
    worker.join().expect("no panic").expect("a clean end");
}

#[test]
fn another_protocol_version_is_an_error_that_names_both() {
    let (mut worker, of_worker) = connection();
    send(
        &mut worker,
        ToCore::Hello(Hello {
            protocol_version: PROTOCOL_VERSION + 6,
            role: Role::Worker { rank: 0 },
            run: RUN,
        }),
    );
    let core = Core::start(Endpoint::Connected(vec![of_worker]), 1);
    let error = core.end().expect_err("it cannot serve").to_string();
    let versions = format!(
        "version {}, this nano-core {}",
        PROTOCOL_VERSION + 6,
        PROTOCOL_VERSION
    );
    assert!(
        error.contains("worker-0") && error.contains(&versions),
        "{error}"
    );
}

/// One of two frontends does something wrong; the other notices nothing.
#[track_caller]
fn check_only_it_is_lost(wrong: impl FnOnce(&mut UnixStream)) {
    let (near, far) = UnixStream::pair().expect("socketpair");
    let (mut other, of_other) = connection();
    let (worker, of_worker) = connection();
    send(&mut other, hello(Role::Frontend));
    let mut stream = near.try_clone().expect("descriptor");
    let mut frontend = Connection::from_fd(near.into());
    send(&mut frontend, hello(Role::Frontend));
    let fds = vec![far.into(), of_other, of_worker];
    let core = Core::start(Endpoint::Connected(fds), 1);
    let worker = thread::spawn(move || mock_worker(64).serve(worker, RUN));
    assert!(matches!(receive(&mut other), ToFrontend::Ready(_)));
    assert!(matches!(receive(&mut frontend), ToFrontend::Ready(_)));
    send(&mut frontend, ToCore::Add(request(1, &[1, 2, 3], 200)));
    wrong(&mut stream);
    while let Ok(message) = frontend.receive::<ToFrontend>() {
        assert!(matches!(message, ToFrontend::Outputs { .. }), "{message:?}");
    }
    check_served(&mut other);
    core.stop();
    worker.join().expect("no panic").expect("a clean end");
}

#[test]
fn a_frontend_that_breaks_the_protocol_loses_its_connection_and_nobody_else_anything() {
    check_only_it_is_lost(|stream| {
        stream.write_all(&[0xff; 64]).expect("the core is there");
    });
    let frame = |message: &ToCore| {
        let mut bytes = Vec::new();
        nano_ipc::frame::write(message, &mut bytes).expect("small");
        bytes
    };
    let result = frame(&ToCore::StepDone(ModelRunnerOutput::default()));
    check_only_it_is_lost(|stream| stream.write_all(&result).expect("the core is there"));
    let second = frame(&hello(Role::Frontend));
    check_only_it_is_lost(|stream| stream.write_all(&second).expect("the core is there"));
    let add = frame(&ToCore::Add(request(2, &[1; 100], 1)));
    check_only_it_is_lost(|stream| {
        stream.write_all(&add[..50]).expect("the core is there");
        stream.shutdown(Direction::Write).expect("a socket");
    });
}

#[test]
fn a_frontend_that_does_not_read_halts_nobody() {
    let (core, mut frontends, worker) = serve_frontends(2);
    let [deaf, other] = &mut frontends[..] else {
        unreachable!("two were asked for");
    };
    for id in 1..=8 {
        let mut request = request(id, &[id as u32; 5], 240);
        request.sampling.logprobs = Some(20);
        send(deaf, ToCore::Add(request));
    }
    send(other, ToCore::Add(request(1, &[7; 5], 200)));
    assert_eq!(read_to_the_end(other, 1)[&1], alone(&[7; 5], 200));
    // Nothing of the other's was lost either, once it reads.
    for (id, (token_ids, reason)) in read_to_the_end(deaf, 8) {
        assert_eq!((token_ids, reason), alone(&[id as u32; 5], 240));
    }
    core.stop();
    worker.join().expect("no panic").expect("a clean end");
}

#[test]
fn what_is_refused_is_answered_and_a_duplicate_id_leaves_the_first_alone() {
    let (core, mut frontends, worker) = serve_frontends(1);
    let frontend = &mut frontends[0];
    send(frontend, ToCore::Add(request(1, &[1; 4], 100)));
    send(frontend, ToCore::Add(request(1, &[2; 4], 100)));
    send(frontend, ToCore::Add(request(2, &[3; 4], 1000)));
    let ended = read_to_the_end(frontend, 2);
    assert_eq!(ended[&1], alone(&[1; 4], 100));
    let (token_ids, FinishReason::Error(reason)) = &ended[&2] else {
        panic!("{ended:?}");
    };
    assert!(
        token_ids.is_empty() && reason.contains("exceed the context of 256"),
        "{reason}"
    );
    core.stop();
    worker.join().expect("no panic").expect("a clean end");
}

#[test]
fn who_finds_the_queue_full_is_refused_and_may_try_again() {
    turn_by_turn(2, |engine, mut frontend| {
        // Before the first step all wait: sixteen may.
        for id in 1..=21 {
            send(&mut frontend, ToCore::Add(request(id, &[1; 4], 3)));
        }
        while engine.outputs.len() < 5 {
            engine.receive(WaitFor::Anybody).expect("messages");
        }
        engine.scheduler.check_integrity();
        assert_eq!(engine.scheduler.stats().num_waiting, 16);
        while engine.scheduler.has_work() {
            engine.step().expect("a turn");
        }
        assert!(matches!(receive(&mut frontend), ToFrontend::Ready(_)));
        for (id, ended) in read_to_the_end(&mut frontend, 21) {
            let refusal = FinishReason::Refused("16 requests wait already".into());
            let refused = (Vec::new(), refusal);
            let expected = if id <= 16 { alone(&[1; 4], 3) } else { refused };
            assert_eq!(ended, expected, "request {id}");
        }
        send(&mut frontend, ToCore::Add(request(21, &[1; 4], 3)));
        engine.receive(WaitFor::Anybody).expect("messages");
        while engine.scheduler.has_work() {
            engine.step().expect("a turn");
        }
        assert_eq!(read_to_the_end(&mut frontend, 1)[&21], alone(&[1; 4], 3));
    });
}

/// The test is the worker: loads, gets a plan, and does something fatal.
#[track_caller]
fn check_fatal_worker(fatal: impl FnOnce(Connection, SchedulerOutput), words: &str) {
    let (core, mut frontend, mut worker) = serve_by_hand();
    let allocate = worker.receive::<ToWorker>().expect("the core is there");
    assert_eq!(allocate, ToWorker::AllocateKvCache { num_kv_blocks: 64 });
    send(&mut frontend, ToCore::Add(request(1, &[1; 4], 100)));
    let plan = worker.receive::<ToWorker>().expect("the core is there");
    let ToWorker::Step(plan) = plan else {
        panic!("{plan:?}");
    };
    fatal(worker, plan);
    check_fatal(&mut frontend, words);
    let error = core.end().expect_err("it cannot go on");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn a_worker_that_dies_fails_or_errs_ends_the_core_and_every_request_hears_why() {
    check_fatal_worker(|worker, _| drop(worker), "worker 0 is gone");
    let fail = |mut worker: Connection, _| send(&mut worker, ToCore::Fatal("out of memory".into()));
    check_fatal_worker(fail, "worker 0 failed: out of memory");
    let err = |mut worker: Connection, plan: SchedulerOutput| {
        let result = ModelRunnerOutput {
            step_id: plan.step_id,
            ..ModelRunnerOutput::default()
        };
        send(&mut worker, ToCore::StepDone(result));
    };
    check_fatal_worker(err, "no valid token for sequence 1");
    let confuse = |mut worker: Connection, _| send(&mut worker, ToCore::Abort(RequestId(1)));
    check_fatal_worker(confuse, "worker 0 broke the protocol");
}

#[test]
fn an_order_to_end_is_followed_while_loading_idle_and_in_mid_step() {
    let (mut worker, of_worker) = connection();
    let (mut frontend, of_frontend) = connection();
    send(&mut frontend, hello(Role::Frontend));
    let core = Core::start(Endpoint::Connected(vec![of_worker, of_frontend]), 1);
    send(&mut worker, worker_hello(0));
    core.stop();
    drop(frontend); // Whether the core had read its hello is not known.

    let (core, mut frontends, worker) = serve_frontends(1);
    core.stop();
    check_fatal(&mut frontends[0], "the test is over");
    worker.join().expect("no panic").expect("a clean end");

    let (core, mut frontend, mut worker) = serve_by_hand();
    send(&mut frontend, ToCore::Add(request(1, &[1; 4], 100)));
    let _allocate = worker.receive::<ToWorker>().expect("the core is there");
    let _plan = worker.receive::<ToWorker>().expect("the core is there");
    assert!(core.lifecycle.progress().1 > 0, "it is at a step");
    core.stop();
    check_fatal(&mut frontend, "the test is over");
}

#[test]
fn a_panic_ends_the_core_and_frontends_hear_of_it() {
    let (mut frontend, fd) = connection();
    send(&mut frontend, hello(Role::Frontend));
    let mut peers = Peers::new(Endpoint::Connected(vec![fd]), RUN, 1).expect("sockets");
    let lifecycle = Lifecycle::new(|_| {}).expect("eventfd");
    let outcome = to_the_end(&mut peers, &lifecycle, |peers| {
        peers.wait(WaitFor::Nobody, lifecycle.shutdown_fd())?;
        peers.receive()?;
        panic!("block 7 is lost");
    });
    assert!(
        matches!(outcome, Err(CoreError::Panicked(_))),
        "{outcome:?}"
    );
    drop(peers);
    check_fatal(&mut frontend, "block 7 is lost");
}

#[test]
fn a_panic_in_the_scheduler_ends_the_core_and_names_itself() {
    let (worker, of_worker) = connection();
    let (mut frontend, of_frontend) = connection();
    let worker = thread::spawn(move || mock_worker(64).serve(worker, RUN));
    let lifecycle = Lifecycle::new(|_| {}).expect("eventfd");
    let endpoint = Endpoint::Connected(vec![of_worker, of_frontend]);
    let mut peers = Peers::new(endpoint, RUN, 1).expect("sockets");
    send(&mut frontend, hello(Role::Frontend));
    let outcome = to_the_end(&mut peers, &lifecycle, |peers| {
        let info = load_workers(&config(), peers, &lifecycle)?.expect("no order to end");
        let mut engine = EngineCore::new(&config(), info, peers, &lifecycle);
        send(&mut frontend, ToCore::Add(request(1, &[1; 4], 100)));
        engine.wait_for_work()?;
        engine.step()?;
        engine.scheduler.lose_every_sequence();
        engine.step()
    });
    let error = outcome.expect_err("a bug").to_string();
    assert!(error.starts_with("the core panicked: "), "{error}");
    drop(peers);
    check_fatal(&mut frontend, &error);
    worker.join().expect("no panic").expect("a clean end");
}

/// The loop's turns made by the test, one by one, with a mock worker.
fn turn_by_turn(steps_in_flight: usize, test: impl FnOnce(&mut EngineCore<'_>, Connection)) {
    let (worker, of_worker) = connection();
    let (mut frontend, of_frontend) = connection();
    let worker = thread::spawn(move || mock_worker(64).serve(worker, RUN));
    let lifecycle = Lifecycle::new(|_| {}).expect("eventfd");
    let endpoint = Endpoint::Connected(vec![of_worker, of_frontend]);
    let mut peers = Peers::new(endpoint, RUN, 1).expect("sockets");
    send(&mut frontend, hello(Role::Frontend));
    let info = load_workers(&config(), &mut peers, &lifecycle);
    let info = info.expect("it loads").expect("no order to end");
    let mut engine = EngineCore::new(&config(), info, &mut peers, &lifecycle);
    engine.steps_in_flight = steps_in_flight;
    test(&mut engine, frontend);
    while engine.scheduler.has_work() {
        engine.step().expect("a turn");
    }
    engine.scheduler.check_integrity();
    let stats = engine.scheduler.stats();
    assert!(!engine.scheduler.has_work());
    assert_eq!(
        (stats.num_used_blocks, stats.num_running, stats.num_waiting),
        (0, 0, 0)
    );
    assert_eq!((stats.num_requests, stats.num_worker_sequences), (0, 0));
    assert_eq!(engine.tracks.num_open(), 0);
    assert!(engine.outputs.is_empty());
    drop(peers);
    worker.join().expect("no panic").expect("a clean end");
}

#[test]
fn a_client_that_goes_in_any_state_leaves_nothing_behind() {
    // Six requests of which four run, a prompt of three chunks among them: up
    // to turn 20 they are queued, in prefill, in decode and ended.
    for steps_in_flight in [1, 2] {
        for num_turns in 0..20 {
            turn_by_turn(steps_in_flight, |engine, mut frontend| {
                for id in 1..=6 {
                    let prompt = vec![id as u32; if id == 2 { 40 } else { 5 }];
                    send(
                        &mut frontend,
                        ToCore::Add(request(id, &prompt, 4 * id as u32)),
                    );
                }
                engine.receive(WaitFor::Anybody).expect("messages");
                for _ in 0..num_turns {
                    engine.step().expect("a turn");
                    engine.scheduler.check_integrity();
                }
                drop(frontend);
                engine.receive(WaitFor::Anybody).expect("the end");
            });
        }
    }
}

#[test]
fn an_aborted_request_leaves_nothing_behind_and_is_confirmed() {
    for num_turns in 0..6 {
        turn_by_turn(1, |engine, mut frontend| {
            send(&mut frontend, ToCore::Add(request(1, &[1; 40], 100)));
            engine.receive(WaitFor::Anybody).expect("messages");
            for _ in 0..num_turns {
                engine.step().expect("a turn");
            }
            send(&mut frontend, ToCore::Abort(RequestId(1)));
            send(&mut frontend, ToCore::Abort(RequestId(2)));
            engine.receive(WaitFor::Anybody).expect("messages");
            engine.send();
            assert!(matches!(receive(&mut frontend), ToFrontend::Ready(_)));
            let (_, reason) = &read_to_the_end(&mut frontend, 1)[&1];
            assert_eq!(*reason, FinishReason::Abort);
        });
    }
}

#[test]
fn two_steps_in_flight_give_the_same_tokens() {
    turn_by_turn(2, |engine, mut frontend| {
        for id in 1..=6 {
            send(
                &mut frontend,
                ToCore::Add(request(id, &[id as u32; 30], 20)),
            );
        }
        engine.receive(WaitFor::Anybody).expect("messages");
        let mut most = 0;
        while engine.scheduler.has_work() {
            engine.step().expect("a turn");
            most = most.max(engine.scheduler.num_in_flight());
        }
        assert_eq!(most, 1, "after a turn one of the two is still in flight");
        assert!(matches!(receive(&mut frontend), ToFrontend::Ready(_)));
        for (id, ended) in read_to_the_end(&mut frontend, 6) {
            assert_eq!(ended, alone(&[id as u32; 30], 20));
        }
    });
}
