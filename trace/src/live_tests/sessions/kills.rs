//! Sessions of a process that is killed.

use super::*;
use crate::read::Tail;

/// Requests and slices without end, and sessions that come and go beside `auto`.
fn play_forever() {
    static PLAYED: AtomicU64 = AtomicU64::new(0);
    let play = |thread: u64| {
        for round in 0.. {
            let request = RequestTrack::new(thread << 32 | round);
            request.describe(Event::Request, &[("request_id", "r")]);
            request.begin(Event::Request, [], &[Flow::request(round)]);
            let _step = slice(Event::WorkerStep, [round]);
            request.begin(Event::Waiting, [], &[]);
            drop(slice(Event::Forward, [round]));
            request.end(Event::Waiting, [], &[]);
            request.end(Event::Request, [1, 0, 1, 0], &[]);
            PLAYED.fetch_add(1, SeqCst);
            // Slow enough for the writer: nothing is dropped.
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    std::thread::spawn(move || play(1));
    std::thread::spawn(move || play(2));
    for round in 0.. {
        let begin_how = if round % 3 == 0 {
            Begin::Stamped
        } else {
            Begin::Now
        };
        let begun = begin(SessionSpec {
            begin: begin_how,
            marked_only: round % 5 == 0,
            ..spec(&format!("s{round}"))
        });
        for on in [true, false, true] {
            crate::stamp_session(&begun.name, boottime_ns(), on);
            std::thread::yield_now();
        }
        crate::end_session(&begun.name, None);
        if round == 3 {
            while PLAYED.load(SeqCst) < 10 {
                std::thread::yield_now();
            }
            signal_parent();
        }
    }
}

#[test]
fn kills_at_any_moment_leave_whole_files_with_the_last_records() {
    let test = "kills::kills_at_any_moment_leave_whole_files_with_the_last_records";
    // A child asks for its own scene only.
    let rounds = if std::env::var("NANO_TRACE_SCENE_DIR").is_ok() {
        1
    } else {
        8
    };
    for round in 0..rounds {
        let mut stage = staged(test, vec![auto(256 << 20)], play_forever);
        stage.wait_until_ready();
        // Somewhere in the writer's round of 200 ms.
        std::thread::sleep(Duration::from_millis(round * 29));
        let before = boottime_ns();
        stage.child.kill().unwrap();
        stage.child.wait().unwrap();
        let files: Vec<PathBuf> = fs::read_dir(stage.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        for file in &files {
            let mut packets = Source::File(file.clone()).packets().unwrap();
            while packets.next_packet().unwrap().is_some() {}
            let tail = packets.tail();
            assert!(
                matches!(tail, Some(Tail::Whole | Tail::Cut { .. })),
                "{tail:?}"
            );
        }
        let salvaged = stage.rings.salvage(stage.dir.path());
        assert!(!salvaged.is_empty() && salvaged.len() <= 4);
        for salvaged in salvaged {
            let salvaged = salvaged.unwrap();
            assert_eq!(salvaged.bytes, salvaged.file.metadata().unwrap().len());
        }
        stage.assert_nothing_to_salvage();
        for file in &files {
            let mut packets = Source::File(file.clone()).packets().unwrap();
            while packets.next_packet().unwrap().is_some() {}
            // One that was being made, for a session that had not begun.
            if packets.packets() < 8 {
                continue;
            }
            let shown = read(file);
            let mut instants = shown.instants.iter();
            assert!(instants.any(|i| i.name == "trace.end"), "{file:?}");
        }
        let auto = stage.read("auto");
        assert_eq!(auto.end()["reason"], "process died");
        let last = auto.slices.iter().filter(|s| s.begin.name != "recording");
        let last = last.map(|slice| slice.begin.ns).max().unwrap();
        // Before the kill, or during it; in no file after all are dead.
        assert!(
            before.saturating_sub(last) < 2_000_000_000,
            "{before} {last}"
        );
    }
}
