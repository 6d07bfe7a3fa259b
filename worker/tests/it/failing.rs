//! A sequence that fails alone.

use crate::driver::{Driver, Limits};
use crate::golden;
use crate::ops::cpu;
use nano_ipc::config::Dtype;
use nano_ipc::sampling_params::SamplingParams;
use nano_ipc::scheduler_output::{
    BlockId, NewSequence, ScheduledSequence, SchedulerOutput, SequenceId, StepId,
};

fn new(id: u64, sampling: SamplingParams) -> NewSequence {
    NewSequence {
        id: SequenceId(id),
        trace_key: id,
        token_ids: vec![5, 6, 7],
        num_prompt_tokens: 3,
        num_computed_tokens: 0,
        block_ids: vec![BlockId(id as u32)],
        sampling,
    }
}

fn run(id: u64, num_tokens: u32) -> ScheduledSequence {
    ScheduledSequence {
        id: SequenceId(id),
        num_tokens,
        new_block_ids: vec![],
    }
}

#[test]
fn plans_made_before_the_core_knew_find_it_failed_and_the_others_well() {
    let path = golden::path("models/tiny-llama");
    let mut driver = Driver::open(cpu(Dtype::Auto, 2), &path, Limits::default());
    let every_token_banned = SamplingParams {
        logit_bias: (0..768).map(|token| (token, f32::NEG_INFINITY)).collect(),
        ..SamplingParams::greedy()
    };
    let plans = [
        SchedulerOutput {
            new: vec![new(1, every_token_banned), new(2, SamplingParams::greedy())],
            scheduled: vec![run(1, 3), run(2, 3)],
            ..Default::default()
        },
        SchedulerOutput {
            scheduled: vec![run(1, 1), run(2, 1)],
            ..Default::default()
        },
        SchedulerOutput {
            finished: vec![SequenceId(1)],
            scheduled: vec![run(2, 1)],
            ..Default::default()
        },
    ];
    let mut results = Vec::new();
    for (plan, step) in plans.into_iter().zip(1..) {
        let step_id = StepId(step);
        let output = driver.runner.execute(&SchedulerOutput { step_id, ..plan });
        let output = output.expect("a good plan");
        driver.runner.states().check_integrity();
        let failed: Vec<_> = output.failed.iter().map(|(id, _)| id.0).collect();
        let sampled: Vec<_> = output.sampled.iter().map(|token| token.id.0).collect();
        results.push((failed, sampled, output.num_sequences));
    }
    let expected = [
        (vec![1], vec![2], 2),
        (vec![1], vec![2], 2),
        (vec![], vec![2], 1),
    ];
    assert_eq!(results, expected);
}
