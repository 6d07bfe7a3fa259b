//! Perfetto's own schema and trace processor as judges of trace files, and of
//! our validator: both must see the same slices, counters and flows.

use nano_trace::{
    check::{OpenSlices, Report, check},
    read::Source,
    timeline::{Hop, Through, Timeline},
};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A slice or an instant: name, category, begin, duration (0 of an instant, -1
/// of a slice that never ended).
type Shown = (String, String, u64, i64);

/// Panics unless Perfetto finds nothing wrong with each file and with all
/// together, and shows what `report`, of the same files, says.
pub(crate) fn assert_shows(files: &[PathBuf], report: &Report) {
    let official = judged_by_perfetto(files);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut theirs = rows(&official, "slices")
        .map(|s| {
            let (begin, duration) = (s[2].as_u64().unwrap(), s[3].as_i64().unwrap());
            (text(&s[0]), text(&s[1]), begin, duration)
        })
        .collect::<Vec<Shown>>();
    let mut ours = shown(&report.timeline);
    theirs.sort();
    ours.sort();
    assert_eq!(ours, theirs, "slices and instants");
    let values = rows(&official, "counters").count();
    assert_eq!(report.timeline.counters.len(), values, "counter values");
    let flows = rows(&official, "flows").count();
    assert_eq!(arrows(&report.timeline), flows, "arrows");
    let mut theirs: Vec<Value> = rows(&official, "samples").cloned().collect();
    let samples = report.timeline.samples.iter();
    let mut ours: Vec<Value> = samples
        .map(|sample| {
            let stack: Vec<&str> = sample.stack.iter().map(|name| &**name).collect();
            json!([sample.time, sample.pid, sample.tid, stack])
        })
        .collect();
    // The engine puts samples of one moment in its own order.
    for samples in [&mut ours, &mut theirs] {
        samples.sort_by_key(Value::to_string);
    }
    assert_eq!(ours, theirs, "stack samples");
}

fn shown(timeline: &Timeline) -> Vec<Shown> {
    let slices = timeline.slices.iter().map(|s| {
        let duration = s.duration().map_or(-1, |duration| duration as i64);
        (
            s.name.to_string(),
            s.category.to_string(),
            s.begin,
            duration,
        )
    });
    let instants = timeline
        .instants
        .iter()
        .map(|i| (i.name.to_string(), i.category.to_string(), i.time, 0));
    slices.chain(instants).collect()
}

/// Perfetto draws an arrow from each hop of a flow to the next, except within
/// one slice.
fn arrows(timeline: &Timeline) -> usize {
    let place = |through| match through {
        Through::Begin(slice) | Through::End(slice) => (0, slice),
        Through::Instant(instant) => (1, instant),
    };
    let between = |hops: &[Hop]| {
        let pairs = hops.windows(2);
        pairs
            .filter(|pair| place(pair[0].through) != place(pair[1].through))
            .count()
    };
    timeline.flows.values().map(|hops| between(hops)).sum()
}

fn rows<'a>(official: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    official[key].as_array().into_iter().flatten()
}

/// What Perfetto shows of the files together; it must find nothing wrong.
fn judged_by_perfetto(files: &[PathBuf]) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = python()
        .arg(root.join("perfetto/check_traces.py"))
        .args(files)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Perfetto finds: {text}{errors}");
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap()
}

/// A Python that has `tests/requirements.txt`; scripts/test makes one.
pub(crate) fn python() -> Command {
    Command::new(std::env::var("NANO_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned()))
}

#[test]
fn perfetto_refuses_what_it_must() {
    let output = python()
        .args(["-m", "unittest", "discover", "--start-directory"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("perfetto"))
        .args(["--pattern", "test_*.py"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("Ran 6 tests"),
        "{said}"
    );
}

/// The recorder alone: this binary again, as a process that records.
#[test]
fn perfetto_shows_what_was_recorded() {
    use nano_trace::{Event, Flow, ProcessTrace, RequestTrack, Rings, SampleRate, SessionSpec};
    const TEST: &str = "perfetto::perfetto_shows_what_was_recorded";
    const DIR: &str = "NANO_TESTS_RECORD_IN";
    let Ok(recording) = std::env::var(DIR) else {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST])
            .env(DIR, dir.path())
            .status();
        assert!(child.unwrap().success());
        let entries = fs::read_dir(dir.path()).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        let files = files.collect::<Vec<_>>();
        let sources = files.iter().cloned().map(Source::File).collect::<Vec<_>>();
        let report = check(&sources, &OpenSlices::None).unwrap();
        report.assert_clean();
        assert_shows(&files, &report);
        let steps = report.timeline.slices_of(Event::WorkerStep);
        assert_eq!(steps.count(), 20);
        assert_eq!(report.timeline.flows.len(), 1);
        let samples = &report.timeline.samples;
        let burned = samples.iter().filter(|sample| {
            let mut functions = sample.stack.iter();
            functions.any(|name| name.ends_with("perfetto::burn"))
        });
        // A kernel that is late fires once for several periods of 4 ms.
        let burned = burned.map(|sample| sample.weight).sum::<u64>() / 4_000_000;
        assert!(burned > 20, "{burned} periods, {} samples", samples.len());
        return;
    };
    nano_trace::start(ProcessTrace {
        dir: recording.into(),
        role: "worker-0".to_owned(),
        run: 1,
        rings: Rings::create().unwrap().fd().try_clone_to_owned().unwrap(),
        facts: vec![("model".to_owned(), "none".to_owned())],
        keep: None,
        sessions: vec![SessionSpec {
            sample_rate: SampleRate::try_from(250).ok(),
            ..SessionSpec::new("auto".parse().unwrap(), 1 << 20)
        }],
    })
    .unwrap();
    let track = RequestTrack::new(3);
    track.describe(Event::Request, &[("request_id", "cmpl-1")]);
    track.begin(Event::Request, [], &[Flow::request(3)]);
    for step in 0..20 {
        let slice = nano_trace::slice(Event::WorkerStep, [step, 1, 1]);
        let flows = [Flow::request(3)];
        drop(nano_trace::slice_with(Event::Forward, [1], &flows));
        drop(slice);
        nano_trace::counter(Event::ResidentBytes, step << 20);
    }
    track.instant(Event::Finish, [0], &[Flow::request(3)]);
    track.end(Event::Request, [1, 0, 20, 0], &[]);
    burn();
    nano_trace::finish();
}

/// A quarter of a second of this thread's CPU time.
#[inline(never)]
fn burn() {
    let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
    let now = || std::time::Duration::from(nix::time::clock_gettime(clock).unwrap());
    let until = now() + std::time::Duration::from_millis(250);
    while now() < until {
        std::hint::black_box(now());
    }
}
