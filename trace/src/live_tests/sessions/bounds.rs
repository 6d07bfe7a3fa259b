//! How sessions end by themselves, and what they leave behind.

use super::*;

#[test]
fn caps_and_durations_end_a_session_fully_and_alone() {
    const DURATION: Duration = Duration::from_millis(60);
    let test = "bounds::caps_and_durations_end_a_session_fully_and_alone";
    let mut stage = staged(test, vec![auto(64 << 20)], || {
        let (tell, ends) = std::sync::mpsc::channel();
        let tell = std::sync::Mutex::new(tell);
        crate::on_session_end(move |status| tell.lock().unwrap().send(status).unwrap());
        begin(SessionSpec {
            max_bytes: SessionSpec::MIN_BYTES,
            ..spec("small")
        });
        begin(SessionSpec {
            duration: Some(DURATION),
            // Its time is to end it, on the slowest machine too.
            max_bytes: 64 << 20,
            ..spec("short")
        });
        let mut ended = Vec::new();
        while ended.len() < 2 {
            for _ in 0..100 {
                drop(slice(Event::Forward, [1]));
            }
            ended.extend(ends.try_iter());
            std::thread::yield_now();
        }
        ended.sort_by_key(|status| status.name.clone());
        let states: Vec<_> = ended
            .iter()
            .map(|s| (s.name.as_str(), s.state.clone()))
            .collect();
        let expected = [
            ("short", SessionState::TimedOut),
            ("small", SessionState::Capped),
        ];
        assert_eq!(states, expected);
        assert_eq!(ended, ["short", "small"].map(status_of));
        assert_eq!(status_of("auto").state, SessionState::Recording);
        // Each of their places is free.
        for session in ["a", "b", "c"] {
            begin(spec(session));
        }
        let taken = crate::begin_session(spec("a"));
        assert_eq!(taken, Err(SessionError::Taken(name("a"))));
        let many = crate::begin_session(spec("d"));
        assert_eq!(many, Err(SessionError::TooMany(4)));
        // The rings may be full of what came before.
        assert!(crate::flush());
        drop(slice(Event::Forward, [2]));
        crate::finish();
        assert!(ends.try_recv().is_err(), "those were ended by us");
    });
    stage.ended();
    let small = stage.file_of("small").metadata().unwrap().len();
    let (cap, chunk) = (SessionSpec::MIN_BYTES, 64 << 10);
    assert!(small <= cap && small > cap - chunk, "{small}");
    assert_eq!(stage.read("small").end()["reason"], "byte cap");
    let short = stage.read("short");
    assert_eq!(short.end()["reason"], "duration");
    let interval = short.slices_named("recording")[0];
    let took = interval.end.unwrap() + 1 - interval.begin.ns;
    assert_eq!(Duration::from_nanos(took), DURATION);
    assert!(short.last_ns <= interval.end.unwrap());
    assert!(!tokens(&short).is_empty());
    for session in ["a", "b", "c"] {
        assert_eq!(tokens(&stage.read(session)), [2]);
    }
    assert_eq!(tokens(&stage.read("auto")).pop(), Some(2));
}

#[test]
fn every_record_is_in_the_file_or_counted() {
    let rings = Rings::create_sized(4, 512).unwrap();
    let test = "sessions::bounds::every_record_is_in_the_file_or_counted";
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 20_000;
    let mut stage = stage_with(rings, test, vec![auto(256 << 20)], || {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                std::thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let step = slice(Event::WorkerStep, [round]);
                        instant(Event::EventLoopStall, [round], &[]);
                        let request = RequestTrack::new(thread * ROUNDS + round);
                        request.begin(Event::Request, [], &[]);
                        request.begin(Event::Waiting, [], &[]);
                        request.end(Event::Waiting, [], &[]);
                        request.end(Event::Request, [], &[]);
                        drop(step);
                        if round % 32 == 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        crate::finish();
        assert!(now().drops > 0 && now().events > 100, "{:?}", now());
    });
    stage.ended();
    let shown = stage.read("auto");
    let [events, dropped] = ["events", "dropped"].map(|k| shown.end()[k].parse::<u64>().unwrap());
    // Of a slice that found no room no END was made.
    let steps = shown.slices_named("step").len() as u64;
    let made = THREADS * ROUNDS * 6 + steps;
    assert_eq!(events + dropped, made);
    // Packets say the same: slices twice (ENDs may have been lost), instants once.
    let instants = shown.instants.len() as u64 - 1;
    let begins = shown.slices.len() as u64 - 1;
    assert!(instants + begins <= events && events <= instants + 2 * begins);
}

