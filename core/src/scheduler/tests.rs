//! What runs in which step, told as stories: one line a step, `3+16` for
//! "sequence 3 computes 16 tokens", `-3` for "workers forget sequence 3". The
//! last line has no row: it leaves the workers with nothing.

use super::*;
use crate::test_support::{VOCAB_SIZE, engine_info, request};
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::model_runner_output::{ModelRunnerOutput, SampledToken};
use nano_ipc::sampling_params::SamplingParams;
use nano_tests::doubles::mock_model::{MockModel, expected_token_ids};

const CLIENT: ClientId = ClientId(1);

fn prompt(id: u64, length: u32) -> Vec<u32> {
    (0..length)
        .map(|i| (i * 7 + id as u32 * 31) % VOCAB_SIZE)
        .collect()
}

/// A request whose prompt shares no block with another's.
fn arrival(id: u64, prompt_length: u32, max_tokens: u32, priority: i32) -> EngineCoreRequest {
    EngineCoreRequest {
        priority,
        ..request(id, &prompt(id, prompt_length), max_tokens)
    }
}

fn render(plan: &SchedulerOutput) -> String {
    let forget = plan.finished.iter().map(|id| format!("-{}", id.0));
    let rows = plan.scheduled.iter();
    let rows = rows.map(|row| format!("{}+{}", row.id.0, row.num_tokens));
    forget.chain(rows).collect::<Vec<_>>().join(" ")
}

/// Adds the requests at once and runs them to their end, each step done
/// before the next is planned.
#[track_caller]
fn check(info: &EngineInfo, requests: &[EngineCoreRequest], expected: &[&str]) {
    let mut scheduler = Scheduler::new(info, 100);
    let mut model = MockModel::new(info.num_kv_blocks, info.block_size, info.vocab_size);
    for request in requests {
        scheduler.add(CLIENT, request.clone()).expect("it fits");
    }
    let mut lines = Vec::new();
    while let Some(plan) = scheduler.schedule(0) {
        scheduler.check_integrity();
        lines.push(render(&plan.output));
        let result = model.step(&plan.output).expect("a legal plan");
        scheduler.update(result).expect("the plan's result");
        scheduler.check_integrity();
    }
    assert_eq!(lines, expected);
    assert_eq!(scheduler.stats().num_used_blocks, 0);
}

#[test]
fn prompts_share_a_step_and_its_budget_and_the_last_is_cut() {
    let requests = [arrival(1, 10, 2, 0), arrival(2, 10, 2, 0)];
    check(
        &engine_info(16),
        &requests,
        &["1+10 2+6", "1+1 2+4", "-1 2+1", "-2"],
    );
}

#[test]
fn a_long_prompt_is_computed_in_chunks_beside_one_that_streams() {
    let requests = [arrival(1, 30, 1, 0), arrival(2, 3, 4, -1)];
    let steps = ["2+3 1+13", "2+1 1+15", "2+1 1+2", "-1 2+1", "-2"];
    check(&engine_info(16), &requests, &steps);
}

#[test]
fn a_long_prompt_of_better_rank_leaves_a_token_to_each_that_streams() {
    let info = engine_info(16);
    let mut scheduler = Scheduler::new(&info, 100);
    let mut model = MockModel::new(info.num_kv_blocks, info.block_size, info.vocab_size);
    let mut step = |scheduler: &mut Scheduler| {
        let plan = scheduler.schedule(0).expect("something is open");
        let result = model.step(&plan.output).expect("a legal plan");
        scheduler.update(result).expect("the plan's result");
        scheduler.check_integrity();
        render(&plan.output)
    };
    for id in [1, 2] {
        scheduler
            .add(CLIENT, arrival(id, 3, 9, 0))
            .expect("it fits");
    }
    assert_eq!(step(&mut scheduler), "1+3 2+3");
    scheduler
        .add(CLIENT, arrival(3, 30, 9, -1))
        .expect("it fits");
    assert_eq!(
        step(&mut scheduler),
        "1+1 2+1 3+14",
        "it is admitted behind those who run"
    );
    assert_eq!(
        step(&mut scheduler),
        "3+14 1+1 2+1",
        "from then on it comes first"
    );
    assert_eq!(step(&mut scheduler), "3+2 1+1 2+1");
}

