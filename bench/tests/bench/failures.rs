//! Whatever a server does wrong is counted under its name, and ends no run.

use crate::double::{Double, Step, ms, stream};
use crate::{bench, options, turns};
use nano_bench::options::{Api, Options};
use serde_json::json;

#[test]
fn each_failure_is_counted_under_its_name() {
    let _turn = turns::with_others();
    let good = || stream([ms(1), ms(1), ms(1)]);
    let begun = |rest: &[Step]| [&[Step::StreamHead, Step::Token], rest].concat();
    let cases: Vec<(&str, Vec<Step>)> = vec![
        ("complete", good()),
        (
            "malformed_sse",
            begun(&[Step::Event("{\"choices\": [{\"del")]),
        ),
        ("malformed_sse", vec![Step::Whole(200, "{\"choices\": []}")]),
        ("complete", good()),
        ("cut_stream", begun(&[Step::Close])),
        ("cut_stream", begun(&[Step::End])),
        (
            "error_object",
            begun(&[
                Step::Event(r#"{"error": {"message": "out of memory"}}"#),
                Step::End,
            ]),
        ),
        (
            "http_429",
            vec![Step::Whole(429, r#"{"error": {"message": "later"}}"#)],
        ),
        ("http_500", vec![Step::Whole(500, "oops")]),
        ("hang", begun(&[Step::Hang])),
        ("hang", vec![Step::Hang]),
        ("no_response", vec![Step::Close]),
        (
            "timeout",
            begun(
                &(0..200)
                    .flat_map(|_| [Step::Wait(ms(50)), Step::Token])
                    .collect::<Vec<Step>>(),
            ),
        ),
        // Whole as HTTP, and a choice has said why it ends.
        (
            "complete",
            begun(&[
                Step::Event(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#),
                Step::End,
            ]),
        ),
        ("complete", good()),
    ];
    let scripts: Vec<Vec<Step>> = cases.iter().map(|(_, script)| script.clone()).collect();
    let count = cases.len();
    let double = Double::start(move |_, number| scripts[number].clone());
    let results = bench(Options {
        num_requests: Some(count as u64),
        idle_timeout: Some(ms(1500)),
        timeout: Some(ms(3000)),
        ..options(&[&double])
    });
    let records = results.records();
    let outcomes: Vec<&str> = records
        .iter()
        .map(|record| record["outcome"].as_str().expect("a name"))
        .collect();
    let expected: Vec<&str> = cases.iter().map(|(name, _)| *name).collect();
    assert_eq!(outcomes, expected);

    let summary = &results.json("result_summary.json")["loads"][0];
    let failures = summary["failures"].as_object().expect("an object");
    for (name, failure) in failures {
        let expected = cases.iter().filter(|(case, _)| case == name).count();
        assert_eq!(failure["count"], expected, "{name}");
    }
    assert_eq!(failures.len(), 8, "{failures:?}");
    assert_eq!(failures["error_object"]["example"], "out of memory");
    assert_eq!(
        summary["requests"],
        json!({"sent": count, "complete": 4, "failed": count - 4, "aborted": 0})
    );
    // Only whole answers are measured.
    assert_eq!(summary["e2e_ms"]["count"], 4.0);
    assert_eq!(summary["tokens"]["output"], 3 + 3 + 1 + 3);
}

#[test]
fn whole_answers_are_measured_without_a_stream() {
    let _turn = turns::with_others();
    let double = Double::start(|_, number| match number {
        0 => vec![Step::Whole(200, "no JSON")],
        1 => vec![Step::Whole(200, r#"{"error": "none"}"#)],
        _ => vec![Step::Whole(
            200,
            r#"{"choices": [{"text": "a b"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}"#,
        )],
    });
    let results = bench(Options {
        no_stream: Some(true),
        api: Some(Api::Completions),
        num_requests: Some(5),
        ..options(&[&double])
    });
    let summary = &results.report.loads[0];
    assert_eq!(summary.requests.complete, 3);
    assert_eq!((summary.tokens.prompt, summary.tokens.output), (9, 6));
    let failures: Vec<&String> = summary.failures.keys().collect();
    assert_eq!(failures, ["error_object", "malformed_json"]);
    assert_eq!((summary.ttft_ms.count, summary.e2e_ms.count), (0.0, 3.0));
    assert_eq!(double.served_at("/v1/completions").len(), 5);
}
