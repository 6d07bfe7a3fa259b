use super::*;
use nano_ipc::sampling_params::SamplingParams;
use proptest::prelude::*;

fn params() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        seed: 1,
        ..SamplingParams::greedy()
    }
}

/// A sequence of a prompt and what was generated.
fn sequence(prompt: &[u32], output: &[u32], sampling: SamplingParams) -> SequenceState {
    SequenceState {
        trace_key: 0,
        token_ids: [prompt, output].concat(),
        num_prompt_tokens: prompt.len(),
        num_computed_tokens: 0,
        block_table: vec![],
        sampling,
        was_scheduled: false,
        failed: None,
    }
}

/// Tokens drawn with the seeds `0..draws`.
fn draw(logits: &[f32], draws: u64, sampling: &SamplingParams) -> Vec<u32> {
    let mut sampler = Sampler::default();
    (0..draws)
        .map(|seed| {
            let sequence = sequence(
                &[0],
                &[],
                SamplingParams {
                    seed,
                    ..sampling.clone()
                },
            );
            sampler.sample(logits, &sequence).expect("finite logits")
        })
        .collect()
}

fn distinct(mut token_ids: Vec<u32>) -> Vec<u32> {
    token_ids.sort_unstable();
    token_ids.dedup();
    token_ids
}

fn greedy_with(logits: &[f32], output: &[u32], change: impl FnOnce(&mut SamplingParams)) -> u32 {
    let mut sampling = SamplingParams {
        temperature: 0.0,
        ..params()
    };
    change(&mut sampling);
    let sequence = sequence(&[0, 1], output, sampling);
    Sampler::default()
        .sample(logits, &sequence)
        .expect("finite logits")
}

#[test]
fn greedy_takes_the_lowest_of_equals_and_no_nan() {
    assert_eq!(greedy_with(&[1.0, f32::NAN, 3.0, 3.0], &[], |_| {}), 2);
    assert_eq!(greedy_with(&[1.0, f32::INFINITY, 3.0], &[], |_| {}), 1);
}

#[test]
fn broken_logits_fail_alone_greedy_or_not() {
    for temperature in [0.0, 1.0] {
        let sequence = sequence(
            &[0],
            &[],
            SamplingParams {
                temperature,
                ..params()
            },
        );
        for logits in [[f32::NAN; 3], [f32::NEG_INFINITY; 3]] {
            let result = Sampler::default().sample(&logits, &sequence);
            assert_eq!(result, Err(SampleError::NoFiniteLogit));
        }
        let mixed = [f32::NAN, f32::NEG_INFINITY, -3.0, f32::NAN];
        assert_eq!(Sampler::default().sample(&mixed, &sequence), Ok(2));
    }
}

#[test]
fn draws_follow_the_softmax_of_logits_over_temperature() {
    let logits = [0.0, 1.0, 2.0, -1.0];
    let temperature = 0.7;
    let draws = 40_000;
    let drawn = draw(
        &logits,
        draws,
        &SamplingParams {
            temperature,
            ..params()
        },
    );
    let weights = logits.map(|logit: f32| f64::from(logit / temperature).exp());
    let total: f64 = weights.iter().sum();
    let chi_square: f64 = weights
        .iter()
        .enumerate()
        .map(|(id, weight)| {
            let expected = weight / total * draws as f64;
            let count = drawn.iter().filter(|&&t| t as usize == id).count();
            (count as f64 - expected).powi(2) / expected
        })
        .sum();
    // Three degrees of freedom: exceeded once in a thousand.
    assert!(chi_square < 16.3, "{chi_square}");
}

#[test]
fn filters_keep_exactly_the_tokens_that_they_name() {
    // Probabilities 0.5, 0.25, 0.125, 0.125 (two equal: the lower id goes first).
    let logits = [8f32, 1.0, 2.0, 4.0, 1.0].map(f32::ln);
    let logits = [
        logits[0],
        logits[3],
        logits[2],
        logits[1] + 2f32.ln(),
        f32::NEG_INFINITY,
    ];
    let kept = |change: fn(&mut SamplingParams)| {
        let mut sampling = params();
        change(&mut sampling);
        distinct(draw(&logits, 400, &sampling))
    };
    assert_eq!(kept(|_| {}), [0, 1, 2, 3]);
    assert_eq!(kept(|p| p.top_k = 3), [0, 1, 2]);
    assert_eq!(kept(|p| p.top_k = 1), [0]);
    assert_eq!(kept(|p| p.top_p = 0.49), [0]);
    assert_eq!(kept(|p| p.top_p = 0.6), [0, 1]);
    assert_eq!(kept(|p| p.top_p = 0.8), [0, 1, 2]);
    assert_eq!(kept(|p| p.min_p = 0.3), [0, 1]);
    assert_eq!(kept(|p| p.min_p = 1.0), [0]);
    // Of what top_k leaves (2/3 and 1/3), top_p keeps the first.
    assert_eq!(kept(|p| (p.top_k, p.top_p) = (2, 0.6)), [0]);
}