#[test]
fn a_thousand_sessions_leave_nothing_behind() {
    const SESSIONS: u64 = 1000;
    let test = "bounds::a_thousand_sessions_leave_nothing_behind";
    let mut stage = staged(test, vec![], || {
        let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
        let resident = || {
            let statm = fs::read_to_string("/proc/self/statm").unwrap();
            let pages = statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
            pages * 4096
        };
        let mut before = (0, 0, 0);
        for session in 0..SESSIONS {
            if session == 100 {
                crate::flush();
                before = (resident(), count("fd"), count("task"));
            }
            let text = format!("s{session}");
            let track = RequestTrack::new(session);
            track.describe(Event::Request, &[("request_id", &text)]);
            track.begin(Event::Request, [], &[]);
            begin(spec(&text));
            for _ in 0..20 {
                let _step = slice(Event::WorkerStep, [session]);
                drop(slice(Event::Forward, [session]));
            }
            crate::end_session(&name(&text), None);
            track.end(Event::Request, [1, 0, 1, 0], &[]);
        }
        let last = format!("s{}", SESSIONS - 1);
        while !crate::sessions().iter().all(|s| s.state.is_over()) {
            assert!(crate::wait_whole(&name(&last), PATIENCE));
        }
        let (bytes, fds, threads) = (resident(), count("fd"), count("task"));
        println!(
            "{SESSIONS} sessions: {} bytes of memory before, {bytes} after",
            before.0
        );
        assert!(bytes < before.0 + (5 << 20), "{bytes} after {before:?}");
        assert_eq!((fds, threads), (before.1, before.2));
        crate::finish();
    });
    stage.ended();
    for session in 0..SESSIONS {
        let shown = stage.read(&format!("s{session}"));
        assert_eq!(tokens(&shown), [session; 20]);
        assert_eq!(shown.slices_named("request").len(), 1);
    }
}

#[test]
fn a_disk_that_fails_fails_one_session_and_not_the_next() {
    let test = "bounds::a_disk_that_fails_fails_one_session_and_not_the_next";
    let mut stage = staged(test, vec![auto(1 << 20)], || {
        let dir = now().file.parent().unwrap().to_owned();
        drop(slice(Event::Forward, [1]));
        assert!(crate::flush());
        let reason = |text: &str| match status_of(text).state {
            SessionState::Failed(reason) => reason,
            state => panic!("{state:?}"),
        };
        // The directory goes, with all that is in it.
        fs::remove_dir_all(&dir).unwrap();
        assert!(!crate::flush());
        assert!(reason("auto").contains("removed"), "{}", reason("auto"));
        assert_eq!(begin(spec("again")).state, SessionState::Recording);
        drop(slice(Event::Forward, [2]));
        assert_eq!(end("again").state, SessionState::Finished);
        // Something else is in its place, for all users alike.
        let aside = dir.with_extension("aside");
        fs::rename(&dir, &aside).unwrap();
        fs::write(&dir, "").unwrap();
        let failed = begin(spec("nowhere"));
        assert!(
            matches!(failed.state, SessionState::Failed(_)),
            "{failed:?}"
        );
        assert!(!reason("nowhere").is_empty());
        fs::remove_file(&dir).unwrap();
        fs::rename(&aside, &dir).unwrap();
        // A name that somebody has put a link under leads nowhere.
        let file = failed
            .file
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let planted = dir.join(file.replacen("nowhere", "planted", 1));
        std::os::unix::fs::symlink("/tmp/nano-trace-planted", planted).unwrap();
        let refused = begin(spec("planted"));
        assert!(
            matches!(refused.state, SessionState::Failed(_)),
            "{refused:?}"
        );
        assert!(!PathBuf::from("/tmp/nano-trace-planted").exists());
        // A full disk, while two record.
        begin(spec("full"));
        drop(slice(Event::Forward, [3]));
        assert!(crate::flush());
        let size = status_of("full").bytes + 4096;
        let limit = libc::rlimit {
            rlim_cur: size,
            rlim_max: size,
        };
        // SAFETY: plain system calls with valid arguments.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
        let flows: Vec<Flow> = (0..1024).map(Flow::request).collect();
        drop(slice_with(Event::Forward, [4], &flows));
        crate::flush();
        assert!(!reason("full").is_empty());
        // A failed name may be used again, where there is no file of it.
        begin(spec("nowhere"));
        drop(slice(Event::Forward, [5]));
        assert_eq!(end("nowhere").state, SessionState::Finished);
        crate::finish();
    });
    stage.ended();
    assert_eq!(tokens(&stage.read("again")), [2]);
    assert_eq!(tokens(&stage.read("full")), [3]);
    assert_eq!(stage.read("full").end()["reason"], "write failed");
    assert_eq!(tokens(&stage.read("nowhere")), [5]);
}