#[test]
fn slots_are_bounded_and_the_next_enters_when_one_ends() {
    let mut info = engine_info(16);
    info.max_num_seqs = 2;
    let requests = [
        arrival(1, 2, 1, 0),
        arrival(2, 2, 2, 0),
        arrival(3, 2, 1, 0),
        arrival(4, 2, 1, 0),
    ];
    check(
        &info,
        &requests,
        &["1+2 2+2", "-1 2+1 3+2", "-2 -3 4+2", "-4"],
    );
}

#[test]
fn lower_priorities_run_first_and_equal_ones_in_order_of_arrival() {
    let mut info = engine_info(16);
    info.max_num_seqs = 1;
    let requests = [
        arrival(1, 2, 1, 5),
        arrival(2, 2, 1, 0),
        arrival(3, 2, 1, -5),
        arrival(4, 2, 1, 0),
    ];
    check(
        &info,
        &requests,
        &["3+2", "-3 2+2", "-2 4+2", "-4 1+2", "-1"],
    );
}

#[test]
fn the_newest_is_preempted_when_blocks_run_out_and_is_computed_anew() {
    // Four blocks of four: both prompts take one and grow into a second, then
    // the first one into a third and fourth.
    let mut info = engine_info(4);
    info.enable_prefix_caching = false;
    let requests = [arrival(1, 4, 9, 0), arrival(2, 4, 7, 0)];
    let steps = [
        "1+4 2+4", "1+1 2+1", "1+1 2+1", "1+1 2+1", "1+1 2+1", // Eight tokens each.
        "-2 1+1",  // The ninth needs two more blocks for two.
        "1+1", "1+1", "1+1", // Twelve tokens, and the output's last is sampled.
        "-1 2+9", "2+1", "-2",
    ];
    check(&info, &requests, &steps);
}

#[test]
fn who_was_preempted_finds_what_it_computed_in_the_prefix_cache() {
    let info = engine_info(5);
    let requests = [arrival(1, 4, 10, 0), arrival(2, 8, 7, 0)];
    let mut scheduler = Scheduler::new(&info, 100);
    let mut model = MockModel::new(info.num_kv_blocks, info.block_size, info.vocab_size);
    for request in requests {
        scheduler.add(CLIENT, request).expect("it fits");
    }
    let mut cached = Vec::new();
    while let Some(plan) = scheduler.schedule(0) {
        cached.extend(
            plan.output
                .new
                .iter()
                .map(|new| (new.id.0, new.num_computed_tokens)),
        );
        let result = model.step(&plan.output).expect("a legal plan");
        scheduler.update(result).expect("the plan's result");
    }
    assert_eq!(scheduler.stats().num_preemptions, 1);
    assert_eq!(cached[..2], [(1, 0), (2, 0)]);
    assert!(cached[2].0 == 2 && cached[2].1 >= 4, "{cached:?}");
}

#[track_caller]
fn check_refused(change: impl Fn(&mut EngineCoreRequest), expected: Refusal) {
    let mut scheduler = Scheduler::new(&engine_info(4), 2);
    scheduler.add(CLIENT, arrival(1, 4, 4, 0)).expect("it fits");
    let mut request = arrival(2, 8, 8, 0);
    change(&mut request);
    assert_eq!(scheduler.add(CLIENT, request), Err(expected));
    scheduler.check_integrity();
    assert_eq!(scheduler.stats().num_waiting, 1);
}

#[test]
fn what_can_never_run_is_refused_and_nobody_else_notices() {
    check_refused(|request| request.id = RequestId(1), Refusal::DuplicateId(1));
    check_refused(
        |request| request.prompt_token_ids.clear(),
        Refusal::EmptyPrompt,
    );
    check_refused(|request| request.max_tokens = 0, Refusal::NoTokensAskedFor);
    let unknown = Refusal::UnknownToken {
        token_id: VOCAB_SIZE,
        vocab_size: VOCAB_SIZE,
    };
    check_refused(
        |request| request.prompt_token_ids[3] = VOCAB_SIZE,
        unknown.clone(),
    );
    check_refused(
        |request| request.sampling.logit_bias = vec![(VOCAB_SIZE, 1.0)],
        unknown,
    );
    let too_long = |max_tokens| Refusal::TooLong {
        num_prompt_tokens: 8,
        max_tokens,
        max_model_len: 16,
    };
    check_refused(|request| request.max_tokens = 9, too_long(9));
    let huge = u32::MAX as usize;
    check_refused(|request| request.max_tokens = u32::MAX, too_long(huge));
}

