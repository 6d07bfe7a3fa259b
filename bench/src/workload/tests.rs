use super::*;
use crate::options::Options;
use std::fs;
use tempfile::TempDir;

fn options() -> Options {
    Options {
        base_url: Some(vec!["http://h".to_owned()]),
        ..Options::default()
    }
}

fn workload(options: Options) -> Workload {
    let config = Config::try_from(options).unwrap_or_else(|error| panic!("{error}"));
    Workload::new(&config, "m").unwrap_or_else(|error| panic!("{error}"))
}

fn body(workload: &Workload, purpose: Purpose, index: u64) -> Value {
    serde_json::from_slice(&workload.body(purpose, index)).expect("JSON")
}

fn dataset(text: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("requests.jsonl");
    fs::write(&path, text).expect("written");
    (dir, path)
}

#[test]
fn a_seed_makes_the_same_requests_and_another_one_others() {
    let make = |seed| {
        workload(Options {
            seed: Some(seed),
            input_len: Some("3..9".parse().expect("lengths")),
            ..options()
        })
    };
    let (one, again, other) = (make(1), make(1), make(2));
    for index in (0..20).rev() {
        let bytes = one.body(Purpose::Measured, index);
        assert_eq!(bytes, again.body(Purpose::Measured, index));
        assert_ne!(bytes, other.body(Purpose::Measured, index));
        assert_ne!(bytes, one.body(Purpose::WarmUp, index));
        assert_ne!(bytes, one.body(Purpose::Measured, index + 1));
    }
}

#[test]
fn bodies_are_those_of_the_api() {
    let chat = workload(Options {
        output_len: Some(Lengths::Fixed(7)),
        ignore_eos: Some(true),
        ..options()
    });
    let chat = body(&chat, Purpose::Measured, 0);
    let text = chat["messages"][0]["content"].as_str().expect("a text");
    assert_eq!(text.split(' ').count(), 128);
    assert_eq!(
        chat,
        json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true},
            "temperature": 0.0, "ignore_eos": true, "max_completion_tokens": 7,
            "messages": [{"role": "user", "content": text}],
        })
    );
    let completion = workload(Options {
        api: Some(Api::Completions),
        no_stream: Some(true),
        ..options()
    });
    let completion = body(&completion, Purpose::Measured, 0);
    assert!(completion["prompt"].is_string(), "{completion}");
    assert_eq!(completion["max_tokens"], 128);
    assert_eq!(completion["stream"], false);
    assert_eq!(completion.get("stream_options"), None);
}

#[test]
fn a_dataset_s_lines_are_each_sent_before_any_is_repeated() {
    let lines = (0..10).map(|n| format!("{{\"prompt\": \"p{n}\", \"max_tokens\": {}}}\n", n + 1));
    let (_dir, path) = dataset(&lines.collect::<String>());
    let workload = workload(Options {
        dataset: Some(path),
        ..options()
    });
    let prompts = |from: u64| -> Vec<String> {
        let bodies = (from..from + 10).map(|index| body(&workload, Purpose::Measured, index));
        bodies
            .map(|body| {
                let prompt = body["messages"][0]["content"].as_str().expect("a text");
                let n: u64 = prompt[1..].parse().expect("a number");
                assert_eq!(body["max_completion_tokens"], n + 1);
                prompt.to_owned()
            })
            .collect()
    };
    let first = prompts(0);
    assert_eq!(first, prompts(10));
    let mut sorted = first.clone();
    sorted.sort();
    assert_eq!(sorted.len(), 10);
    assert_ne!(first, sorted, "the seed decides their order");
}

#[test]
fn conversations_and_images_become_messages() {
    let (dir, path) = dataset(
        r#"{"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}], "images": ["i.png", "data:x"]}"#,
    );
    fs::write(dir.path().join("i.png"), b"png").expect("written");
    let workload = workload(Options {
        dataset: Some(path),
        ..options()
    });
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(
        body(&workload, Purpose::Measured, 0)["messages"],
        json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": [
                image("data:image/png;base64,cG5n"), image("data:x"), {"type": "text", "text": "c"},
            ]},
        ])
    );
}

#[test]
fn a_line_that_is_no_request_is_refused_with_its_number() {
    for (line, why) in [
        ("{", "EOF"),
        ("{}", "needs one of"),
        (r#"{"prompt": "a", "messages": []}"#, "needs one of"),
        (r#"{"messages": []}"#, "no messages"),
        (
            r#"{"conversations": [{"from": "gpt", "value": "a"}]}"#,
            "no human turn",
        ),
        (r#"{"prompt": "a", "images": ["none.png"]}"#, "none.png"),
        (r#"{"prompt": "a", "images": ["a.txt"]}"#, "not png"),
        (r#"{"prompt": "a", "max_tokens": 0}"#, "no tokens"),
    ] {
        let (_dir, path) = dataset(&format!("{{\"prompt\": \"good\"}}\n{line}\n"));
        let options = Options {
            dataset: Some(path),
            ..options()
        };
        let config = Config::try_from(options).expect("options are good");
        let error = Workload::new(&config, "m").expect_err(line).to_string();
        assert!(
            error.contains("requests.jsonl:2:") && error.contains(why),
            "{error}"
        );
    }
}
