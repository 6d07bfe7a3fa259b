//! `/metrics`, ids and trace contexts.

use crate::support::{Server, config, engine_info, get, output, request};
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::to_frontend::SchedulerStats;

#[test]
fn counters_and_histograms_follow_a_request() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        let body = br#"{"prompt": [7, 8, 9], "max_tokens": 5}"#;
        request(addr, "POST", "/v1/completions", &[], body).json()
    });
    let id = core.next_add().id;
    let stats = SchedulerStats {
        num_running: 1,
        num_waiting: 2,
        num_requests: 3,
        num_worker_sequences: 4,
        num_used_blocks: 250,
        num_steps: 11,
        num_preemptions: 3,
        prefix_cache_queries: 30,
        prefix_cache_hits: 16,
    };
    core.outputs_with(vec![output(id, &[40], None)], stats);
    let last = output(id, &[41, 42], Some(FinishReason::Length));
    core.outputs_with(vec![last], stats);
    client.join().expect("client");
    let text = get(addr, "/metrics").text();
    let label = r#"{engine="0",model_name="tiny"}"#;
    for (name, value) in [
        ("vllm:num_requests_running", "1"),
        ("vllm:num_requests_waiting", "2"),
        ("vllm:kv_cache_usage_perc", "0.25"),
        ("vllm:num_preemptions_total", "3"),
        ("vllm:prefix_cache_queries_total", "30"),
        ("vllm:prefix_cache_hits_total", "16"),
        ("nano:engine_steps_total", "11"),
        ("vllm:prompt_tokens_total", "3"),
        ("vllm:generation_tokens_total", "3"),
        ("vllm:time_to_first_token_seconds_count", "1"),
        ("vllm:inter_token_latency_seconds_count", "1"),
        ("vllm:time_per_output_token_seconds_count", "1"),
        ("vllm:e2e_request_latency_seconds_count", "1"),
        ("vllm:request_queue_time_seconds_count", "1"),
        ("vllm:request_prefill_time_seconds_count", "1"),
        ("vllm:request_decode_time_seconds_count", "1"),
        ("vllm:request_inference_time_seconds_count", "1"),
        ("vllm:request_prompt_tokens_sum", "3"),
        ("vllm:request_generation_tokens_sum", "3"),
    ] {
        let line = format!("\n{name}{label} {value}\n");
        assert!(text.contains(&line), "{line} in {text}");
    }
    let blocks = engine_info().num_kv_blocks;
    for line in [
        r#"nano:open_sequences{engine="0",model_name="tiny",process="frontend"} 0"#.to_owned(),
        r#"nano:open_sequences{engine="0",model_name="tiny",process="core"} 3"#.to_owned(),
        r#"nano:open_sequences{engine="0",model_name="tiny",process="worker"} 4"#.to_owned(),
        r#"vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1"#
            .to_owned(),
        r#"nano:http_requests_total{engine="0",model_name="tiny",route="/v1/completions",status="200"} 1"#
            .to_owned(),
        format!(
            r#"vllm:cache_config_info{{block_size="16",enable_prefix_caching="true",engine="0",model_name="tiny",num_gpu_blocks="{blocks}"}} 1"#
        ),
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line} in {text}");
    }
}

#[test]
fn ids_and_trace_contexts_go_in_and_out() {
    let (server, core) = Server::start(config());
    let addr = server.addr;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let client = std::thread::spawn(move || {
        let headers = [
            ("x-request-id", "mine\u{1}\u{7f}\t\"1\""),
            ("traceparent", parent),
            ("tracestate", ""),
        ];
        let legal = [("x-request-id", "mine-1"), headers[1], headers[2]];
        let body = br#"{"prompt": "x"}"#;
        let refused = request(addr, "GET", "/version", &headers, b"").status;
        let response = request(addr, "POST", "/v1/completions", &legal, body);
        (refused, response)
    });
    let add = core.next_add();
    assert_eq!(add.external_id, "cmpl-mine-1");
    core.tokens(add.id, &[40], Some(FinishReason::Length));
    let (refused, response) = client.join().expect("client");
    assert_eq!(refused, 400, "control characters are no header");
    assert_eq!(response.header("x-request-id"), Some("mine-1"));
    assert_eq!(response.header("traceparent"), Some(parent));
    assert_eq!(response.header("tracestate"), Some(""));
    assert_eq!(response.json()["id"], "cmpl-mine-1");
    let own = get(addr, "/version");
    let id = own
        .header("x-request-id")
        .expect("an id of ours")
        .to_owned();
    assert_ne!(get(addr, "/version").header("x-request-id"), Some(&*id));
}

#[test]
fn the_key_guards_v1_alone() {
    let mut config = config();
    config.api_key = Some("secret".to_owned());
    let (server, _core) = Server::start(config);
    let status = |path: &str, key: Option<&str>| {
        let header = key.map(|key| ("authorization", key));
        request(server.addr, "GET", path, header.as_slice(), b"").status
    };
    assert_eq!(status("/v1/models", None), 401);
    for wrong in [
        "Bearer secre",
        "Bearer secret1",
        "secret",
        "Bearer ",
        "Basic secret",
    ] {
        assert_eq!(status("/v1/models", Some(wrong)), 401, "{wrong}");
    }
    for right in ["Bearer secret", "bearer secret", "BEARER secret"] {
        assert_eq!(status("/v1/models", Some(right)), 200, "{right}");
    }
    assert_eq!(status("/health", None), 200);
    assert_eq!(status("/metrics", None), 200);
}