#[test]
fn the_queue_is_bounded_and_an_id_is_free_again_after_its_request_ended() {
    let mut scheduler = Scheduler::new(&engine_info(16), 2);
    for id in [1, 2] {
        scheduler
            .add(CLIENT, arrival(id, 4, 4, 0))
            .expect("it fits");
    }
    let third = scheduler.add(CLIENT, arrival(3, 4, 4, 0));
    assert_eq!(third, Err(Refusal::QueueFull(2)));
    assert!(scheduler.abort(CLIENT, RequestId(1)));
    assert!(
        !scheduler.abort(CLIENT, RequestId(1)),
        "it has ended already"
    );
    assert!(
        !scheduler.abort(ClientId(2), RequestId(2)),
        "it is another's"
    );
    scheduler.add(CLIENT, arrival(1, 4, 4, 0)).expect("it fits");
    scheduler.check_integrity();
}

/// One request of 6 tokens of output, up to its end.
fn run_alone(request: EngineCoreRequest) -> (Vec<u32>, Option<FinishReason>, Vec<usize>) {
    let info = engine_info(16);
    let mut scheduler = Scheduler::new(&info, 1);
    let mut model = MockModel::new(info.num_kv_blocks, info.block_size, info.vocab_size);
    scheduler.add(CLIENT, request).expect("it fits");
    let (mut token_ids, mut reason, mut prompt_logprobs) = (vec![], None, vec![]);
    while let Some(plan) = scheduler.schedule(0) {
        let result = model.step(&plan.output).expect("a legal plan");
        for (_, output) in scheduler.update(result).expect("the plan's result") {
            assert_eq!(output.logprobs.len(), output.token_ids.len());
            token_ids.extend(output.token_ids);
            prompt_logprobs.extend(output.prompt_logprobs.map(|entries| entries.len()));
            reason = output.finish_reason;
        }
    }
    (token_ids, reason, prompt_logprobs)
}

#[test]
fn a_stop_token_ends_a_sequence_and_belongs_to_it() {
    let mut request = arrival(1, 5, 6, 0);
    request.sampling.logprobs = Some(0);
    let all = expected_token_ids(
        &request.prompt_token_ids,
        &SamplingParams::greedy(),
        6,
        VOCAB_SIZE,
    );
    request.sampling.stop_token_ids = vec![all[2]];
    let expected = (all[..3].to_vec(), Some(FinishReason::Stop), vec![]);
    assert_eq!(run_alone(request.clone()), expected);

    request.sampling.stop_token_ids = vec![all[5]];
    let expected = (all, Some(FinishReason::Stop), vec![]);
    assert_eq!(run_alone(request), expected);
}

#[test]
fn prompt_logprobs_of_all_chunks_go_out_once_with_the_first_token() {
    let mut request = arrival(1, 40, 3, 0);
    request.sampling.logprobs = Some(0);
    request.sampling.prompt_logprobs = Some(2);
    let (_, reason, prompt_logprobs) = run_alone(request);
    assert_eq!(
        prompt_logprobs,
        [39],
        "one for each prompt token but the first"
    );
    assert_eq!(reason, Some(FinishReason::Length));
}

#[test]
fn a_sequence_that_fails_alone_ends_with_the_workers_reason() {
    let mut scheduler = Scheduler::new(&engine_info(16), 2);
    for id in [1, 2] {
        scheduler
            .add(CLIENT, arrival(id, 4, 4, 0))
            .expect("it fits");
    }
    let plan = scheduler.schedule(0).expect("two wait");
    let result = ModelRunnerOutput {
        step_id: plan.output.step_id,
        sampled: vec![SampledToken {
            id: SequenceId(2),
            token_id: 5,
            logprobs: None,
        }],
        failed: vec![(SequenceId(1), "NaN".into())],
        ..ModelRunnerOutput::default()
    };
    let outputs = scheduler.update(result).expect("the plan's result");
    scheduler.check_integrity();
    let failed = Some(FinishReason::Error("NaN".into()));
    assert_eq!(outputs[0].1.finish_reason, failed);
    assert_eq!(outputs[1].1.token_ids, [5]);
    let next = scheduler.schedule(0).expect("the second goes on");
    assert_eq!(render(&next.output), "-1 2+1");
}

