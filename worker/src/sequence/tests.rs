use super::*;
use nano_ipc::scheduler_output::{BlockId, ScheduledSequence, StepId};

const LIMITS: PlanLimits = PlanLimits {
    vocab_size: 100,
    max_model_len: 16,
    block_size: 4,
    num_kv_blocks: 8,
    max_num_batched_tokens: 8,
    max_num_seqs: 2,
};

fn new(id: u64, token_ids: &[u32], block_ids: &[u32]) -> NewSequence {
    NewSequence {
        id: SequenceId(id),
        trace_key: id,
        token_ids: token_ids.to_vec(),
        num_prompt_tokens: token_ids.len() as u32,
        num_computed_tokens: 0,
        block_ids: block_ids.iter().copied().map(BlockId).collect(),
        sampling: SamplingParams::greedy(),
    }
}

fn run(id: u64, num_tokens: u32, new_block_ids: &[u32]) -> ScheduledSequence {
    ScheduledSequence {
        id: SequenceId(id),
        num_tokens,
        new_block_ids: new_block_ids.iter().copied().map(BlockId).collect(),
    }
}

/// A plan that keeps every rule, as step 1.
fn good() -> SchedulerOutput {
    SchedulerOutput {
        step_id: StepId(1),
        finished: vec![],
        new: vec![new(1, &[1, 2, 3, 4, 5], &[0, 1]), new(2, &[9], &[7])],
        scheduled: vec![run(1, 5, &[]), run(2, 1, &[])],
    }
}

#[test]
fn a_good_plan_is_taken_and_finished_sequences_are_forgotten() {
    let mut states = SequenceStates::new(LIMITS);
    states.apply(&good()).expect("keeps the rules");
    states.check_integrity();
    assert_eq!(states.len(), 2);
    let end = SchedulerOutput {
        step_id: StepId(2),
        finished: vec![SequenceId(1), SequenceId(2)],
        ..Default::default()
    };
    states.apply(&end).expect("keeps the rules");
    assert!(states.is_empty());
}

#[test]
fn every_broken_rule_is_an_error() {
    type Break = fn(&mut SchedulerOutput);
    let breaks: [(Break, &str); 15] = [
        (|p| p.step_id.0 = 2, "follows step 0"),
        (|p| p.finished.push(SequenceId(3)), "finished, but unknown"),
        (|p| p.new.push(new(1, &[1], &[2])), "known already"),
        (|p| p.scheduled[0].id.0 = 5, "but unknown"),
        (|p| p.scheduled[1] = run(1, 1, &[]), "scheduled twice"),
        (|p| p.new[0].token_ids = vec![1; 17], "the limit is 16"),
        (|p| p.new[0].num_prompt_tokens = 0, "a prompt of 0"),
        (|p| p.new[0].num_prompt_tokens = 6, "a prompt of 6"),
        (|p| p.new[0].num_computed_tokens = 5, "5 computed"),
        (|p| p.new[0].token_ids[2] = 100, "token id 100"),
        (|p| p.new[0].block_ids[1].0 = 8, "KV block 8"),
        (|p| p.scheduled[0].num_tokens = 6, "given 6 tokens"),
        (|p| p.scheduled[0].num_tokens = 0, "given 0 tokens"),
        (|p| p.new[0].block_ids.truncate(1), "1 KV blocks of 4 for 5"),
        (
            |p| p.scheduled[0].new_block_ids.push(BlockId(9)),
            "KV block 9",
        ),
    ];
    for (change, message) in breaks {
        let mut plan = good();
        change(&mut plan);
        let error = SequenceStates::new(LIMITS)
            .apply(&plan)
            .expect_err(message)
            .to_string();
        assert!(error.contains(message), "{error:?} for {message:?}");
    }
}

#[test]
fn a_batch_beyond_its_limits_is_an_error() {
    let mut plan = good();
    plan.new.push(new(3, &[1], &[5]));
    plan.scheduled.push(run(3, 1, &[]));
    let error = SequenceStates::new(LIMITS).apply(&plan);
    assert_eq!(
        error,
        Err(PlanError::BatchSequences {
            sequences: 3,
            max: 2
        })
    );

    let mut plan = good();
    plan.new[0] = new(1, &[1; 8], &[0, 1]);
    plan.scheduled[0].num_tokens = 8;
    let error = SequenceStates::new(LIMITS).apply(&plan);
    assert_eq!(error, Err(PlanError::BatchTokens { tokens: 9, max: 8 }));
}

#[test]
#[should_panic(expected = "is written by")]
fn two_writers_of_one_block_are_found() {
    let mut states = SequenceStates::new(LIMITS);
    let mut plan = good();
    plan.new[1].block_ids[0].0 = 1;
    states
        .apply(&plan)
        .expect("each sequence alone keeps the rules");
    states.check_integrity();
}
