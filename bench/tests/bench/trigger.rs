//! The trigger against profilers of every temper.

use crate::double::{Double, Step, ms, stream};
use crate::{bench, options, turns};
use nano_bench::options::Options;
use nano_bench::profiling::Engine;
use serde_json::Value;
use std::time::Duration;

/// A server whose start is answered so.
fn profiler(start: Vec<Step>) -> Double {
    Double::start(move |path, _| match path {
        "/start_profile" => start.clone(),
        "/stop_profile" => vec![Step::Whole(200, "{}")],
        _ => stream([ms(1), ms(1)]),
    })
}

#[test]
fn whatever_a_profiler_answers_the_benchmark_goes_on() {
    let _turn = turns::with_others();
    let server = Double::start(|_, _| stream([ms(1)]));
    let cases: Vec<(&str, Vec<Step>)> = vec![
        ("200", vec![Step::Whole(200, "{}")]),
        ("404", vec![Step::Whole(404, "{}")]),
        ("409", vec![Step::Whole(409, "{}")]),
        ("500", vec![Step::Whole(500, "{}")]),
        ("never", vec![Step::Hang]),
        ("slowly", vec![Step::Wait(ms(1000)), Step::Whole(200, "{}")]),
        ("cut", vec![Step::Close]),
        (
            "dies",
            vec![Step::Whole(200, "{}"), Step::Wait(ms(20)), Step::Die],
        ),
    ];
    let profilers: Vec<Double> = cases
        .iter()
        .map(|(_, start)| profiler(start.clone()))
        .collect();
    let results = bench(Options {
        num_requests: Some(10),
        profile: Some(Engine::Vllm),
        profile_urls: Some(profilers.iter().map(Double::url).collect()),
        ..options(&[&server])
    });
    assert_eq!(results.report.loads[0].requests.complete, 10);

    let log = results.json("profiling.json");
    assert_eq!(log["engine"], "vllm");
    let starts = log["starts"].as_array().expect("a list");
    let status = |call: &Value| call["status"].as_u64();
    let statuses: Vec<Option<u64>> = starts.iter().map(status).collect();
    let ok = Some(200);
    assert_eq!(
        statuses,
        [ok, Some(404), Some(409), Some(500), None, ok, None, ok]
    );
    for (start, profiler) in starts.iter().zip(&profilers) {
        assert_eq!(
            start["url"],
            format!("http://{}/start_profile", profiler.address())
        );
        assert_eq!(profiler.served_at("/start_profile").len(), 1);
        assert_eq!(
            start["error"].is_null(),
            start["status"].is_u64(),
            "{start}"
        );
        assert_eq!(start.get("stop_reason"), None);
    }
    let sent_at = |call: &Value| call["sent_at_ns"].as_u64().expect("a moment");
    let first_to_last = Duration::from_nanos(sent_at(&starts[7]) - sent_at(&starts[0]));
    assert!(
        first_to_last < ms(900),
        "one waits for another: {first_to_last:?}"
    );

    let stops = log["stops"].as_array().expect("a list");
    let stopped: Vec<&str> = stops
        .iter()
        .map(|stop| stop["url"].as_str().expect("a URL"))
        .collect();
    let stop_of = |place: usize| format!("http://{}/stop_profile", profilers[place].address());
    assert_eq!(stopped, [stop_of(0), stop_of(5), stop_of(7)]);
    assert_eq!(stops.iter().map(status).collect::<Vec<_>>(), [ok, ok, None]);
    assert!(stops.iter().all(|stop| stop["stop_reason"] == "phase_end"));
    for (place, profiler) in profilers.iter().enumerate() {
        let expected = usize::from(place == 0 || place == 5);
        assert_eq!(
            profiler.served_at("/stop_profile").len(),
            expected,
            "{}",
            cases[place].0
        );
    }
    // All that is measured lies between the last answer to a start and the stops.
    let requests = server.served_at("/v1/chat/completions");
    let ended = requests.iter().filter_map(|served| served.ended);
    assert!(ended.max().expect("requests").ns() < sent_at(&stops[0]));
    let received = requests.iter().map(|served| served.received.ns()).min();
    assert!(received.expect("requests") > sent_at(&starts[7]));

    let text = std::fs::read_to_string(results.dir.path().join("report.txt")).expect("written");
    let section = text.split("Profiling\n").nth(1).expect("a section");
    let start_404 = format!(
        "  Start:  POST {}",
        starts[1]["url"].as_str().expect("a URL")
    );
    let line = section.lines().find(|line| line.starts_with(&start_404));
    let line = line.expect("the start that was answered with 404");
    assert!(
        line.ends_with("-> 404 (profiling is not enabled on the server)"),
        "{line}"
    );
    assert!(section.starts_with("  Engine: vllm\n"), "{section}");
    assert!(section.contains("  Trigger span: "), "{section}");
}

#[test]
fn each_engine_is_asked_at_its_own_address() {
    let _turn = turns::with_others();
    for (engine, path) in [
        (Engine::Nano, "/start_profile"),
        (Engine::Vllm, "/start_profile"),
        (Engine::Sglang, "/start_profile"),
        (Engine::Megatron, "/v1/start_profile"),
    ] {
        let double = Double::start(|path, _| match path {
            "/v1/chat/completions" => stream([ms(1)]),
            _ => vec![Step::Whole(200, "{}")],
        });
        let twice = Options {
            // The same server under two names is started once.
            base_url: Some(vec![double.url(), format!("{}/", double.url())]),
            ..options(&[&double])
        };
        bench(Options {
            num_requests: Some(1),
            profile: Some(engine),
            ..twice
        });
        let starts = double.served_at(path);
        assert_eq!(starts.len(), 1, "{engine:?}");
        assert_eq!(starts[0].body, "", "{engine:?}");
    }
}

#[test]
fn each_load_of_a_sweep_is_recorded_by_itself() {
    let _turn = turns::with_others();
    let double = profiler(vec![Step::Whole(200, "{}")]);
    let results = bench(Options {
        num_requests: Some(2),
        warmup_requests: Some(2),
        concurrency: Some(vec![1, 2]),
        profile: Some(Engine::Nano),
        ..options(&[&double])
    });
    let paths: Vec<String> = double
        .served()
        .into_iter()
        .map(|served| {
            served
                .path
                .trim_start_matches("/v1/")
                .trim_start_matches('/')
                .to_owned()
        })
        .filter(|path| path != "version")
        .collect();
    let (chat, start, stop) = ("chat/completions", "start_profile", "stop_profile");
    assert_eq!(
        paths,
        [chat, chat, start, chat, chat, stop, start, chat, chat, stop]
    );
    assert_eq!(
        results.json("profiling.json")["stops"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
}
