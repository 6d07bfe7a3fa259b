//! Files put together.

use crate::good_trace::{bytes, good_trace};
use nano_trace::{
    check::{OpenSlices, check},
    merge::{MergeError, merge},
    proto::{
        BuiltinClock, ClockSnapshot, TracePacket, clock_snapshot,
        trace_attributes::{Attribute, attribute::Value},
        trace_packet::Data,
    },
    read::{Source, Tail},
    selection::{Wanted, select},
};
use std::{
    fs,
    io::Read,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// The good trace as files of one run.
fn write_files(dir: &Path, run: &str, age: Duration) -> Vec<PathBuf> {
    let files = good_trace();
    [
        ("core", 12, &files.core),
        ("frontend", 11, &files.frontend),
        ("worker-0", 13, &files.worker),
    ]
    .map(|(role, pid, packets)| {
        let path = dir.join(format!("auto.{role}.{run}-{pid}.pftrace"));
        fs::write(&path, bytes(packets)).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
        path
    })
    .into()
}

#[test]
fn whole_files_are_concatenated_byte_by_byte() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = write_files(dir.path(), "k3x9", Duration::ZERO);
    let output = dir.path().join("all.pftrace");
    let merged = merge(&inputs, &output).unwrap();
    let expected = inputs.iter().flat_map(|path| fs::read(path).unwrap());
    assert_eq!(fs::read(&output).unwrap(), expected.collect::<Vec<_>>());
    assert!(merged.iter().all(|file| file.tail == Tail::Whole));
    // Nothing else was left behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), inputs.len() + 1);
}

#[test]
fn a_tail_cut_anywhere_or_padded_never_breaks_the_merged_trace() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = write_files(dir.path(), "k3x9", Duration::ZERO);
    let output = dir.path().join("all.pftrace");
    let core = fs::read(&inputs[0]).unwrap();
    for cut in (1..60).map(|cut| core.len() - cut) {
        for zeros in [0, 1, 7] {
            let mut broken = core[..cut].to_vec();
            broken.resize(cut + zeros, 0);
            fs::write(&inputs[0], broken).unwrap();
            merge(&inputs, &output).unwrap();
            let report = check(&[Source::File(output.clone())], &OpenSlices::Any).unwrap();
            assert_eq!(report.files[0].tail, Tail::Whole);
            // The other files are all there.
            assert!(
                report
                    .timeline
                    .slices
                    .iter()
                    .any(|s| &*s.name == "http.parse")
            );
            assert!(report.timeline.slices.iter().any(|s| &*s.name == "load"));
        }
    }
}

#[test]
fn a_directory_means_its_newest_run_unless_all_are_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let old = write_files(dir.path(), "old1", Duration::from_secs(60));
    let new = write_files(dir.path(), "new1", Duration::ZERO);
    fs::write(dir.path().join("merged.pftrace"), "not ours").unwrap();
    let paths = [dir.path().to_owned()];
    assert_eq!(select(&paths, &Wanted::Newest).unwrap().files, new);
    let all = [old, new].concat();
    assert_eq!(select(&paths, &Wanted::All).unwrap().files, all);
}

#[test]
fn a_directory_means_its_newest_session_and_another_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut sessions = Vec::new();
    for (session, age) in [("a.b", 30), ("c", 0), ("auto", 60)] {
        let files = write_files(dir.path(), "k3x9", Duration::from_secs(age));
        let named = files.into_iter().map(|file| {
            let name = file.file_name().unwrap().to_str().unwrap();
            let named = dir.path().join(name.replacen("auto", session, 1));
            fs::rename(&file, &named).unwrap();
            named
        });
        sessions.push(named.collect::<Vec<_>>());
    }
    // An older run has a session of that name, too.
    let old = dir.path().join("c.core.old1-7.pftrace");
    fs::write(&old, "").unwrap();
    let hour = SystemTime::now() - Duration::from_secs(3600);
    let file = fs::File::options().write(true).open(&old).unwrap();
    file.set_modified(hour).unwrap();

    let paths = [dir.path().to_owned()];
    let newest = select(&paths, &Wanted::Newest).unwrap();
    assert_eq!(newest.files, sessions[1]);
    let left_out: Vec<String> = newest.left_out.iter().map(|s| s.to_string()).collect();
    let expected = [
        "c of run old1 (1 file)",
        "auto of run k3x9 (3 files)",
        "a.b of run k3x9 (3 files)",
    ];
    assert_eq!(left_out, expected);
    let named = |name: &str| select(&paths, &Wanted::Named(name.to_owned()));
    assert_eq!(named("a.b").unwrap().files, sessions[0]);
    assert_eq!(named("c").unwrap().files, sessions[1]);
    let run = select(&paths, &Wanted::NewestRun).unwrap();
    assert_eq!(run.taken.len(), 3);
    let refused = named("d").unwrap_err().to_string();
    assert!(
        refused.contains("\"d\"") && refused.contains("a.b of run k3x9"),
        "{refused}"
    );
}

