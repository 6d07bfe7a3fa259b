//! Against a second, slower statement of the same rules.

use super::*;
use nano_ipc::step_bounds::Cycle;
use proptest::prelude::*;
use std::num::NonZeroU64;

const P: Stage = Stage::Prefill;
const D: Stage = Stage::Decode;

fn cycle(skip: u64, record: u64, repeat: u64) -> Option<Cycle> {
    let some = |number| NonZeroU64::new(number).expect("not 0");
    Some(Cycle {
        skip,
        record: some(record),
        repeat: NonZeroU64::new(repeat),
    })
}

/// What the core's loop tells a plan, by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Planned(u64),
    Done(u64),
}

/// The loop with so many steps in flight: what it tells when. A turn takes ten
/// units of time, plans at its begin and takes in a result at its end.
fn turns(stages: &[Stage], depth: usize) -> Vec<(u64, Told)> {
    let (mut told, mut planned, mut done) = (Vec::new(), 0, 0);
    let mut time = 0;
    while done < stages.len() {
        time += 10;
        if planned < stages.len() {
            planned += 1;
            told.push((time, Told::Planned(planned as u64)));
        }
        if planned - done >= depth || planned == stages.len() {
            done += 1;
            told.push((time + 5, Told::Done(done as u64)));
        }
    }
    told
}

fn switches(bounds: StepBounds, stages: &[Stage], depth: usize) -> Vec<Switch> {
    let mut plan = StepPlan::new(bounds);
    turns(stages, depth)
        .into_iter()
        .filter_map(|(time, told)| match told {
            Told::Planned(step) => {
                let stage = stages[step as usize - 1];
                plan.planned(StepId(step), stage, time).switch
            }
            Told::Done(step) => plan.done(StepId(step), time),
        })
        .collect()
}

/// Numbers of the steps that are to be recorded, and whether that is all there
/// ever will be.
fn recorded(bounds: StepBounds, stages: &[Stage]) -> (Vec<u64>, bool) {
    let counting: Vec<(u64, Stage)> = (1..)
        .zip(stages.iter().copied())
        .filter(|(step, _)| *step >= bounds.first_step)
        .filter(|(_, stage)| !matches!(bounds.stages, Stages::Only(only) if only != *stage))
        .skip(bounds.delay as usize)
        .collect();
    let Some(cycle) = bounds.cycle else {
        return (counting.iter().map(|(step, _)| *step).collect(), false);
    };
    let (mut rest, mut all) = (&counting[..], Vec::new());
    for _ in 0..cycle.repeat.map_or(u64::MAX, NonZeroU64::get) {
        rest = &rest[rest.len().min(cycle.skip as usize)..];
        let (mut prefill, mut decode) = (cycle.record.get(), cycle.record.get());
        let mut left = match bounds.stages {
            Stages::Each => prefill + decode,
            _ => prefill,
        };
        while left > 0 {
            let Some(((step, stage), behind)) = rest.split_first() else {
                return (all, false);
            };
            rest = behind;
            let of_stage = if *stage == P {
                &mut prefill
            } else {
                &mut decode
            };
            if bounds.stages != Stages::Each || *of_stage > 0 {
                *of_stage = of_stage.saturating_sub(1);
                left -= 1;
                all.push(*step);
            }
        }
    }
    (all, true)
}

/// Steps that a worker records, which sees plans only.
fn recorded_by_workers(bounds: StepBounds, stages: &[Stage]) -> Vec<u64> {
    let mut plan = StepPlan::new(bounds);
    let mut on = false;
    let mut all = Vec::new();
    for (step, stage) in (1..).zip(stages) {
        let planned = plan.planned(StepId(step), *stage, 0);
        on = planned.at_begin.unwrap_or(on);
        if on {
            all.push(step);
        }
        on &= !planned.off_at_end;
    }
    all
}

/// Begin of each step's turn and the time of its result.
fn life(told: &[(u64, Told)], step: u64) -> (u64, u64) {
    let time = |what| told.iter().find(|(_, told)| *told == what).expect("told").0;
    (time(Told::Planned(step)), time(Told::Done(step)))
}

