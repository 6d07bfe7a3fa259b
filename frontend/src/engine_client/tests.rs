//! The client against a core at the other end of a socketpair, and the router
//! alone against random calls.

use super::router::Router;
use super::*;
use crate::test_support::{engine_info, new_sequence};
use nano_ipc::async_connection::{AsyncReceiver, AsyncSender, split};
use nano_ipc::engine_core_output::{EngineCoreOutput, FinishReason};
use nano_ipc::to_core::ToCore;
use nano_ipc::to_frontend::{SchedulerStats, ToFrontend};
use proptest::prelude::*;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MAX_SEQUENCES: usize = 4;

fn metrics() -> Arc<EngineMetrics> {
    Arc::new(EngineMetrics::new("m").expect("legal names"))
}

fn output(id: RequestId, token_ids: &[u32], finish: Option<FinishReason>) -> EngineCoreOutput {
    EngineCoreOutput {
        id,
        token_ids: token_ids.to_vec(),
        logprobs: Vec::new(),
        prompt_logprobs: None,
        num_cached_tokens: 0,
        first_step_ns: 1,
        finish_reason: finish,
    }
}

/// The core's end.
struct Core {
    receiver: AsyncReceiver,
    sender: AsyncSender,
}

impl Core {
    async fn next(&mut self) -> ToCore {
        self.receiver.receive().await.expect("the client is alive")
    }

    async fn next_add(&mut self) -> RequestId {
        match self.next().await {
            ToCore::Add(request) => request.id,
            other => panic!("expected Add, got {other:?}"),
        }
    }

    async fn send(&mut self, message: ToFrontend) {
        self.sender.queue(&message).expect("short");
        self.sender.flush().await.expect("the client is alive");
    }

    async fn outputs(&mut self, outputs: Vec<EngineCoreOutput>) {
        let stats = SchedulerStats::default();
        self.send(ToFrontend::Outputs { outputs, stats }).await;
    }
}

async fn pair() -> (EngineClient, Core) {
    let (near, far) = UnixStream::pair().expect("socketpair");
    let near = Connection::from_fd(near.into());
    let client = EngineClient::start(near, 7, MAX_SEQUENCES, metrics(), SlowRules::none())
        .expect("in a runtime");
    let (receiver, sender) = split(Connection::from_fd(far.into())).expect("in a runtime");
    let mut core = Core { receiver, sender };
    assert!(matches!(core.next().await, ToCore::Hello(hello) if hello.run == 7));
    assert!(matches!(
        client.admit(1).err(),
        Some(AdmissionError::Unavailable(_))
    ));
    core.send(ToFrontend::Ready(engine_info(100))).await;
    let mut state = client.watch_state();
    let ready = state.wait_for(|state| matches!(state, EngineState::Ready(_)));
    ready.await.expect("the task runs");
    (client, core)
}

fn submit(client: &EngineClient, count: usize) -> Generation {
    let admission = client.admit(count).expect("room");
    admission.submit((0..count).map(|_| new_sequence(8)).collect(), 1)
}

#[tokio::test]
async fn what_comes_while_nobody_looks_is_taken_in_one_go() {
    let (client, mut core) = pair().await;
    let mut generation = submit(&client, 2);
    let (a, b) = (core.next_add().await, core.next_add().await);
    core.outputs(vec![output(a, &[1], None), output(b, &[9], None)])
        .await;
    core.outputs(vec![output(a, &[2, 3], None)]).await;
    core.outputs(vec![output(a, &[4], Some(FinishReason::Stop))])
        .await;
    core.outputs(vec![output(b, &[], Some(FinishReason::Length))])
        .await;
    // The task answers in order: by now it has delivered everything.
    while client.check_integrity().await != Some(0) {}
    let mut arrivals = generation.next().await;
    arrivals.sort_by_key(|arrival| arrival.index);
    let ids: Vec<_> = arrivals
        .iter()
        .map(|a| a.output.token_ids.clone())
        .collect();
    assert_eq!(ids, [vec![1, 2, 3, 4], vec![9]]);
    assert_eq!(arrivals[0].output.finish_reason, Some(FinishReason::Stop));
    assert_eq!(arrivals[0].timings.num_tokens, 4);
    assert!(generation.next().await.is_empty());
}