/// A file that says when it was begun, and no more; from and to are seconds ago.
fn write_span(dir: &Path, name: &str, from: u64, to: u64) -> PathBuf {
    let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
    let begun = ago(from).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let clock = clock_snapshot::Clock {
        clock_id: Some(BuiltinClock::Realtime as u32),
        timestamp: Some(begun.as_nanos() as u64),
        ..Default::default()
    };
    let snapshot = ClockSnapshot {
        clocks: vec![clock],
        ..Default::default()
    };
    let packet = TracePacket {
        data: Some(Data::ClockSnapshot(snapshot)),
        ..Default::default()
    };
    let path = dir.join(name);
    fs::write(&path, bytes(&[packet])).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(ago(to)).unwrap();
    path
}

#[test]
fn clients_go_with_the_sessions_that_they_overlap() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let before = write_span(dir, "client.bench.c0-2.pftrace", 90, 80);
    let load = write_span(dir, "load.core.s1-1.pftrace", 60, 50);
    let around_load = write_span(dir, "client.bench.c1-3.pftrace", 65, 45);
    let next = write_span(dir, "next.core.s1-1.pftrace", 40, 30);
    let around_next = write_span(dir, "client.bench.c2-4.pftrace", 43, 10);
    let within_next = write_span(dir, "client.bench.c3-5.pftrace", 39, 38);
    let cut = dir.join("client.bench.c4-6.pftrace");
    fs::write(&cut, "").unwrap();

    let paths = [dir.to_owned()];
    let names = |wanted| select(&paths, &wanted).unwrap().files;
    // The last to end is a client, but what is measured is the server.
    let with_next = [&within_next, &next, &around_next].map(Clone::clone);
    assert_eq!(names(Wanted::Newest), with_next);
    let with_load = [load, around_load];
    let named = |name: &str| names(Wanted::Named(name.to_owned()));
    assert_eq!(named("load"), with_load);
    assert_eq!(named("client"), std::slice::from_ref(&cut));
    let run = [&with_load[..], &with_next].concat();
    let sorted = |mut files: Vec<PathBuf>| {
        files.sort();
        files
    };
    assert_eq!(sorted(names(Wanted::NewestRun)), sorted(run.clone()));
    let all = [&run[..], &[before.clone(), cut]].concat();
    assert_eq!(sorted(names(Wanted::All)), sorted(all));

    // Alone, a client is what there is.
    let alone = dir.join("alone");
    fs::create_dir(&alone).unwrap();
    let moved = alone.join(before.file_name().unwrap());
    fs::rename(before, &moved).unwrap();
    let selection = select(&[alone], &Wanted::Newest).unwrap();
    assert_eq!(selection.files, [moved]);
    assert!(selection.taken[0].is_client);
}

#[test]
fn a_link_stays_and_what_it_points_at_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = write_files(dir.path(), "k3x9", Duration::ZERO);
    let inside = dir.path().join("inside");
    fs::create_dir(&inside).unwrap();
    // To a file that is there, and to one that is not; one link in between.
    for before in [Some("before"), None] {
        let _ = fs::remove_file(inside.join("all.pftrace"));
        if let Some(text) = before {
            fs::write(inside.join("all.pftrace"), text).unwrap();
        }
        let [near, far] = ["near", "far"].map(|name| dir.path().join(name));
        for (link, to) in [(&near, "inside/all.pftrace"), (&far, "near")] {
            let _ = fs::remove_file(link);
            std::os::unix::fs::symlink(to, link).unwrap();
        }
        merge(&inputs, &far).unwrap();
        for link in [&near, &far] {
            assert!(fs::symlink_metadata(link).unwrap().is_symlink());
        }
        let expected = inputs.iter().flat_map(|path| fs::read(path).unwrap());
        let merged = fs::read(inside.join("all.pftrace")).unwrap();
        assert_eq!(merged, expected.collect::<Vec<_>>());
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 1);
    }
    let circle = dir.path().join("circle");
    std::os::unix::fs::symlink("circle", &circle).unwrap();
    let refused = merge(&inputs, &circle).unwrap_err().to_string();
    assert!(refused.contains("circle: Too many levels"), "{refused}");
}