fn bounds() -> impl Strategy<Value = StepBounds> {
    let stages = prop_oneof![
        Just(Stages::All),
        Just(Stages::Only(P)),
        Just(Stages::Only(D)),
        Just(Stages::Each),
    ];
    let cycle = proptest::option::of((0..4u64, 1..5u64, 0..4u64));
    (0..6u64, stages, 0..4u64, cycle).prop_map(|(first_step, stages, delay, of)| StepBounds {
        first_step,
        stages,
        delay,
        cycle: of.and_then(|(skip, record, repeat)| self::cycle(skip, record, repeat)),
    })
}

proptest! {
    #[test]
    fn just_the_steps_that_count_are_recorded(
        bounds in bounds(),
        stages in proptest::collection::vec(prop_oneof![Just(P), Just(D)], 0..40),
        depth in 1..4usize,
    ) {
        let told = turns(&stages, depth);
        let (recorded, complete) = recorded(bounds, &stages);
        prop_assert_eq!(&recorded_by_workers(bounds, &stages), &recorded);
        let switches = switches(bounds, &stages, depth);
        for (at, switch) in switches.iter().enumerate() {
            prop_assert_eq!(switch.on, at % 2 == 0);
            let is_end = complete && at + 1 == switches.len();
            prop_assert_eq!(switch.last, is_end, "{:?}", switches);
        }
        prop_assert!(switches.is_sorted_by_key(|switch| switch.at_ns));
        prop_assert_eq!(switches.is_empty(), recorded.is_empty());
        let intervals: Vec<(u64, u64)> = switches
            .chunks(2)
            .map(|pair| (pair[0].at_ns, pair.get(1).map_or(u64::MAX, |off| off.at_ns)))
            .collect();
        for step in 1..=stages.len() as u64 {
            let (begin, end) = life(&told, step);
            let whole = intervals.iter().any(|(on, off)| *on <= begin && end <= *off);
            if recorded.contains(&step) {
                prop_assert!(whole, "step {} of {:?}: {:?}", step, recorded, intervals);
            } else if depth == 1 {
                let touched = intervals.iter().any(|(on, off)| *on < end && begin < *off);
                prop_assert!(!touched, "step {} of {:?}: {:?}", step, recorded, intervals);
            } else {
                // At least its end or its begin is outside.
                let beside = recorded.contains(&(step - 1)) && recorded.contains(&(step + 1));
                prop_assert!(!whole || beside, "step {} of {:?}: {:?}", step, recorded, intervals);
            }
        }
    }
}

#[track_caller]
fn check(bounds: StepBounds, stages: &[Stage], expected: &[(u64, bool, bool)]) {
    let found: Vec<(u64, bool, bool)> = switches(bounds, stages, 2)
        .iter()
        .map(|switch| (switch.at_ns, switch.on, switch.last))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn n_steps_begin_with_the_turn_of_the_first_and_end_with_the_result_of_the_last() {
    let bounds = StepBounds {
        delay: 1,
        cycle: cycle(0, 2, 1),
        ..StepBounds::default()
    };
    // Planned in turns 2 and 3; the result of step 3 comes in turn 4.
    check(
        bounds,
        &[P, D, D, D, D, D],
        &[(20, true, false), (45, false, true)],
    );
}

#[test]
fn a_schedule_repeats() {
    let bounds = StepBounds {
        cycle: cycle(2, 1, 2),
        ..StepBounds::default()
    };
    check(
        bounds,
        &[D; 9],
        &[
            (30, true, false),
            (45, false, false),
            (60, true, false),
            (75, false, true),
        ],
    );
}

#[test]
fn a_stage_is_recorded_without_the_other() {
    let bounds = StepBounds {
        stages: Stages::Only(P),
        cycle: cycle(0, 2, 1),
        ..StepBounds::default()
    };
    check(
        bounds,
        &[D, P, D, D, D, P, D],
        &[
            (20, true, false),
            (35, false, false),
            (60, true, false),
            (75, false, true),
        ],
    );
}

#[test]
fn each_stage_has_its_own_number() {
    let bounds = StepBounds {
        stages: Stages::Each,
        cycle: cycle(0, 1, 1),
        ..StepBounds::default()
    };
    check(
        bounds,
        &[P, P, P, D, D],
        &[
            (10, true, false),
            (25, false, false),
            (40, true, false),
            (55, false, true),
        ],
    );
}

#[test]
fn without_a_number_it_never_ends() {
    let bounds = StepBounds {
        first_step: 3,
        ..StepBounds::default()
    };
    check(bounds, &[D; 6], &[(30, true, false)]);
}
