//! Several servers, of which one is dead, and what is asked of them.

use crate::double::{Double, ms, stream};
use crate::{bench, options, turns};
use nano_bench::options::Options;
use nano_bench::profiling::Engine;
use serde_json::Value;
use std::net::TcpListener;

/// An address at which nobody listens.
fn dead_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("http://{}/v1", listener.local_addr().expect("bound"))
}

#[test]
fn a_dead_server_costs_its_own_share_and_no_more() {
    let _turn = turns::with_others();
    let double = Double::start(|path, _| match path {
        "/v1/chat/completions" => stream([ms(1), ms(1)]),
        _ => vec![crate::double::Step::Whole(200, "{}")],
    });
    let mut options = options(&[&double]);
    let urls = options.base_url.as_mut().expect("set");
    urls.push(dead_url());
    let results = bench(Options {
        num_requests: Some(20),
        concurrency: Some(vec![3]),
        profile: Some(Engine::Nano),
        ..options
    });
    let summary = &results.report.loads[0];
    assert_eq!(summary.requests.complete, 10);
    assert_eq!(summary.failures["connect"].count, 10);
    let profiling = results.json("profiling.json");
    assert_eq!(profiling["starts"][0]["status"], 200);
    assert_eq!(profiling["starts"][1]["status"], Value::Null);
    let error = profiling["starts"][1]["error"].as_str().expect("an error");
    assert!(error.contains("no connection"), "{error}");
    assert_eq!(profiling["stops"].as_array().expect("a list").len(), 1);
    assert_eq!(profiling["stops"][0]["status"], 200);
    assert_eq!(double.served_at("/stop_profile").len(), 1);
}

#[test]
fn model_and_version_are_asked_for() {
    use crate::double::Step::Whole;
    let _turn = turns::with_others();
    let double = Double::start(|path, _| match path {
        "/v1/models" => vec![Whole(
            200,
            r#"{"data": [{"id": "first"}, {"id": "second"}]}"#,
        )],
        "/version" => vec![Whole(200, r#"{"version": "1.2.3"}"#)],
        _ => stream([ms(1)]),
    });
    let results = bench(Options {
        model: None,
        api_key: Some("secret-key".to_owned()),
        num_requests: Some(1),
        ..options(&[&double])
    });
    let summary = results.json("result_summary.json");
    assert_eq!(summary["model"], "first");
    assert_eq!(summary["versions"]["servers"][0], "1.2.3");
    assert!(!summary.to_string().contains("secret-key"), "{summary}");
    let served = &double.served_at("/v1/chat/completions")[0];
    assert_eq!(served.authorization.as_deref(), Some("Bearer secret-key"));
    let body: Value = serde_json::from_str(&served.body).expect("JSON");
    assert_eq!(body["model"], "first");
}

#[test]
fn a_sweep_measures_each_load_and_repeats_no_request() {
    let _turn = turns::with_others();
    let double = Double::start(|_, _| stream([ms(1), ms(1)]));
    let results = bench(Options {
        concurrency: Some(vec![1, 2, 4]),
        warmup_requests: Some(3),
        num_requests: Some(8),
        ..options(&[&double])
    });
    let served = double.requests();
    assert_eq!(served.len(), 3 + 3 * 8);
    let mut bodies: Vec<&str> = served.iter().map(|served| served.body.as_str()).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), served.len(), "each prompt is sent once");
    let records = results.records();
    assert_eq!(records.len(), 24, "without the warm-up");
    for load in 0..3 {
        let of_load = records.iter().filter(|record| record["load"] == load);
        assert_eq!(of_load.count(), 8);
    }
    for name in ["sweep.svg", "latency_cdf.svg", "throughput.svg"] {
        let svg = std::fs::read_to_string(results.dir.path().join(name)).expect(name);
        assert!(
            svg.contains("concurrency 4") || name == "sweep.svg",
            "{name}"
        );
        assert!(svg.matches("<polyline").count() >= 3, "{name}: curves");
    }
}

#[test]
fn no_request_is_sent_after_the_duration() {
    let _turn = turns::with_others();
    let double = Double::start(|_, _| stream([ms(20)]));
    let results = bench(Options {
        duration: Some(ms(400)),
        ..options(&[&double])
    });
    let served = double.requests();
    assert!(
        served.len() > 1 && served.len() <= 20,
        "{} requests",
        served.len()
    );
    assert_eq!(
        results.report.loads[0].requests.complete,
        served.len() as u64
    );
    let last = served[served.len() - 1]
        .received
        .ms_since(served[0].received);
    assert!(last < 600.0, "the last came after {last} ms");
}