#[test]
fn bias_and_penalties_move_logits_as_documented() {
    let logits = [2.0, 1.9, 1.0, -1.0];
    assert_eq!(
        greedy_with(&logits, &[], |p| p.logit_bias = vec![(3, 4.0)]),
        3
    );
    // Token 0 was generated three times: 2.0 - 0.3 < 1.9 - 0.0.
    assert_eq!(
        greedy_with(&logits, &[0, 0, 0], |p| p.frequency_penalty = 0.1),
        1
    );
    // ... but once for presence: 2.0 - 0.05 > 1.9.
    assert_eq!(
        greedy_with(&logits, &[0, 0, 0], |p| p.presence_penalty = 0.05),
        0
    );
    assert_eq!(
        greedy_with(&logits, &[0, 0, 0], |p| p.presence_penalty = 0.15),
        1
    );
    // Frequency and presence leave the prompt (0, 1) alone, repetition does not:
    // 2.0 / 2 and 1.9 / 2 fall below 1.0 + 0.01.
    let bias = |p: &mut SamplingParams| p.logit_bias = vec![(2, 0.01)];
    assert_eq!(
        greedy_with(&logits, &[], |p| (bias(p), p.presence_penalty = 2.0).1),
        0
    );
    assert_eq!(
        greedy_with(&logits, &[], |p| (bias(p), p.repetition_penalty = 2.0).1),
        2
    );
    // A negative logit is multiplied: -1.0 becomes -0.5 for a factor of 0.5.
    let negative = [-1.0, -1.0, -0.6, -9.0];
    assert_eq!(
        greedy_with(&negative, &[], |p| p.repetition_penalty = 0.5),
        0
    );
}

#[test]
fn stop_tokens_are_banned_before_min_tokens() {
    let logits = [1.0, 5.0, 4.0, 0.0];
    let ban = |p: &mut SamplingParams| (p.min_tokens, p.stop_token_ids) = (2, vec![1, 2]);
    assert_eq!(greedy_with(&logits, &[3], ban), 0);
    assert_eq!(greedy_with(&logits, &[3, 3], ban), 1);
}

#[test]
fn reported_logprobs_are_normalized_ranked_and_finite() {
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0];
    let total: f32 = [1f32, 3.0, 3.0].iter().map(|l| l.exp()).sum();
    let of = |token_id| token_logprobs(&logits, token_id, 3);
    assert_eq!(of(3).rank, 2);
    assert!((of(3).logprob - (3.0 - total.ln())).abs() < 1e-6);
    let top_ids: Vec<u32> = of(0).top.iter().map(|&(id, _)| id).collect();
    assert_eq!((of(0).rank, top_ids), (3, vec![1, 3, 0]));
    assert_eq!((of(2).rank, of(2).logprob), (4, LOWEST_LOGPROB));
    // A broken row says nothing, but says it in numbers; its order stands.
    for broken in [f32::NAN, f32::INFINITY] {
        let logprobs = token_logprobs(&[1.0, broken, 2.0], 0, 3);
        assert!(logprobs.top.iter().all(|&(_, l)| l == LOWEST_LOGPROB));
        assert_eq!(logprobs.logprob, LOWEST_LOGPROB);
    }
    assert_eq!(token_logprobs(&[1.0, f32::NAN, 2.0], 1, 0).rank, 3);
    let nothing = token_logprobs(&[f32::NEG_INFINITY; 2], 1, 2);
    assert_eq!(nothing.top, [(0, LOWEST_LOGPROB), (1, LOWEST_LOGPROB)]);
}

proptest! {
    /// Against the definition: sort everything, then cut.
    #[test]
    fn top_p_over_many_tokens_keeps_the_smallest_set(
        logits in prop::collection::vec(-6.0f32..6.0, 1..2000),
        top_p in 0.01f32..0.999,
        seed: u64,
    ) {
        let mut sorted: Vec<(u32, f64)> =
            (0..).zip(logits.iter().map(|&l| f64::from(l).exp())).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let total: f64 = sorted.iter().map(|e| e.1).sum();
        let drawn = Sampler::default()
            .sample(&logits, &sequence(&[0], &[], SamplingParams { top_p, seed, ..params() }))
            .expect("finite logits");
        let before: f64 = sorted.iter().take_while(|e| e.0 != drawn).map(|e| e.1).sum();
        // Weights are f32: a set that ends within rounding of top_p may go either way.
        prop_assert!(before < f64::from(top_p) * total * (1.0 + 1e-5));
    }

    #[test]
    fn every_combination_draws_a_possible_token(
        logits in prop::collection::vec(
            prop_oneof![8 => -30.0f32..30.0, 1 => Just(f32::NAN), 1 => Just(f32::NEG_INFINITY)],
            1..300,
        ),
        temperature in prop_oneof![Just(0.0f32), Just(f32::MIN_POSITIVE), 0.01f32..2.0],
        top_k in 0u32..400,
        top_p in 0.001f32..=1.0,
        min_p in 0.0f32..=1.0,
        seed: u64,
    ) {
        let sampling = SamplingParams { temperature, top_k, top_p, min_p, seed, ..params() };
        let result = Sampler::default().sample(&logits, &sequence(&[0], &[], sampling));
        match result {
            Ok(token_id) => prop_assert!(logits[token_id as usize].is_finite()),
            Err(_) => prop_assert!(!logits.iter().any(|l| l.is_finite())),
        }
    }
}