#[test]
fn a_pipe_is_written_into_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = write_files(dir.path(), "k3x9", Duration::ZERO);
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Open for both, so that neither side waits for the other; it holds the
    // whole merged trace.
    let mut reader = fs::File::options()
        .read(true)
        .write(true)
        .open(&pipe)
        .unwrap();
    merge(&inputs, &pipe).unwrap();
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    let expected = inputs.iter().flat_map(|path| fs::read(path).unwrap());
    let expected = expected.collect::<Vec<_>>();
    assert!(expected.len() < 1 << 16, "{}", expected.len());
    let mut merged = vec![0; expected.len()];
    reader.read_exact(&mut merged).unwrap();
    assert_eq!(merged, expected);
}

#[test]
fn a_file_under_several_names_is_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = write_files(dir.path(), "k3x9", Duration::ZERO);
    let again = dir.path().join(".");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&inputs[0], &link).unwrap();
    let paths = [dir.path().to_owned(), again, inputs[1].clone(), link];
    assert_eq!(select(&paths, &Wanted::Newest).unwrap().files, inputs);
}

/// A dump of the good trace's core, which records for 3.65 ms, so much later.
fn write_dump(dir: &Path, session: &str, later: Duration) -> PathBuf {
    let mut packets = good_trace().core;
    for packet in &mut packets {
        let later = later.as_nanos() as u64;
        packet.timestamp = packet.timestamp.map(|stamp| stamp + later);
        if let Some(Data::TraceAttributes(facts)) = &mut packet.data {
            facts.attribute.push(Attribute {
                key: Some("trigger".to_owned()),
                value: Some(Value::String("http".to_owned())),
            });
        }
    }
    let path = dir.join(format!("{session}.core.k3x9-12.pftrace"));
    fs::write(&path, bytes(&packets)).unwrap();
    path
}

#[test]
fn a_dump_is_not_put_to_what_shows_the_same_moments() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("all.pftrace");
    let first = write_dump(dir.path(), "first", Duration::ZERO);
    let within = write_dump(dir.path(), "within", Duration::from_millis(2));
    let after = write_dump(dir.path(), "after", Duration::from_millis(10));
    // In whatever order, and whatever else is there.
    let inputs = [after.clone(), within, first.clone()];
    let refused = merge(&inputs, &output).unwrap_err().to_string();
    assert!(
        refused.contains("first and within of run k3x9") && refused.contains("--session"),
        "{refused}"
    );
    assert!(!output.exists());
    // A session that was recorded meanwhile is no better, and its other
    // processes are no harm.
    let session = write_files(dir.path(), "k3x9", Duration::ZERO);
    assert!(session[0].ends_with("auto.core.k3x9-12.pftrace"));
    let refused = merge(&[first.clone(), session[0].clone()], &output);
    assert!(
        matches!(refused, Err(MergeError::Overlap { .. })),
        "{refused:?}"
    );
    for other in [&after, &session[1]] {
        let merged = merge(&[first.clone(), other.clone()], &output).unwrap();
        assert_eq!(merged.len(), 2);
    }
}

#[test]
fn what_cannot_be_merged_is_said_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("all.pftrace");
    let empty = tempfile::tempdir().unwrap();
    let nothing = select(&[empty.path().to_owned()], &Wanted::Newest);
    assert!(matches!(nothing, Err(MergeError::NothingIn(_))));

    let inputs = write_files(dir.path(), "k3x9", Duration::ZERO);
    let before = fs::read(&inputs[1]).unwrap();
    let own = merge(&inputs, &inputs[1]);
    assert!(matches!(own, Err(MergeError::OutputIsInput(_))));
    assert_eq!(fs::read(&inputs[1]).unwrap(), before);

    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&inputs[0], &link).unwrap();
    let twice = merge(&[inputs[0].clone(), link], &output);
    assert!(matches!(twice, Err(MergeError::Twice(_))));

    let text = dir.path().join("text.pftrace");
    fs::write(&text, "{\"traceEvents\": []}").unwrap();
    let foreign = merge(&[inputs[0].clone(), text], &output).unwrap_err();
    assert!(
        foreign
            .to_string()
            .contains("text.pftrace: not a Perfetto trace")
    );

    let missing = dir.path().join("missing.pftrace");
    let missing = merge(&[missing], &output).unwrap_err().to_string();
    assert!(
        missing.contains("missing.pftrace: No such file"),
        "{missing}"
    );
    assert!(!output.exists());
    let left = fs::read_dir(dir.path()).unwrap();
    assert!(
        left.flatten()
            .all(|e| !e.file_name().to_string_lossy().contains("partial"))
    );
}