#[track_caller]
fn check_mistake(change: impl Fn(&mut ModelRunnerOutput), expected: WorkerMistake) {
    let info = engine_info(16);
    let mut scheduler = Scheduler::new(&info, 2);
    scheduler.add(CLIENT, arrival(1, 4, 4, 0)).expect("it fits");
    let plan = scheduler.schedule(0).expect("one waits");
    let mut model = MockModel::new(info.num_kv_blocks, info.block_size, info.vocab_size);
    let mut result = model.step(&plan.output).expect("a legal plan");
    change(&mut result);
    assert_eq!(scheduler.update(result), Err(expected));
}

#[test]
fn a_result_that_does_not_answer_its_plan_is_an_error() {
    let (step_id, id) = (StepId(1), SequenceId(1));
    let no_token = WorkerMistake::NoToken { step_id, id };
    check_mistake(|result| result.sampled.clear(), no_token.clone());
    check_mistake(
        |result| result.sampled[0].token_id = VOCAB_SIZE,
        no_token.clone(),
    );
    check_mistake(|result| result.sampled[0].id = SequenceId(2), no_token);
    let stray = WorkerMistake::StrayToken { step_id, id };
    check_mistake(
        |result| result.sampled.push(result.sampled[0].clone()),
        stray,
    );
    let (got, due) = (StepId(2), StepId(1));
    let wrong_step = WorkerMistake::WrongStep { got, due };
    check_mistake(|result| result.step_id = StepId(2), wrong_step);
}

#[test]
fn why_the_first_of_the_waiting_waits_is_told_once_a_reason() {
    let mut info = engine_info(16);
    info.max_num_seqs = 2;
    let mut scheduler = Scheduler::new(&info, 9);
    let mut model = MockModel::new(info.num_kv_blocks, info.block_size, info.vocab_size);
    for (id, length) in [(1, 30), (2, 4), (3, 4)] {
        scheduler
            .add(CLIENT, arrival(id, length, 3, 0))
            .expect("it fits");
    }
    let mut reasons = Vec::new();
    while let Some(plan) = scheduler.schedule(0) {
        let result = model.step(&plan.output).expect("a legal plan");
        scheduler.update(result).expect("the plan's result");
        reasons.extend(scheduler.take_events().into_iter().filter_map(
            |traced| match traced.event {
                SchedulerEvent::NotAdmitted(reason) => Some((traced.trace_key, reason)),
                _ => None,
            },
        ));
    }
    use NotAdmitted::{SequenceSlots, TokenBudget};
    assert_eq!(reasons, [(2, TokenBudget), (3, SequenceSlots)]);
}

#[test]
fn a_preempted_request_tells_its_whole_way() {
    let mut info = engine_info(4);
    info.enable_prefix_caching = false;
    let mut scheduler = Scheduler::new(&info, 9);
    let mut model = MockModel::new(info.num_kv_blocks, info.block_size, info.vocab_size);
    for request in [arrival(1, 4, 9, 0), arrival(2, 4, 7, 0)] {
        scheduler.add(CLIENT, request).expect("it fits");
    }
    let mut told = Vec::new();
    while let Some(plan) = scheduler.schedule(0) {
        let result = model.step(&plan.output).expect("a legal plan");
        scheduler.update(result).expect("the plan's result");
        let events = scheduler.take_events().into_iter();
        told.extend(
            events
                .filter(|event| event.trace_key == 2)
                .map(|event| event.event),
        );
    }
    use SchedulerEvent::*;
    let admitted = Admitted {
        num_cached_tokens: 0,
    };
    let prefill = |step, num_tokens| PrefillPlanned {
        step_id: StepId(step),
        num_tokens,
    };
    let expected = [
        Queued,
        admitted,
        prefill(1, 4),
        PrefillDone(StepId(1)),
        DecodeBegan,
        Preempted {
            num_blocks: 2,
            num_computed_tokens: 8,
        },
        NotAdmitted(super::NotAdmitted::KvBlocks),
        admitted,
        prefill(10, 9),
        PrefillDone(StepId(10)),
        DecodeBegan,
        Finished,
    ];
    assert_eq!(told, expected);
}
