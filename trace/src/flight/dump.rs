//! A file of what was kept.

use super::picture::Picture;
use crate::clock::{boottime_ns, clock_ns};
use crate::encoder::Thread;
use crate::recording::{Outcome, Recording};
use crate::rings::{Rings, SlotFacts};
use crate::trace_file::TraceFile;
use crate::{Detail, SessionName, SessionState, SessionStatus, about};
use nix::time::ClockId;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, UNIX_EPOCH};

/// What of a process is to be written, and where. It obeys the rules of a
/// session's file.
#[derive(Clone, Debug)]
pub struct DumpSpec {
    /// Where the file goes.
    pub dir: PathBuf,
    /// As a session's.
    pub name: SessionName,
    /// A number that no other dump of the process has.
    pub number: u32,
    /// As in [`ProcessTrace`](crate::ProcessTrace).
    pub role: String,
    /// The file never grows beyond; what does not fit is the interval's begin.
    pub max_bytes: u64,
    /// From this moment of CLOCK_BOOTTIME on; later, if less is kept.
    pub from_ns: u64,
    /// Up to this one.
    pub to_ns: u64,
    /// Facts of the run and of the dump, key and value.
    pub facts: Vec<(String, String)>,
    /// The process was killed: its file ends with what it recorded last, and
    /// what was open then stays open.
    pub is_dead: bool,
}

/// An interval that is not made shorter to fit.
const SHORTEST_NS: u64 = 1_000_000;

impl Rings {
    /// Writes what is kept of an interval, whatever the process is doing, or
    /// after its death. Returns how that went: `Finished`, `Capped` or
    /// `Failed`. `None`: the process does not keep anything, or not yet.
    pub fn dump(&self, spec: &DumpSpec) -> Option<SessionStatus> {
        let picture = match Picture::take(self) {
            Ok(picture) => picture?,
            Err(error) => return Some(failed(self, spec, &io::Error::other(error))),
        };
        Some(match write_newest(self, spec, &picture) {
            Ok(status) => status,
            Err(error) => failed(self, spec, &error),
        })
    }
}

/// Writes as much of the interval as the cap has room for, about: the end, since
/// the last moment is what a dump is made for.
fn write_newest(rings: &Rings, spec: &DumpSpec, picture: &Picture) -> io::Result<SessionStatus> {
    let kept = [picture.forgotten.ns + 1, picture.identity.started_ns];
    let mut from_ns = kept.into_iter().fold(spec.from_ns, u64::max);
    let mut status = write(rings, spec, picture, from_ns)?;
    let mut is_shorter = false;
    while status.state == SessionState::Capped && from_ns + SHORTEST_NS < spec.to_ns {
        std::fs::remove_file(&status.file)?;
        from_ns += (spec.to_ns - from_ns) / 2;
        status = write(rings, spec, picture, from_ns)?;
        is_shorter = true;
    }
    if is_shorter {
        status.state = SessionState::Capped;
    }
    Ok(status)
}

fn write(
    rings: &Rings,
    spec: &DumpSpec,
    picture: &Picture,
    from_ns: u64,
) -> io::Result<SessionStatus> {
    let identity = picture.identity;
    let facts = SlotFacts {
        number: spec.number,
        file_name: String::new(),
        max_bytes: spec.max_bytes,
        begun_len: 0,
        drops_before: picture.forgotten.drops,
        marked_only: false,
        detail: Detail::Steps as u8,
    };
    let own = about::own(
        &spec.name,
        &spec.role,
        identity,
        rings.clock(),
        spec.max_bytes,
        Detail::Steps,
    );
    let about: Vec<(String, String)> = spec.facts.iter().cloned().chain(own).collect();
    let to_ns = (!spec.is_dead).then_some(spec.to_ns);
    let writer = Thread::writer(rings.header().writer_tid.load(Relaxed));
    let path = spec.file(rings);
    let file = TraceFile::create(path.clone())?;
    let dump = Recording::dump(
        (facts, from_ns, to_ns),
        identity,
        picture.num_rings(),
        (&spec.role, &writer),
        &about,
        file,
    );
    // Nothing could be written: a file without anything in it is none.
    let mut dump = dump.inspect_err(|_| drop(std::fs::remove_file(&path)))?;
    let mut timeline = picture.timeline.clone();
    let newest = timeline.newest();
    if spec.is_dead {
        dump.alive_at(
            rings
                .timeline()
                .newest()
                .map_or(0, |anchor| anchor.boottime),
        );
    }
    let mut walk = picture.walk();
    walk.begin(newest.map_or(u64::MAX, |anchor| anchor.raw));
    while dump.outcome.is_none()
        && let Some(record) = walk.next(&mut timeline)
    {
        if record.ns >= dump.next_change_ns() {
            dump.advance(record.ns, &walk.requests, walk.counters.values());
        }
        let request = walk.step(&record);
        let thread = || picture.thread(record.ring);
        let has_chunk = dump.take(&record, request, &walk.requests, thread);
        walk.pass(&record, request);
        if has_chunk {
            dump.flush(picture.drops);
        }
    }
    dump.advance(u64::MAX, &walk.requests, walk.counters.values());
    let is_capped = matches!(dump.outcome, Some(Outcome::ByteCap));
    if spec.is_dead {
        dump.finish_dead(picture.drops)?;
    } else {
        dump.finish(picture.drops);
    }
    if let Some(Outcome::Io(error)) = dump.outcome {
        return Err(error);
    }
    let state = match is_capped {
        true => SessionState::Capped,
        false => SessionState::Finished,
    };
    Ok(SessionStatus {
        bytes: dump.file().len(),
        events: dump.events(),
        drops: dump.dropped(),
        ..status(rings, spec, state, from_ns)
    })
}

fn failed(rings: &Rings, spec: &DumpSpec, error: &io::Error) -> SessionStatus {
    let state = SessionState::Failed(error.to_string());
    status(rings, spec, state, spec.from_ns)
}

/// `since_ns`: where it begins.
fn status(rings: &Rings, spec: &DumpSpec, state: SessionState, since_ns: u64) -> SessionStatus {
    let age_ns = boottime_ns().saturating_sub(since_ns);
    let utc_ns = clock_ns(ClockId::CLOCK_REALTIME).saturating_sub(age_ns);
    SessionStatus {
        name: spec.name.clone(),
        file: spec.file(rings),
        state,
        bytes: 0,
        events: 0,
        drops: 0,
        late_records: 0,
        samples: None,
        lost_samples: 0,
        unsampled_threads: 0,
        since: UNIX_EPOCH + Duration::from_nanos(utc_ns),
    }
}

impl DumpSpec {
    fn file(&self, rings: &Rings) -> PathBuf {
        let name = rings.identity().file_name(&self.name, &self.role);
        self.dir.join(name)
    }
}
