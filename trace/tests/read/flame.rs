//! `nano-trace flame`: what counts, and what is drawn.

use crate::good_trace::{bytes, good_trace};
use crate::samples::samples;
use nano_trace::check::{OpenSlices, check};
use nano_trace::flame::{Filter, FilterError, folded};
use nano_trace::timeline::Timeline;
use std::fs;
use std::process::{Command, Output};

fn timeline() -> Timeline {
    let mut files = good_trace();
    files.core.extend(samples());
    let report = check(&files.sources(), &OpenSlices::None).unwrap();
    report.assert_clean();
    report.timeline
}

const ALL: [(&str, u64); 4] = [
    ("nano-core;core;main;[u8, 4]::rest", 2_000_000),
    ("nano-core;core;main;plan", 1_000_000),
    (
        "nano-worker;pool;[not known from where];main;multiply",
        8_000_000,
    ),
    ("nano-worker;worker;main;multiply", 4_000_000),
];

fn shown(filter: Filter) -> Vec<u64> {
    let folded = folded(&timeline(), &filter).unwrap();
    folded.into_values().map(|ns| ns / 1_000_000).collect()
}

#[test]
fn stacks_are_folded_below_process_and_thread() {
    let folded = folded(&timeline(), &Filter::default()).unwrap();
    let expected = ALL.map(|(stack, ns)| (stack.to_owned(), ns));
    assert_eq!(folded.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn filters_leave_what_they_say() {
    let some = |name: &str| Some(name.to_owned());
    let none = Filter::default;
    for (filter, left) in [
        (
            Filter {
                process: some("worker"),
                ..none()
            },
            vec![8, 4],
        ),
        (
            Filter {
                thread: some("pool"),
                ..none()
            },
            vec![8],
        ),
        // The good trace begins at 0, the samples are at 220, 500, 510 and 520 us.
        (
            Filter {
                from: Some(505e-6),
                ..none()
            },
            vec![8, 4],
        ),
        (
            Filter {
                to: Some(505e-6),
                ..none()
            },
            vec![2, 1],
        ),
        (
            Filter {
                from: Some(300e-6),
                to: Some(515e-6),
                ..none()
            },
            vec![2, 4],
        ),
        (
            Filter {
                inside: some("schedule"),
                ..none()
            },
            vec![1],
        ),
        (
            Filter {
                inside: some("forward"),
                ..none()
            },
            vec![4],
        ),
        (
            Filter {
                during: some("forward"),
                ..none()
            },
            vec![2, 8, 4],
        ),
        (
            Filter {
                during: some("forward"),
                inside: some("wait_workers"),
                ..none()
            },
            vec![2],
        ),
    ] {
        assert_eq!(shown(filter.clone()), left, "{filter:?}");
    }
}

#[test]
fn what_leaves_nothing_says_why() {
    let refused = |timeline: &Timeline, filter: Filter| folded(timeline, &filter).unwrap_err();
    let none = check(&good_trace().sources(), &OpenSlices::None).unwrap();
    let error = refused(&none.timeline, Filter::default());
    assert_eq!(error, FilterError::NoSamples);
    // The first filter that leaves nothing, and what it could have left.
    let some = |name: &str| Some(name.to_owned());
    for (filter, expected) in [
        (
            Filter {
                process: some("Worker"),
                thread: some("pool"),
                ..Default::default()
            },
            "no stack samples of a process with \"Worker\" in its name; there are nano-core, nano-worker",
        ),
        (
            Filter {
                process: some("worker"),
                thread: some("core"),
                ..Default::default()
            },
            "no stack samples of a thread with \"core\" in its name; there are pool, worker",
        ),
        (
            Filter {
                thread: some("pool"),
                to: Some(0.0001),
                ..Default::default()
            },
            "no stack samples from 0 s to 0.0001 s; there are some from 0.00052 s to 0.00052 s",
        ),
        (
            Filter {
                thread: some("pool"),
                inside: some("forward"),
                ..Default::default()
            },
            "no stack samples of a thread inside \"forward\"; there are others (1)",
        ),
        (
            Filter {
                to: Some(0.0003),
                during: some("forward"),
                ..Default::default()
            },
            "no stack samples while \"forward\" runs; there are others (1)",
        ),
    ] {
        assert_eq!(refused(&timeline(), filter).to_string(), expected);
    }
    let inside = Some("fly".to_owned());
    let error = refused(
        &timeline(),
        Filter {
            inside,
            ..Default::default()
        },
    )
    .to_string();
    assert!(
        error.contains("\"fly\"") && error.contains("schedule"),
        "{error}"
    );
}

fn flame(args: &[&str]) -> (tempfile::TempDir, Output) {
    let dir = tempfile::tempdir().unwrap();
    let mut files = good_trace();
    files.core.extend(samples());
    for (name, packets) in [("core", files.core), ("worker", files.worker)] {
        fs::write(dir.path().join(name), bytes(&packets)).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_nano-trace"))
        .current_dir(dir.path())
        .args(["flame", "core", "worker"])
        .args(args)
        .output()
        .unwrap();
    (dir, output)
}

#[test]
fn the_tool_draws_and_folds() {
    let (dir, output) = flame(&["-o", "out.svg", "--inside", "forward"]);
    assert!(output.status.success(), "{output:?}");
    let svg = fs::read_to_string(dir.path().join("out.svg")).unwrap();
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("multiply (4,000 microseconds"), "{svg}");
    assert!(svg.contains("CPU time, inside forward"));
    assert!(!svg.contains("plan ("));

    let (_dir, output) = flame(&["-o", "-", "--folded", "--thread", "core"]);
    let expected = "nano-core;core;main;[u8, 4]::rest 2000\nnano-core;core;main;plan 1000\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

    for (args, expected) in [
        (
            ["--from", "abc"],
            "'--from <SECONDS>': must be seconds after",
        ),
        (["--to", "-1"], "'--to <SECONDS>': must be seconds after"),
    ] {
        let (_dir, output) = flame(&[&["-o", "out.svg"], &args[..]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
    }

    let (_dir, output) = flame(&["-o", "out.svg", "--while", "fly"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("nano-trace: no slice \"fly\""), "{error}");
}
