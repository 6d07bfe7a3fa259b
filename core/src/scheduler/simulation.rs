//! Random lives of the scheduler with a mock worker, every step checked.

use crate::scheduler::{Refusal, Scheduler};
use crate::sequence::ClientId;
use crate::test_support::{engine_info, request};
use nano_ipc::engine_core_output::{EngineCoreOutput, FinishReason};
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::scheduler_output::{BlockId, SchedulerOutput, SequenceId};
use nano_ipc::to_frontend::SchedulerStats;
use nano_tests::doubles::mock_model::{FAILURE, MockModel, expected_token_ids, fail_at};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};

/// So few tokens that stop tokens are sampled often.
const VOCAB_SIZE: u32 = 11;
const STOP_TOKEN: u32 = 3;

#[derive(Clone, Debug)]
struct Arrival {
    client: u64,
    turn: u32,
    prompt_length: u32,
    /// Leading tokens that are those of all prompts of a family.
    shared_length: u32,
    family: u32,
    max_tokens: u32,
    priority: i32,
    seed: u64,
    stops: bool,
    logprobs: bool,
    prompt_logprobs: bool,
    /// The worker fails it in place of this token of its output.
    fails_at: Option<u32>,
    abort_turn: Option<u32>,
}

#[derive(Clone, Debug)]
struct Scenario {
    num_kv_blocks: u32,
    block_size: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    enable_prefix_caching: bool,
    max_waiting: u32,
    /// Steps planned before the first one's result is in.
    depth: usize,
    arrivals: Vec<Arrival>,
    /// When the second client leaves.
    leave_turn: Option<u32>,
}

fn arrivals() -> impl Strategy<Value = Arrival> {
    let shape = (0..2u64, 0..20u32, 1..30u32, 0..30u32, 0..2u32);
    let wishes = (1..25u32, -1..2i32, 0..2u64);
    let flags = (any::<bool>(), any::<bool>(), weighted(0.1, Just(())));
    let ends = (weighted(0.1, 0..10u32), weighted(0.2, 0..60u32));
    (shape, wishes, flags, ends).prop_map(|(shape, wishes, flags, (fails_at, abort_turn))| {
        Arrival {
            client: shape.0,
            turn: shape.1,
            prompt_length: shape.2,
            shared_length: shape.3,
            family: shape.4,
            max_tokens: wishes.0,
            priority: wishes.1,
            seed: wishes.2,
            stops: flags.0,
            logprobs: flags.1,
            prompt_logprobs: flags.2.is_some(),
            fails_at,
            abort_turn,
        }
    })
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let sizes = (8..20u32, 1..5u32, 2..7u32, 1..24u32);
    let flags = (any::<bool>(), 2..12u32, 1..4usize);
    (
        sizes,
        flags,
        vec(arrivals(), 1..14),
        weighted(0.2, 0..60u32),
    )
        .prop_map(|(sizes, flags, arrivals, leave_turn)| Scenario {
            num_kv_blocks: sizes.0,
            block_size: sizes.1,
            max_num_seqs: sizes.2,
            max_num_batched_tokens: sizes.3,
            enable_prefix_caching: flags.0,
            max_waiting: flags.1,
            depth: flags.2,
            arrivals,
            leave_turn,
        })
}

impl Arrival {
    fn request(&self, id: u64) -> EngineCoreRequest {
        let token_id = |position: u32| {
            let own = if position < self.shared_length {
                0
            } else {
                id as u32
            };
            (position * 5 + self.family * 3 + own * 7) % VOCAB_SIZE
        };
        let prompt: Vec<_> = (0..self.prompt_length).map(token_id).collect();
        let mut request = request(id, &prompt, self.max_tokens);
        request.priority = self.priority;
        request.sampling.seed = self.seed;
        request.sampling.stop_token_ids = vec![STOP_TOKEN; usize::from(self.stops)];
        request.sampling.min_tokens = self.seed as u32;
        request.sampling.logprobs = self.logprobs.then_some(2);
        request.sampling.prompt_logprobs = self.prompt_logprobs.then_some(1);
        if let Some(index) = self.fails_at {
            fail_at(&mut request.sampling, index);
        }
        request
    }
}

/// What one request got.
#[derive(Debug, Default)]
struct Answer {
    token_ids: Vec<u32>,
    num_prompt_logprobs: Option<usize>,
    finish_reason: Option<FinishReason>,
    aborted: bool,
    refused: bool,
}