#[tokio::test]
async fn dropping_at_any_moment_aborts_and_leaves_nothing() {
    let (client, mut core) = pair().await;
    // Dropped before the task saw the submission at all.
    drop(submit(&client, 1));
    let id = core.next_add().await;
    assert_eq!(core.next().await, ToCore::Abort(id));
    assert_eq!(client.check_integrity().await, Some(0));
    // One of two ended before.
    let generation = submit(&client, 2);
    let (a, b) = (core.next_add().await, core.next_add().await);
    core.outputs(vec![output(a, &[1], Some(FinishReason::Stop))])
        .await;
    while client.check_integrity().await != Some(1) {}
    drop(generation);
    assert_eq!(core.next().await, ToCore::Abort(b));
    // Stopped by the handler, whose output for it is then nobody's.
    let mut generation = submit(&client, 1);
    let id = core.next_add().await;
    core.outputs(vec![output(id, &[1], None)]).await;
    assert_eq!(generation.next().await.len(), 1);
    generation.stop(0);
    assert_eq!(core.next().await, ToCore::Abort(id));
    core.outputs(vec![output(id, &[2], None)]).await;
    assert!(generation.next().await.is_empty());
    drop(generation);
    assert_eq!(client.check_integrity().await, Some(0));
    client.drained().await;
}

#[tokio::test]
async fn room_is_bounded_and_returns() {
    let (client, mut core) = pair().await;
    let generation = submit(&client, 3);
    assert_eq!(client.admit(2).err(), Some(AdmissionError::Full(3)));
    assert_eq!(
        client.admit(5).err(),
        Some(AdmissionError::TooMany { asked: 5, limit: 4 })
    );
    drop(client.admit(1).expect("room"));
    drop(generation);
    for _ in 0..3 {
        core.next_add().await;
    }
    for _ in 0..3 {
        assert!(matches!(core.next().await, ToCore::Abort(_)));
    }
    assert!(client.admit(4).is_ok());
}

#[tokio::test]
async fn death_answers_what_is_open_what_is_on_its_way_and_what_comes_after() {
    let (client, mut core) = pair().await;
    let mut open = submit(&client, 2);
    core.next_add().await;
    let admission = client.admit(1).expect("room");
    core.send(ToFrontend::Fatal("tired".to_owned())).await;
    let arrivals = open.next().await;
    assert_eq!(arrivals.len(), 2);
    let Some(FinishReason::Error(reason)) = &arrivals[0].output.finish_reason else {
        panic!("{arrivals:?}")
    };
    assert!(reason.contains("tired"));
    assert!(open.next().await.is_empty());
    let mut late = admission.submit(vec![new_sequence(8)], 1);
    let arrivals = late.next().await;
    assert!(matches!(
        arrivals[0].output.finish_reason,
        Some(FinishReason::Error(_))
    ));
    assert!(matches!(
        client.admit(1).err(),
        Some(AdmissionError::Unavailable(reason)) if reason.contains("tired")
    ));
    assert_eq!(client.check_integrity().await, None);
}

#[tokio::test]
async fn what_the_task_drops_when_it_panics_fails_whether_it_was_open_or_on_its_way() {
    let (client, mut core) = pair().await;
    let mut open = submit(&client, 1);
    core.next_add().await;
    // Breaks the invariant that the task checks: each open sequence has a permit.
    client.admission.add_permits(2);
    let (answer, _) = oneshot::channel();
    let asked = client.commands.send(Command::Check(answer));
    assert!(asked.is_ok(), "the task is alive");
    let mut late = submit(&client, 1);
    for generation in [&mut open, &mut late] {
        let told = tokio::time::timeout(Duration::from_secs(60), generation.next());
        let arrivals = told.await.expect("its handler does not wait for ever");
        let Some(FinishReason::Error(reason)) = &arrivals[0].output.finish_reason else {
            panic!("{arrivals:?}")
        };
        assert!(
            reason.contains("broke off") || reason.contains("gone"),
            "{reason}"
        );
    }
    // Nobody says anything any more, which ends the frontend.
    let mut state = client.watch_state();
    while state.changed().await.is_ok() {}
}

