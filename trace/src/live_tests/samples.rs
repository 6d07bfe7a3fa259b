//! Sessions with stack samples.

use super::{Stage, auto, now, signal_parent, stage_with, wait_for_parent};
use crate::check::{OpenSlices, Report, check};
use crate::flame::{Filter, folded};
use crate::read::Source;
use crate::{
    Event, Rings, SampleRate, SessionSpec, SessionState, begin_session, end_session, slice,
    slice_with, wait_whole,
};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

fn sampled(max_bytes: u64) -> SessionSpec {
    SessionSpec {
        sample_rate: Some(SampleRate::try_from(999).unwrap()),
        ..auto(max_bytes)
    }
}

#[inline(never)]
fn burn_cycles(rounds: u64) -> u64 {
    (0..rounds).fold(black_box(1_u64), |word, n| {
        word.wrapping_mul(31).rotate_left(5) ^ n
    })
}

/// So much of this thread's CPU time, in slices.
fn forward(cpu: Duration) {
    let clock = || crate::clock::clock_ns(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    let begun = clock();
    while clock() - begun < cpu.as_nanos() as u64 {
        let step = slice_with(Event::WorkerStep, [1, 1], &[]);
        let forward = slice(Event::Forward, [1]);
        black_box(burn_cycles(100_000));
        drop(forward);
        step.end([1]);
    }
}

fn start(test: &str, max_bytes: u64, scene: impl FnOnce()) -> Stage {
    let rings = Rings::create().unwrap();
    stage_with(
        rings,
        &format!("samples::{test}"),
        vec![sampled(max_bytes)],
        scene,
    )
}

fn shown(stage: &Stage, session: &str) -> Report {
    let auto = stage.file();
    let name = auto.file_name().unwrap().to_str().unwrap();
    let name = name.replacen("auto", session, 1);
    let source = Source::File(auto.with_file_name(name));
    check(&[source], &OpenSlices::None).unwrap()
}

fn weight(report: &Report, filter: &Filter) -> u64 {
    folded(&report.timeline, filter).unwrap().values().sum()
}

fn finished(stage: &mut Stage) {
    drop(stage.child.stdin.take());
    assert!(stage.child.wait().unwrap().success());
    stage.rings.check_integrity().unwrap();
    stage.assert_nothing_to_salvage();
}

#[test]
fn a_sessions_file_shows_where_its_threads_were() {
    let test = "a_sessions_file_shows_where_its_threads_were";
    let mut stage = start(test, 4 << 20, || {
        let thread = std::thread::Builder::new().name("burner".to_owned());
        let thread = thread.spawn(|| forward(Duration::from_secs(2)));
        thread.unwrap().join().unwrap();
        crate::finish();
        assert_eq!(now().state, SessionState::Finished);
        assert!(now().events > 100);
    });
    finished(&mut stage);
    let report = shown(&stage, "auto");
    report.assert_clean();
    assert!(
        report
            .timeline
            .facts
            .contains(&("sample_hz".to_owned(), "999".to_owned()))
    );
    let thread = Some("burner".to_owned());
    let all = Filter {
        thread,
        ..Filter::default()
    };
    let inside = Some(Event::Forward.name().to_owned());
    let inside = Filter {
        inside,
        ..all.clone()
    };
    let (all, inside) = (weight(&report, &all), weight(&report, &inside));
    println!("{all} ns in samples, {inside} of it inside forward");
    assert!((1_700_000_000..2_100_000_000).contains(&all), "{all}");
    assert!(inside as f64 > 0.95 * all as f64, "{inside} of {all}");
    let stacks = folded(&report.timeline, &Filter::default()).unwrap();
    assert!(
        stacks
            .keys()
            .any(|stack| stack.contains("samples::burn_cycles")),
        "{stacks:#?}"
    );
}

#[test]
fn samples_belong_to_the_sessions_that_are_on() {
    let test = "samples_belong_to_the_sessions_that_are_on";
    let mut stage = start(test, 4 << 20, || {
        let plain = SessionSpec::new("plain".parse().unwrap(), 1 << 20);
        begin_session(plain.clone()).unwrap();
        forward(Duration::from_millis(300));
        let auto = "auto".parse().unwrap();
        // Its last samples are on their way.
        let answered = Instant::now();
        end_session(&auto, None);
        assert!(answered.elapsed() < Duration::from_millis(500));
        forward(Duration::from_millis(300));
        assert!(wait_whole(&auto, Duration::from_secs(5)));
        let later = SessionSpec {
            name: "later".parse().unwrap(),
            ..sampled(4 << 20)
        };
        begin_session(later).unwrap();
        forward(Duration::from_millis(300));
        crate::finish();
    });
    finished(&mut stage);
    for (session, has_samples) in [("auto", true), ("plain", false), ("later", true)] {
        let report = shown(&stage, session);
        report.assert_clean();
        let samples = &report.timeline.samples;
        assert_eq!(!samples.is_empty(), has_samples, "{session}");
        let end = report
            .timeline
            .instants
            .iter()
            .rfind(|i| i.event == Some(Event::TraceEnd));
        let end = end.unwrap().time;
        assert!(samples.iter().all(|sample| sample.time <= end), "{session}");
        let all: u64 = samples.iter().map(|sample| sample.weight).sum();
        println!("{session}: {all} ns");
        if has_samples {
            // Rings are full until the program's tables are read.
            assert!((50_000_000..450_000_000).contains(&all), "{session}: {all}");
        }
    }
}

#[test]
fn threads_that_could_not_be_sampled_are_told() {
    /// As many are sampled at once.
    const SLOTS: usize = 1024;
    const BEYOND: u64 = 6;
    let test = "threads_that_could_not_be_sampled_are_told";
    let mut stage = start(test, 4 << 20, || {
        let count = SLOTS + BEYOND as usize;
        let gate = Arc::new(Barrier::new(count + 1));
        let mut threads = Vec::new();
        for _ in 0..count {
            let gate = Arc::clone(&gate);
            let small = std::thread::Builder::new().stack_size(32 << 10);
            threads.push(small.spawn(move || gate.wait()).unwrap());
        }
        // This thread works, so it is sampled.
        while now().unsampled_threads < BEYOND {
            forward(Duration::from_millis(20));
        }
        gate.wait();
        for thread in threads {
            thread.join().unwrap();
        }
        crate::finish();
        assert_eq!(now().state, SessionState::Finished);
    });
    finished(&mut stage);
    let report = shown(&stage, "auto");
    report.assert_clean();
    assert!(report.timeline.unsampled_threads >= BEYOND);
    assert!(!report.timeline.samples.is_empty());
}

#[test]
fn a_cap_holds_with_samples_too() {
    let cap = SessionSpec::MIN_BYTES;
    let mut stage = start("a_cap_holds_with_samples_too", cap, || {
        // Slices would fill the file before the program's tables are read.
        while now().events == 0 {
            black_box(burn_cycles(100_000));
        }
        while now().state == SessionState::Recording {
            forward(Duration::from_millis(20));
        }
        assert_eq!(now().state, SessionState::Capped);
        crate::finish();
    });
    finished(&mut stage);
    let report = shown(&stage, "auto");
    report.assert_clean();
    assert!(report.files[0].bytes <= cap);
    assert!(!report.timeline.samples.is_empty());
}

#[test]
fn samples_survive_a_kill() {
    let mut stage = start("samples_survive_a_kill", 4 << 20, || {
        forward(Duration::from_millis(600));
        assert!(crate::flush());
        signal_parent();
        wait_for_parent();
    });
    stage.wait_until_ready();
    stage.child.kill().unwrap();
    stage.child.wait().unwrap();
    let salvaged = stage.rings.salvage(stage.dir.path());
    assert!(salvaged.iter().all(Result::is_ok), "{salvaged:?}");
    let report = shown(&stage, "auto");
    report.assert_clean();
    assert!(!report.timeline.samples.is_empty());
}