struct Life {
    scenario: Scenario,
    scheduler: Scheduler,
    model: MockModel,
    in_flight: VecDeque<SchedulerOutput>,
    /// Blocks that each step in flight names.
    named_blocks: VecDeque<HashSet<BlockId>>,
    /// As the workers keep them.
    block_tables: HashMap<SequenceId, Vec<BlockId>>,
    answers: HashMap<u64, Answer>,
}

impl Life {
    fn new(scenario: Scenario) -> Life {
        let info = EngineInfo {
            max_model_len: 70,
            vocab_size: VOCAB_SIZE,
            block_size: scenario.block_size,
            max_num_seqs: scenario.max_num_seqs,
            max_num_batched_tokens: scenario.max_num_batched_tokens,
            enable_prefix_caching: scenario.enable_prefix_caching,
            ..engine_info(scenario.num_kv_blocks)
        };
        Life {
            scheduler: Scheduler::new(&info, scenario.max_waiting),
            model: MockModel::new(info.num_kv_blocks, info.block_size, VOCAB_SIZE),
            scenario,
            in_flight: VecDeque::new(),
            named_blocks: VecDeque::new(),
            block_tables: HashMap::new(),
            answers: HashMap::new(),
        }
    }

    /// Lives to the end of all requests; returns what each got, and how often
    /// sequences were preempted and tokens found in the cache.
    fn live(mut self) -> (HashMap<u64, Answer>, SchedulerStats) {
        let mut turn = 0;
        while turn <= 60 || self.scheduler.has_work() {
            assert!(turn < 10_000, "no end in sight: {:?}", self.scheduler);
            self.receive(turn);
            self.scheduler.check_integrity();
            let plan = self.scheduler.schedule(u64::from(turn) + 1);
            if let Some(plan) = &plan {
                self.check_fresh_blocks(&plan.output);
            }
            self.scheduler.check_integrity();
            let idle = plan.is_none();
            self.in_flight.extend(plan.map(|plan| plan.output));
            if idle || self.in_flight.len() == self.scenario.depth {
                self.finish_step();
            }
            self.scheduler.check_integrity();
            turn += 1;
        }
        let stats = self.scheduler.stats();
        assert_eq!(
            (stats.num_used_blocks, stats.num_running, stats.num_waiting),
            (0, 0, 0)
        );
        assert_eq!((stats.num_requests, stats.num_worker_sequences), (0, 0));
        assert_eq!(self.model.num_sequences(), 0);
        (self.answers, stats)
    }

    /// No step in flight names a block that this plan gives to be written.
    fn check_fresh_blocks(&mut self, plan: &SchedulerOutput) {
        let mut fresh = HashSet::new();
        for id in &plan.finished {
            self.block_tables.remove(id);
        }
        for new in &plan.new {
            let num_cached = new.num_computed_tokens / self.scenario.block_size;
            fresh.extend(&new.block_ids[num_cached as usize..]);
            self.block_tables.insert(new.id, new.block_ids.clone());
        }
        let mut named = HashSet::new();
        for row in &plan.scheduled {
            fresh.extend(&row.new_block_ids);
            let block_table = self.block_tables.entry(row.id).or_default();
            block_table.extend(&row.new_block_ids);
            named.extend(block_table.iter().copied());
        }
        for (in_flight, step) in self.named_blocks.iter().zip(&self.in_flight) {
            let shared = in_flight.intersection(&fresh).next();
            assert_eq!(shared, None, "{step:?} is in flight, then {plan:?}");
        }
        self.named_blocks.push_back(named);
    }

    fn receive(&mut self, turn: u32) {
        let arrivals = self.scenario.arrivals.clone();
        for (arrival, id) in arrivals.iter().zip(1u64..) {
            let client = ClientId(arrival.client);
            if arrival.turn == turn {
                let request = arrival.request(id);
                let slots = self.scenario.num_kv_blocks * self.scenario.block_size;
                let fits = arrival.prompt_length + arrival.max_tokens <= slots.min(70);
                let room = self.scheduler.stats().num_waiting < self.scenario.max_waiting;
                let added = self.scheduler.add(client, request.clone());
                let expected = match &added {
                    Ok(()) => fits && room,
                    Err(Refusal::TooLong { .. }) => !fits,
                    Err(Refusal::QueueFull(_)) => fits && !room,
                    Err(_) => false,
                };
                assert!(expected, "{added:?}");
                self.answers.entry(id).or_default().refused = added.is_err();
            }
            if arrival.abort_turn == Some(turn) && self.scheduler.abort(client, RequestId(id)) {
                self.answers.entry(id).or_default().aborted = true;
            }
            if self.scenario.leave_turn == Some(turn) && arrival.client == 1 {
                let open = self.answers.get_mut(&id).filter(|answer| !answer.refused);
                if let Some(answer) = open.filter(|answer| answer.finish_reason.is_none()) {
                    answer.aborted = true;
                }
            }
        }
        if self.scenario.leave_turn == Some(turn) {
            self.scheduler.abort_client(ClientId(1));
        }
    }