#[test]
fn who_gets_no_token_has_waited_for_it_until_the_end() {
    const MS: u64 = 1_000_000;
    let (sender, fired) = std::sync::mpsc::channel();
    let rules = "ttft_ms>10".parse().expect("a rule");
    let slow = SlowRules::new(&rules, move |fired| sender.send(fired).expect("it waits"));
    let mut router = Router::new(metrics(), slow);
    let semaphore = Arc::new(Semaphore::new(5));
    for id in 0..5 {
        let permit = Arc::clone(&semaphore).try_acquire_owned();
        let request = EngineCoreRequest {
            id: RequestId(id),
            ..new_sequence(8).request
        };
        let inbox = Arc::new(Inbox::default());
        let route = Route::new(&request, inbox, 0, MS, permit.expect("one for each"));
        let watched = router.watch(&request);
        router.open(request.id, route, watched);
    }
    let waited_ms = || -> Vec<u128> {
        let fired = fired.try_iter();
        fired.map(|fired| fired.value.as_millis()).collect()
    };
    assert!(router.close(RequestId(0), Ending::Abort, 11 * MS));
    assert!(waited_ms().is_empty(), "in time");
    assert!(router.close(RequestId(1), Ending::Abort, 12 * MS));
    assert_eq!(waited_ms(), [11], "given up");
    let empty = output(RequestId(2), &[], Some(FinishReason::Stop));
    assert!(!router.deliver(empty, 13 * MS));
    assert_eq!(waited_ms(), [12], "finished");
    assert!(!router.deliver(output(RequestId(3), &[1], None), 2 * MS));
    assert!(router.close(RequestId(3), Ending::Abort, 20 * MS));
    assert!(waited_ms().is_empty(), "it had its token");
    assert_eq!(router.fail_all("end", 21 * MS), [RequestId(4)]);
    assert_eq!(waited_ms(), [20], "failed");
}

proptest! {
    /// Whatever order calls come in, the router's invariants hold, no sequence
    /// gets more than it asked for, and each open one holds one permit.
    #[test]
    fn the_router_survives_any_order(
        calls in prop::collection::vec((0u8..4, 0u64..6, 0usize..5, any::<bool>()), 0..200)
    ) {
        let semaphore = Arc::new(Semaphore::new(6));
        let mut router = Router::new(metrics(), SlowRules::none());
        let mut open = std::collections::HashMap::new();
        for (now, (call, id, count, finish)) in (1u64..).zip(calls) {
            let id = RequestId(id);
            match call {
                0 if !open.contains_key(&id) => {
                    let permit = Arc::clone(&semaphore).try_acquire_owned();
                    let inbox = Arc::new(Inbox::default());
                    let request = EngineCoreRequest {
                        id,
                        ..new_sequence(8).request
                    };
                    let permit = permit.expect("one for each id");
                    router.open(id, Route::new(&request, inbox, 0, 1, permit), None);
                    open.insert(id, 0);
                }
                1 => {
                    let finish = finish.then_some(FinishReason::Length);
                    let ends = finish.is_some();
                    let late = !open.contains_key(&id);
                    let sent = open.get(&id).copied().unwrap_or(0) + count;
                    let tell = router.deliver(output(id, &vec![1; count], finish), now);
                    prop_assert_eq!(tell, !late && sent > 8);
                    if tell || ends {
                        open.remove(&id);
                    } else if !late {
                        open.insert(id, sent);
                    }
                }
                2 => {
                    let was_open = open.remove(&id).is_some();
                    prop_assert_eq!(router.close(id, Ending::Abort, now), was_open);
                }
                3 if finish && count == 4 => {
                    prop_assert_eq!(router.fail_all("end", now).len(), open.len());
                    open.clear();
                }
                _ => {}
            }
            prop_assert_eq!(router.len(), open.len());
            let taken = 6 - semaphore.available_permits();
            prop_assert_eq!(taken, open.len());
            router.check_integrity(taken);
        }
    }
}
