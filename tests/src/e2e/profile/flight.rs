//! The flight recorder: what was not being recorded, written afterwards.

use super::faults::limit_files;
use super::support::{
    Load, PATIENCE, all, ask, auto, dir, files, judge, judge_session, manual, raw, start, states,
    status, stop_whole, tiny,
};
use crate::client::{get, long_completion, post};
use crate::programs::built_programs;
use crate::server::{Server, ServerOptions, wait_for};
use nano_trace::check::{OpenSlices, Report};
use nano_trace::{Event, TraceFileName};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Keeps its last seconds.
fn flight(options: ServerOptions, dir: &Path) -> ServerOptions {
    auto(options, dir).env("NANO_PROFILER_MODE", "flight")
}

fn complete(server: &Server, max_tokens: u32) {
    let url = format!("{}/v1/completions", server.base_url());
    let (status, answer) = post(&url, &long_completion(max_tokens)).expect("answered");
    assert_eq!(status, 200, "{answer}");
}

#[track_caller]
fn dump(server: &Server, body: Value) -> Value {
    let (status, answer) = ask(server, "/profile/dump", &body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Names of the dumps that nobody named.
fn dumps(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("the directory");
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.expect("an entry").file_name();
            let name: TraceFileName = name.to_str()?.parse().expect("a trace file's name");
            name.session.starts_with("flight-").then_some(name.session)
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Files of the only dump that nobody named, of a server that has ended.
#[track_caller]
fn files_of_the_dump(server: &Server, dir: &Path) -> Vec<PathBuf> {
    let dumps = dumps(dir);
    let [session] = &dumps[..] else {
        panic!("{dumps:?}: {}", server.log())
    };
    files(dir, session).into_iter().map(|file| file.1).collect()
}

/// The one that was made by itself, once all of its files are there.
fn wait_for_dump(server: &Server, trigger: &str) -> String {
    wait_for("dump", PATIENCE, || {
        let status = status(server);
        let dumps = status["flight"]["dumps"].as_array().expect("dumps");
        let dump = dumps.iter().find(|dump| dump["trigger"] == trigger)?;
        let name = dump["session"].as_str().expect("a name").to_owned();
        let line = format!("flight recorder: {name} (");
        let written = server.log().lines().any(|l| l.contains(&line));
        written.then_some(name)
    })
}

fn fact<'r>(report: &'r Report, key: &str) -> Vec<&'r str> {
    let facts = report.timeline.facts.iter();
    let facts = facts.filter(|(name, _)| name == key);
    facts.map(|(_, value)| value.as_str()).collect()
}

fn metric(server: &Server, start: &str) -> u64 {
    let (_, text) = get(&format!("{}/metrics", server.base_url())).expect("answered");
    let line = text.lines().find(|line| {
        let mut parts = start.split('|');
        line.starts_with(parts.next().unwrap_or_default()) && parts.all(|part| line.contains(part))
    });
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.expect("the metric").parse().expect("a number")
}

#[test]
fn a_slow_request_among_a_thousand_fires_its_rule_once_and_the_dump_explains_it() {
    const REQUESTS: usize = 1000;
    const SLOW_STEP: u64 = 600;
    let dir = dir();
    let server = flight(ServerOptions::mock(0), dir.path())
        .env("NANO_MOCK_SLOW_STEP", &SLOW_STEP.to_string())
        .env("NANO_MOCK_SLOW_MS", "3000")
        .env("NANO_PROFILER_TRIGGER", "ttft_ms>2000, queue_ms>2500")
        .start();
    for _ in 0..REQUESTS {
        complete(&server, 1);
    }
    let session = wait_for_dump(&server, "rule");
    let flight = &status(&server)["flight"];
    assert_eq!(flight["rules"], json!(["ttft_ms>2000", "queue_ms>2500"]));
    assert_eq!(flight["fired"], json!({"ttft_ms": 1, "queue_ms": 0}));
    assert_eq!(flight["suppressed"], json!({"ttft_ms": 0, "queue_ms": 0}));
    assert_eq!(
        metric(&server, "nano:flight_rules_fired_total|rule=\"ttft_ms\""),
        1
    );
    assert_eq!(
        metric(&server, "nano:flight_dumps_total|trigger=\"rule\""),
        1
    );
    assert_eq!(dumps(dir.path()), [session.as_str()]);

    let report = judge_session(dir.path(), &session, 3);
    assert_eq!(fact(&report, "trigger"), ["rule"]);
    assert_eq!(fact(&report, "rule"), ["ttft_ms>2000"]);
    let value: f64 = fact(&report, "value_ms")[0].parse().expect("a number");
    assert!((3000.0..60_000.0).contains(&value), "{value}");
    // The moment, on the track of the request that the facts name.
    let timeline = &report.timeline;
    let slow: Vec<_> = timeline
        .instants
        .iter()
        .filter(|instant| instant.event == Some(Event::SlowRequest))
        .collect();
    let [slow] = slow[..] else { panic!("{slow:?}") };
    let request = slow.parent.map(|parent| &timeline.slices[parent]);
    let waiting = request.expect("it is within the request's slices");
    let tracked = timeline.slices.iter().filter(|s| s.track == slow.track);
    let named = tracked
        .clone()
        .find_map(|slice| slice.arg("request_id")?.text());
    let named = named.expect("an id");
    assert_eq!(fact(&report, "request_id"), [named]);
    let told = &flight["dumps"][0];
    assert_eq!(
        (&told["rule"], &told["request_id"]),
        (&json!("ttft_ms>2000"), &json!(named))
    );
    assert_eq!(told["value_ms"].as_f64(), Some(value));
    assert!(
        told["time"]
            .as_str()
            .is_some_and(|time| time.ends_with('Z'))
    );
    // The picture is of that request, and marks the moment.
    let picture = dir.path().join("slow.svg");
    let drawn = Command::new(built_programs().join("nano-trace"))
        .args(["timeline", "--session", &session, "-o"])
        .args([&picture, dir.path()])
        .status();
    assert!(drawn.expect("it runs").success());
    let picture = std::fs::read_to_string(picture).expect("drawn");
    assert!(picture.contains(named), "{picture}");
    assert!(picture.contains("slow request: "), "{picture}");
    assert!(picture.contains(", ttft_ms&gt;2000</text>"), "{picture}");
    assert!([Some(Event::Waiting), Some(Event::Request)].contains(&waiting.event));
    // Why: one step of the worker took three seconds.
    let forwards = timeline.slices_of(Event::Forward);
    let longest = forwards
        .max_by_key(|(_, slice)| slice.duration())
        .expect("steps")
        .1;
    assert!(longest.duration() >= Some(3_000_000_000));
    let step = &timeline.slices[longest.parent.expect("a step")];
    let step_id = step.arg("step_id").and_then(|arg| arg.uint());
    // (Where the dump is cut before the worker has ended the step, its
    // arguments, which its end carries, are not in there.)
    let told = step_id.map_or(step.end.is_none(), |step_id| step_id >= SLOW_STEP);
    assert!(told, "{step_id:?} of {step:?}");
    // (The frontend may say that it waits after the worker has begun.)
    let mut tracked = tracked;
    let whole = tracked.find(|slice| slice.event == Some(Event::Request));
    let whole = whole.expect("the request");
    assert!(longest.end < Some(slow.time) && longest.begin > whole.begin);
}

#[test]
fn a_client_that_gives_up_has_waited_for_its_token() {
    const ITS_PATIENCE: Duration = Duration::from_millis(600);
    let dir = dir();
    let server = flight(ServerOptions::mock(0), dir.path())
        .env("NANO_MOCK_SLOW_STEP", "1")
        .env("NANO_MOCK_SLOW_MS", "2000")
        .env("NANO_PROFILER_TRIGGER", "ttft_ms>300")
        .start();
    let body = long_completion(10).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: nano\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let address = server.base_url().strip_prefix("http://").expect("a URL");
    let mut client = TcpStream::connect(address).expect("it listens");
    client.write_all(request.as_bytes()).expect("it reads");
    std::thread::sleep(ITS_PATIENCE);
    drop(client);
    let session = wait_for_dump(&server, "rule");
    let report = judge_session(dir.path(), &session, 3);
    let value: f64 = fact(&report, "value_ms")[0].parse().expect("a number");
    assert!((300.0..2000.0).contains(&value), "{value}");
    let timeline = &report.timeline;
    let mut instants = timeline.instants.iter();
    let slow = instants.find(|instant| instant.event == Some(Event::SlowRequest));
    let slow = slow.expect("the moment");
    let mut tracked = timeline.slices.iter().filter(|s| s.track == slow.track);
    let whole = tracked.find(|slice| slice.event == Some(Event::Request));
    let whole = whole.expect("the request's track");
    let id = whole.arg("request_id").and_then(|arg| arg.text());
    assert_eq!(id, Some(fact(&report, "request_id")[0]));
}

#[test]
fn slow_steps_and_queues_and_tokens_fire_and_a_minute_has_one_dump() {
    let dir = dir();
    let server = flight(ServerOptions::mock(30), dir.path())
        .args(&["--max-num-seqs", "1"])
        .env("NANO_PROFILER_TRIGGER", "step_ms>5,itl_ms>5,queue_ms>500")
        .start();
    let load = Load::start(&server, 1, 60);
    complete(&server, 2);
    drop(load);
    let session = wait_for_dump(&server, "rule");
    let fired = wait_for("counts", PATIENCE, || {
        let flight = status(&server)["flight"].clone();
        let counts = ["step_ms", "itl_ms", "queue_ms"].map(|rule| {
            let of = |what: &str| flight[what][rule].as_u64().expect("a count");
            (of("fired"), of("suppressed"))
        });
        counts.iter().all(|(fired, _)| *fired > 0).then_some(counts)
    });
    let total = |of: fn(&(u64, u64)) -> u64| fired.iter().map(of).sum::<u64>();
    assert_eq!(
        total(|(fired, _)| *fired),
        total(|(_, suppressed)| *suppressed) + 1
    );
    // Of many tokens and requests each request fires once.
    assert!(fired[1].0 <= 2, "{fired:?}");
    assert_eq!(fired[2].0, 1, "{fired:?}");
    assert_eq!(dumps(dir.path()), [session.as_str()]);
    judge_session(dir.path(), &session, 3);
    let all = dump(&server, json!({"name": "all"}));
    assert_eq!(all["session"], "all");
    let report = judge_session(dir.path(), "all", 3);
    for event in [Event::SlowStep, Event::SlowQueue, Event::SlowRequest] {
        let mut instants = report.timeline.instants.iter();
        assert!(instants.any(|i| i.event == Some(event)), "{event:?}");
    }
}

#[test]
fn kill_9_of_any_process_leaves_a_dump_of_all_with_its_last_records() {
    for program in ["nano-worker", "nano-core", "nano-frontend"] {
        let dir = dir();
        let mut server = flight(ServerOptions::mock(1), dir.path()).start();
        let load = Load::start(&server, 4, 8000);
        std::thread::sleep(Duration::from_millis(300));
        let process = server.process(program);
        let pid = process.pid.as_raw();
        let killed = server.signal(program, Signal::SIGKILL);
        server.wait_gone(killed, Duration::from_secs(6));
        server.wait_exit(Duration::from_secs(6));
        drop(load);
        let paths = files_of_the_dump(&server, dir.path());
        assert_eq!(paths.len(), 3, "{program}");
        let open = OpenSlices::Of(vec![pid]);
        let report = judge(&paths, &open);
        assert_eq!(fact(&report, "trigger"), ["death"]);
        let reason = fact(&report, "reason")[0];
        assert!(
            reason.contains("SIGKILL") && reason.contains(&program[5..]),
            "{reason}"
        );
        for path in &paths {
            let own = judge(std::slice::from_ref(path), &open);
            let pids = fact(&own, "pid");
            let slices = own.timeline.slices.iter();
            let times: Vec<u64> = slices
                .filter(|slice| slice.event != Some(Event::TraceRecording))
                .map(|slice| slice.begin)
                .collect();
            let last = times.iter().max().expect("slices");
            let lately = times.iter().filter(|time| *last - **time < 100_000_000);
            assert!(lately.count() > 20, "{program}: {path:?}");
            if pids == [pid.to_string()] {
                let ends = own.timeline.instants.iter();
                let mut ends = ends.filter(|i| i.event == Some(Event::TraceEnd));
                let end = ends.next().expect("its end");
                assert_eq!(end.args[0].value.text(), Some("process died"));
                // What it did last is what the others saw of it last.
                let all = report.timeline.slices.iter().map(|slice| slice.begin);
                let newest = all.max().expect("slices");
                assert!(newest - last < 2_000_000_000, "{program}: {newest} {last}");
            }
        }
    }
}

#[test]
fn a_panic_and_the_death_that_follows_are_one_dump() {
    let dir = dir();
    let mut server = flight(ServerOptions::faulty(), dir.path()).start();
    complete(&server, 3);
    let url = format!("{}/v1/completions", server.base_url());
    let body = json!({"prompt": [1, 700, 2], "max_tokens": 4});
    let (status, answer) = post(&url, &body).expect("answered");
    assert_eq!(status, 500, "{answer}");
    server.wait_exit(Duration::from_secs(10));
    let paths = files_of_the_dump(&server, dir.path());
    let report = judge(&paths, &OpenSlices::Any);
    assert_eq!(fact(&report, "trigger"), ["panic"]);
    assert_eq!(report.timeline.slices_of(Event::Request).count(), 2);
}

#[test]
fn a_dump_is_had_by_http_and_by_signal_beside_a_session_and_of_a_stopped_process() {
    let dir = dir();
    let server = flight(ServerOptions::mock(1), dir.path()).start();
    let load = Load::start(&server, 4, 8000);
    start(&server, json!({"name": "named"}));
    let asked = Instant::now();
    let answer = dump(&server, json!({"name": "mine", "seconds": "2"}));
    println!("a dump took {:?}", asked.elapsed());
    assert_eq!(answer["session"], "mine");
    assert_eq!(states(&answer), all("finished"));
    assert_eq!(answer["files"].as_array().expect("files").len(), 3);
    assert_eq!(answer["state"], "recording");
    // The same interval in all of them.
    let report = judge_session(dir.path(), "mine", 3);
    assert_eq!(fact(&report, "trigger"), ["http"]);
    assert_eq!(fact(&report, "flight_seconds"), ["2"]);
    assert_eq!(report.timeline.slices_of(Event::Request).count(), 4);
    let recordings = report.timeline.slices_of(Event::TraceRecording);
    let intervals: Vec<_> = recordings.map(|(_, s)| (s.begin, s.end)).collect();
    assert_eq!(intervals.len(), 3);
    // The server may be younger than the interval.
    assert!(
        intervals.iter().all(|i| i.1 == intervals[0].1),
        "{intervals:?}"
    );
    // A name is given once, and fetched by it.
    let again = ask(&server, "/v1/profile/dump", &json!({"name": "mine"})).1;
    assert_eq!(again["session"], "mine-2");
    let fetch = b"GET /profile/trace?session=mine-2 HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_eq!(raw(&server, fetch).0, 200);
    stop_whole(&server);
    judge_session(dir.path(), "named", 3);

    server.signal("nano-worker", Signal::SIGSTOP);
    let stopped = dump(&server, json!({"name": "stopped"}));
    assert_eq!(states(&stopped), all("finished"));
    server.signal("nano-worker", Signal::SIGCONT);
    let report = judge_session(dir.path(), "stopped", 3);
    assert!(report.timeline.slices_of(Event::WorkerStep).count() > 10);

    server.signal("nano-serve", Signal::SIGUSR2);
    let session = wait_for_dump(&server, "sigusr2");
    let report = judge_session(dir.path(), &session, 3);
    assert_eq!(fact(&report, "trigger"), ["sigusr2"]);
    drop(load);
}

#[test]
fn one_process_is_dumped_like_several() {
    let dir = dir();
    let mut server = flight(tiny(), dir.path())
        .env("NANO_ENABLE_MULTIPROCESSING", "0")
        .env("NANO_PROFILER_TRIGGER", "ttft_ms>0.001")
        .start();
    complete(&server, 5);
    let session = wait_for_dump(&server, "rule");
    judge_session(dir.path(), &session, 1);
    let answer = dump(&server, json!({}));
    assert_eq!(states(&answer), all("finished"));
    assert_eq!(answer["files"].as_array().expect("files").len(), 1);
    let session = answer["session"].as_str().expect("a name");
    let report = judge_session(dir.path(), session, 1);
    assert_eq!(report.timeline.slices_of(Event::Request).count(), 1);
    server.signal("nano-serve-single", Signal::SIGUSR2);
    wait_for_dump(&server, "sigusr2");
    server.signal("nano-serve-single", Signal::SIGTERM);
    let status = server.wait_exit(Duration::from_secs(5));
    assert_eq!(status.code(), Some(0), "{}", server.log());
}

#[test]
fn where_nothing_is_kept_that_is_said() {
    let dir = dir();
    for (options, code, hint) in [
        (ServerOptions::mock(1), 404, "NANO_PROFILER_DIR"),
        (
            manual(ServerOptions::mock(1), dir.path()),
            409,
            "NANO_PROFILER_MODE=flight",
        ),
    ] {
        let server = options.start();
        let (status, answer) = ask(&server, "/profile/dump", &json!({}));
        assert_eq!(status, code, "{answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .expect("a text")
                .contains(hint)
        );
        server.signal("nano-serve", Signal::SIGUSR2);
        wait_for("hint", PATIENCE, || {
            server
                .log()
                .contains("SIGUSR2: nothing is kept")
                .then_some(())
        });
        complete(&server, 2);
    }
    let server = flight(ServerOptions::mock(1), dir.path()).start();
    for body in [json!({"seconds": 0}), json!({"name": "../x"}), json!([])] {
        let (status, answer) = ask(&server, "/profile/dump", &body);
        assert_eq!(status, 400, "{answer}");
    }
    let (status, answer) = ask(&server, "/profile/dump", &Value::Null);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_directory_that_is_gone_or_a_full_one_costs_the_dump_and_nothing_else() {
    let dir = dir();
    let server = flight(ServerOptions::mock(1), dir.path()).start();
    complete(&server, 5);
    std::fs::remove_dir_all(dir.path()).expect("ours");
    std::fs::write(dir.path(), "").expect("ours");
    let (status, answer) = ask(&server, "/profile/dump", &json!({}));
    assert_eq!(status, 503, "{answer}");
    let text = answer.to_string();
    assert!(text.contains("the dump was not written: "), "{text}");
    complete(&server, 5);
    std::fs::remove_file(dir.path()).expect("ours");
    let answer = dump(&server, json!({"name": "again"}));
    assert_eq!(states(&answer), all("finished"));
    judge_session(dir.path(), "again", 3);
    // The launcher writes.
    limit_files(server.process("nano-serve").pid.as_raw(), 0);
    let (status, answer) = ask(&server, "/profile/dump", &json!({"name": "full"}));
    assert_eq!(status, 503, "{answer}");
    let text = answer.to_string();
    assert!(text.contains("not written: File too large"), "{text}");
    assert!(files(dir.path(), "full").is_empty(), "empty ones are none");
    complete(&server, 5);
}

/// Dumps under load, after which every process must be as large as before.
fn number_of_dumps() -> u32 {
    let number = std::env::var("NANO_FLIGHT_DUMPS").ok();
    number.map_or(200, |text| text.parse().expect("a number"))
}

#[test]
fn dumps_under_load_are_whole_and_leave_nothing_behind() {
    // Rings grow until they were filled once.
    const MOST: usize = 16 << 20;
    let dir = dir();
    let server = flight(ServerOptions::mock(10), dir.path())
        .env("NANO_PROFILER_FLIGHT_SECONDS", "1")
        .start();
    let load = Load::start(&server, 4, 8000);
    let round = |number: u32| {
        let session = format!("d{number}");
        let answer = dump(&server, json!({"name": session}));
        assert_eq!(states(&answer), all("finished"));
        judge_session(dir.path(), &session, 3);
        for (_, path) in files(dir.path(), &session) {
            std::fs::remove_file(path).expect("ours");
        }
    };
    let programs = ["nano-serve", "nano-frontend", "nano-core", "nano-worker"];
    let processes = programs.map(|program| server.process(program));
    (0..20).for_each(round);
    let usage = || processes.each_ref().map(|process| process.usage());
    let before = usage();
    let dumps = number_of_dumps();
    (20..20 + dumps).for_each(round);
    for ((process, before), after) in processes.iter().zip(before).zip(usage()) {
        println!(
            "{}: {before:?} before, {after:?} after {dumps} dumps",
            process.name
        );
        assert!(after.resident < before.resident + MOST, "{}", process.name);
        assert!(
            after.descriptors <= before.descriptors + 2,
            "{}",
            process.name
        );
        assert!(after.threads <= before.threads + 2, "{}", process.name);
    }
    drop(load);
}

#[test]
fn rules_that_are_wrong_end_the_start_with_one_line() {
    let dir = dir();
    for (text, word) in [
        ("ttft_ms", "\"ttft_ms\" is no rule"),
        ("step_ms>1,step_ms>2", "step_ms is limited twice"),
        ("step_ms>fast", "\"step_ms>fast\" is no rule"),
    ] {
        let mut server = flight(ServerOptions::mock(1), dir.path())
            .env("NANO_PROFILER_TRIGGER", text)
            .spawn();
        let exit = server.wait_exit(Duration::from_secs(10));
        let log = server.log();
        assert_eq!(exit.code(), Some(2), "{log}");
        assert!(log.lines().count() == 1 && log.contains(word), "{log}");
    }
}