    fn finish_step(&mut self) {
        let Some(plan) = self.in_flight.pop_front() else {
            return;
        };
        self.named_blocks.pop_front();
        let result = self.model.step(&plan).expect("a legal plan");
        let outputs = self.scheduler.update(result).expect("the plan's result");
        for (client, output) in outputs {
            self.take(client, output);
        }
    }

    fn take(&mut self, client: ClientId, output: EngineCoreOutput) {
        let arrival = &self.scenario.arrivals[output.id.0 as usize - 1];
        let answer = self.answers.entry(output.id.0).or_default();
        assert_eq!(client, ClientId(arrival.client));
        assert!(
            answer.finish_reason.is_none() && !answer.aborted,
            "{output:?}"
        );
        let failed = matches!(output.finish_reason, Some(FinishReason::Error(_)));
        let num_tokens = usize::from(!failed);
        assert_eq!(output.token_ids.len(), num_tokens, "{output:?}");
        let num_logprobs = usize::from(arrival.logprobs && !failed);
        assert_eq!(output.logprobs.len(), num_logprobs);
        assert!(output.first_step_ns > 0);
        assert!(output.num_cached_tokens < arrival.prompt_length);
        if let Some(entries) = output.prompt_logprobs {
            assert!(
                answer.token_ids.is_empty(),
                "they come with the first token"
            );
            answer.num_prompt_logprobs = Some(entries.len());
        }
        answer.token_ids.extend(output.token_ids);
        answer.finish_reason = output.finish_reason;
    }
}

/// Whatever else runs, and however blocks are shared, lost and computed anew,
/// each request gets the tokens that it gets alone.
fn check(scenario: Scenario) -> SchedulerStats {
    let (answers, stats) = Life::new(scenario.clone()).live();
    for (arrival, id) in scenario.arrivals.iter().zip(1u64..) {
        let request = arrival.request(id);
        let answer = &answers[&id];
        if answer.refused {
            assert!(answer.token_ids.is_empty());
            continue;
        }
        let prompt = &request.prompt_token_ids;
        let expected =
            expected_token_ids(prompt, &request.sampling, request.max_tokens, VOCAB_SIZE);
        if answer.aborted {
            assert!(expected.starts_with(&answer.token_ids));
            continue;
        }
        let fails_at = arrival.fails_at.map(|index| index as usize);
        if let Some(index) = fails_at.filter(|index| *index < expected.len()) {
            assert_eq!(answer.token_ids, expected[..index], "request {id}");
            let failed = FinishReason::Error(FAILURE.into());
            assert_eq!(answer.finish_reason, Some(failed));
            continue;
        }
        assert_eq!(answer.token_ids, expected, "request {id}");
        let stopped = arrival.stops && expected.last() == Some(&STOP_TOKEN);
        let reason = if stopped {
            FinishReason::Stop
        } else {
            FinishReason::Length
        };
        assert_eq!(answer.finish_reason, Some(reason));
        let num_prompt_logprobs = arrival.prompt_logprobs.then_some(prompt.len() - 1);
        assert_eq!(
            answer.num_prompt_logprobs, num_prompt_logprobs,
            "request {id}"
        );
    }
    stats
}

fn number_from_env(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// The same lives every time; `NANO_SIMULATION_LIVES` and
/// `NANO_SIMULATION_SEED` ask for more and for others.
#[test]
fn random_lives_keep_every_invariant_and_every_request_its_tokens() {
    let lives = number_from_env("NANO_SIMULATION_LIVES", 10_000);
    let seed = number_from_env("NANO_SIMULATION_SEED", 0);
    let mut seed_bytes = [0; 32];
    seed_bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: u32::try_from(lives).expect("a number of lives"),
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes);
    let (preemptions, hits) = (Cell::new(0), Cell::new(0));
    let outcome = TestRunner::new_with_rng(config, rng).run(&scenarios(), |scenario| {
        let stats = check(scenario);
        preemptions.set(preemptions.get() + stats.num_preemptions);
        hits.set(hits.get() + stats.prefix_cache_hits);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    // Lives in which these never happen would prove nothing.
    assert!(preemptions.get() > lives / 4, "{preemptions:?} preemptions");
    assert!(hits.get() > lives, "{hits:?} tokens found");
}
