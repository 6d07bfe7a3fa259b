//! One session's file, while records are selected for it.
//!
//! Invariants:
//! - the file grows by whole packets, and never beyond the cap;
//! - only records of the intervals of its [`Switches`] are in it;
//! - exactly one [`Outcome`] ends it, and nothing follows.

use crate::clock::boottime_ns;
use crate::encoder::{DUMP, Encoder, EndReason, FileOf, PROCESS, Progress, SALVAGE, Thread};
use crate::entry::Kind;
use crate::identity::Identity;
use crate::replay::Replay;
use crate::request_tracks::{RequestTracks, Step};
use crate::rings::{CommittedSession, Rings, SessionSlot, SlotFacts};
use crate::sampled::Sampled;
use crate::sampler::{Missed, SampleEncoder, WaitingSample};
use crate::switches::{Change, End, Switch, Switches};
use crate::trace_file::TraceFile;
use crate::walk::Record;
use crate::{Event, RequestTrack};
use std::io;
use std::path::Path;

/// Encoded bytes that are written at once.
const CHUNK: usize = 64 << 10;
/// More than one record and what it needs told (1024 flows take 10 KiB), or a
/// request's open slices, and the file's end: room below the cap for them.
const CAP_RESERVE: u64 = 32 << 10;

/// So long after its end does a session wait for its last stack samples.
const SAMPLER_PATIENCE_NS: u64 = 2_000_000_000;
/// Salts the sequence of stack samples.
const SAMPLES: &str = "samples";

/// How a file ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The session is over, from this moment on.
    Ended(u64, End),
    /// The next packet would not fit below the cap.
    ByteCap,
    /// It cannot be written.
    Io(io::Error),
}

/// See the module.
pub(crate) struct Recording {
    /// Place of the session's slot in the rings; `None`: of no session, but a
    /// dump of what was kept.
    pub(crate) slot: Option<usize>,
    facts: SlotFacts,
    encoder: Encoder,
    file: TraceFile,
    switches: Switches,
    /// Switches of the slot that have been looked at.
    switches_seen: u64,
    /// The newest of them.
    newest_switch: Option<Switch>,
    /// When `switches` change next.
    next_change_ns: u64,
    is_on: bool,
    /// It was on since the last [`Recording::flush`].
    was_on: bool,
    /// Where it went off last.
    off_ns: u64,
    /// Deadlines beyond do not count.
    last_deadline_ns: u64,
    drops: Drops,
    /// See [`SessionStatus::late_records`](crate::SessionStatus::late_records).
    pub(crate) late_records: u64,
    /// What of it is in the file.
    in_file: Progress,
    pub(crate) outcome: Option<Outcome>,
    /// Its stack samples, if it shows any.
    sampled: Option<Sampled>,
}

/// Records lost in rings.
#[derive(Debug)]
struct Drops {
    /// Of all sessions and times, as of the last look.
    seen: u64,
    /// While this session was on.
    own: u64,
    /// Lost ones, the encoder's included, that the file tells of.
    told: u64,
}

impl Recording {
    /// Begins a file: says in it what the process is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn begin(
        (slot, facts): (usize, SlotFacts),
        process: Identity,
        rings: usize,
        who: (&str, &Thread),
        about: &[(String, String)],
        file: TraceFile,
    ) -> io::Result<Recording> {
        let encoder = encoder(&facts, process, PROCESS, rings);
        Recording::of_whole(Some(slot), facts, encoder, who, about, file)
    }

    /// Begins a file of what was kept, from one moment to another one, or to
    /// the last that there is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn dump(
        (facts, from_ns, to_ns): (SlotFacts, u64, Option<u64>),
        process: Identity,
        rings: usize,
        who: (&str, &Thread),
        about: &[(String, String)],
        file: TraceFile,
    ) -> io::Result<Recording> {
        let encoder = encoder(&facts, process, DUMP, rings);
        let mut dump = Recording::of_whole(None, facts, encoder, who, about, file)?;
        let on = Switch {
            at_ns: from_ns,
            on: true,
        };
        dump.switches.push(on, 0);
        if let Some(to_ns) = to_ns {
            dump.switches.set_end(to_ns, End::Ordered, from_ns);
        }
        dump.next_change_ns = dump.switches.next_ns();
        Ok(dump)
    }

    fn of_whole(
        slot: Option<usize>,
        mut facts: SlotFacts,
        mut encoder: Encoder,
        (role, writer): (&str, &Thread),
        about: &[(String, String)],
        mut file: TraceFile,
    ) -> io::Result<Recording> {
        encoder.open_process(role, writer, about);
        file.append(encoder.out.packets())?;
        encoder.out.clear();
        facts.begun_len = file.len();
        let switches = Switches::new(None);
        Ok(Recording::new(slot, facts, encoder, file, switches, 0))
    }

    /// Goes on with the file of a process that died, in `dir`. What is open in
    /// it `requests` learn.
    ///
    /// # Errors
    /// When the file is gone, or cannot be written or understood.
    pub(crate) fn resume(
        rings: &Rings,
        slot: usize,
        facts: SlotFacts,
        dir: &Path,
        requests: &mut RequestTracks,
    ) -> io::Result<Recording> {
        let committed = rings.committed_session(slot, facts.number);
        let committed = committed.unwrap_or(CommittedSession {
            file_len: facts.begun_len,
            ..CommittedSession::default()
        });
        let path = dir.join(&facts.file_name);
        let (file, bytes) = TraceFile::reopen(path, committed.file_len)?;
        let replay = Replay::read(&bytes).map_err(io::Error::other)?;
        drop(bytes);
        for (&uuid, open) in &replay.requests {
            requests.learn(uuid, open);
        }
        let mut encoder = encoder(&facts, rings.identity(), SALVAGE, rings.count());
        encoder.resume(replay);
        let tid = rings
            .header()
            .writer_tid
            .load(std::sync::atomic::Ordering::Relaxed);
        encoder.open_own(&Thread::writer(tid));
        let on_since = Some(committed.on_since).filter(|&ns| ns != 0);
        let switches = Switches::new(on_since);
        let seen = committed.switches;
        let slot = Some(slot);
        Ok(Recording::new(slot, facts, encoder, file, switches, seen))
    }

    fn new(
        slot: Option<usize>,
        facts: SlotFacts,
        mut encoder: Encoder,
        file: TraceFile,
        switches: Switches,
        switches_seen: u64,
    ) -> Recording {
        let is_on = switches.on_since().is_some();
        encoder.progress.is_on = is_on;
        let mut recording = Recording {
            slot,
            drops: Drops {
                seen: facts.drops_before,
                own: 0,
                told: 0,
            },
            facts,
            encoder,
            file,
            switches,
            switches_seen,
            newest_switch: None,
            next_change_ns: u64::MAX,
            is_on,
            was_on: is_on,
            off_ns: 0,
            last_deadline_ns: u64::MAX,
            late_records: 0,
            in_file: Progress::default(),
            outcome: None,
            sampled: None,
        };
        recording.remember_file();
        recording
    }

    pub(crate) fn slot<'r>(&self, rings: &'r Rings) -> Option<&'r SessionSlot> {
        self.slot.map(|slot| &rings.header().sessions[slot])
    }

    pub(crate) fn facts(&self) -> &SlotFacts {
        &self.facts
    }

    pub(crate) fn file(&self) -> &TraceFile {
        &self.file
    }

    /// Lost records count from here on.
    pub(crate) fn set_drops_before(&mut self, drops: u64) {
        self.drops.seen = drops;
        self.facts.drops_before = drops;
    }

    /// Stack samples are shown too.
    pub(crate) fn show_samples(&mut self, process: &Identity) {
        let sequence = process.sequence(self.facts.number, SAMPLES, 0);
        let encoder = SampleEncoder::new(process.pid, sequence);
        self.sampled = Some(Sampled::new(encoder));
    }

    /// Takes the stack samples that are its own; all up to `upto_ns` have come
    /// but for those that were `missed`.
    pub(crate) fn take_samples(&mut self, samples: &[WaitingSample], missed: Missed, upto_ns: u64) {
        let Some(sampled) = &mut self.sampled else {
            return;
        };
        sampled.passed(upto_ns, missed);
        let mut fits = true;
        for sample in samples {
            if matches!(self.outcome, Some(Outcome::ByteCap | Outcome::Io(_))) || !fits {
                break;
            }
            let Some(packets) = sampled.packets(sample) else {
                continue;
            };
            fits = (self.encoder.out.len() + packets.len()) as u64 <= self.encoder.room;
            if fits {
                self.encoder.out.extend(packets);
                self.encoder.progress.events += 1;
                let last_ns = &mut self.encoder.progress.last_ns;
                *last_ns = sample.time_ns.max(*last_ns);
            }
        }
        if !fits {
            self.stop(Outcome::ByteCap);
        }
    }

    /// Its end is known, and all that belongs before it has come.
    pub(crate) fn is_over(&self) -> bool {
        match self.outcome {
            None => false,
            Some(Outcome::Ended(ns, _)) => !self.awaits_samples(ns),
            Some(_) => true,
        }
    }

    /// For what comes of the sampler; not for ever, should it hang.
    fn awaits_samples(&self, ns: u64) -> bool {
        let sampled = self.sampled.as_ref();
        let may_come = sampled.is_some_and(|sampled| sampled.awaits(ns));
        may_come && boottime_ns() < ns.saturating_add(SAMPLER_PATIENCE_NS)
    }

    /// Switches of the slot that have been looked at.
    pub(crate) fn switches_seen(&self) -> u64 {
        self.switches_seen
    }

    /// Records encoded.
    pub(crate) fn events(&self) -> u64 {
        self.encoder.progress.events
    }

    /// Records lost while it was on.
    pub(crate) fn dropped(&self) -> u64 {
        self.drops.own + self.encoder.dropped
    }

    /// What its stack samples lack.
    pub(crate) fn missed(&self) -> Missed {
        let sampled = self.sampled.as_ref();
        sampled.map_or(Missed::default(), |sampled| sampled.missed)
    }

    /// The process died, and was alive then: not earlier ends its file, and a
    /// deadline that comes later it did not see.
    pub(crate) fn alive_at(&mut self, ns: u64) {
        self.encoder.progress.last_ns = ns;
        self.in_file = self.encoder.progress;
        self.last_deadline_ns = ns;
    }

    /// Learns of switches and ends that the slot was told since the last look.
    /// Everything up to `decided_ns` has been selected; `since` counts the
    /// records that came by from a moment on.
    pub(crate) fn look(&mut self, rings: &Rings, decided_ns: u64, since: impl Fn(u64) -> u64) {
        let Some(slot) = self.slot(rings) else {
            return;
        };
        for switch in slot.switches(self.switches_seen) {
            self.switches_seen += 1;
            let changes = switch.on != self.newest_switch.is_some_and(|newest| newest.on);
            if changes && switch.at_ns < decided_ns {
                self.late_records += since(switch.at_ns);
            }
            self.newest_switch = Some(switch);
            self.switches.push(switch, decided_ns);
        }
        let [ordered, deadline] = slot.ends();
        let deadline = deadline.filter(|&ns| ns <= self.last_deadline_ns);
        for (at_ns, end) in [(ordered, End::Ordered), (deadline, End::Duration)] {
            let Some(at_ns) = at_ns else { continue };
            if self.switches.set_end(at_ns, end, decided_ns) && self.is_on && at_ns < decided_ns {
                self.late_records += since(at_ns);
            }
        }
        self.next_change_ns = self.switches.next_ns();
    }

    /// When something changes next.
    #[inline]
    pub(crate) fn next_change_ns(&self) -> u64 {
        self.next_change_ns
    }

    /// Lets the changes come that are due at a moment.
    pub(crate) fn advance(
        &mut self,
        upto_ns: u64,
        requests: &RequestTracks,
        counters: &[(Event, u64)],
    ) {
        while self.outcome.is_none()
            && let Some(change) = self.switches.next(upto_ns)
        {
            let fits = match change {
                Change::On(ns) => {
                    if let Some(sampled) = &mut self.sampled {
                        sampled.switch_on(ns);
                    }
                    self.encoder.switch_on(ns, requests, counters)
                }
                Change::Off(ns) => {
                    if let Some(sampled) = &mut self.sampled {
                        sampled.switch_off(ns);
                    }
                    self.off_ns = ns;
                    self.encoder.switch_off(ns)
                }
                Change::End(ns, end) => {
                    self.outcome = Some(Outcome::Ended(ns, end));
                    true
                }
            };
            self.is_on = matches!(change, Change::On(_));
            self.was_on |= self.is_on;
            if !fits {
                self.stop(Outcome::ByteCap);
            }
        }
        self.next_change_ns = match self.outcome {
            None => self.switches.next_ns(),
            Some(_) => u64::MAX,
        };
    }

    fn stop(&mut self, outcome: Outcome) {
        self.is_on = false;
        self.next_change_ns = u64::MAX;
        self.outcome = Some(outcome);
    }

    /// Encodes a record of the moment `ns`, if it is the session's. `true`: so
    /// much is encoded that it should be written.
    #[inline]
    pub(crate) fn take(
        &mut self,
        record: &Record<'_>,
        request: Option<(u64, Step)>,
        requests: &RequestTracks,
        thread: impl Fn() -> Thread,
    ) -> bool {
        let &Record { ring, entry, ns } = record;
        if !self.is_on {
            // It was published so late that its interval had been left.
            self.late_records += u64::from(ns < self.off_ns && entry.head().kind != Kind::Text);
            return false;
        }
        let head = entry.head();
        if head.event.detail() as u8 > self.facts.detail
            || self.facts.marked_only
                && request.is_some()
                && !RequestTrack::is_marked(entry.trace_key())
        {
            return false;
        }
        let on_since = self.switches.on_since().unwrap_or(0);
        // Of a request all is known that is under way, so one is not left out
        // whose record was published after the session went on.
        if ns < on_since && request.is_none() {
            return false;
        }
        if !self.encoder.is_open(ring) {
            self.encoder.open(ring, &thread());
        }
        let ns = ns.max(on_since);
        self.encoder.encode(ring, &entry, ns, request, requests);
        if self.encoder.is_full() {
            self.stop(Outcome::ByteCap);
        }
        self.encoder.out.len() >= CHUNK
    }

    /// The ring's thread has ended.
    pub(crate) fn close(&mut self, ring: usize) {
        self.encoder.close(ring);
    }

    /// Writes what is encoded; `dropped` records were lost in all rings so far.
    pub(crate) fn flush(&mut self, dropped: u64) {
        let new = dropped.saturating_sub(self.drops.seen);
        self.drops.seen = dropped;
        if std::mem::replace(&mut self.was_on, self.is_on) {
            self.drops.own += new;
        }
        if let Some(Outcome::Io(_)) = self.outcome {
            return;
        }
        let dropped = self.dropped();
        if dropped > self.drops.told {
            self.drops.told = dropped;
            // Not now: for a salvager, that is after the process's end.
            self.encoder
                .tell_dropped(dropped, self.encoder.progress.last_ns);
        }
        self.write();
    }

    /// As [`Recording::flush`], of a file that tells of nothing more: says so.
    pub(crate) fn finish(&mut self, dropped: u64) {
        self.flush(dropped);
        let last_ns = self.encoder.progress.last_ns;
        let (reason, ns) = match self.outcome {
            None | Some(Outcome::Io(_)) => return,
            Some(Outcome::ByteCap) => (EndReason::ByteCap, last_ns),
            Some(Outcome::Ended(ns, End::Ordered)) => (EndReason::Finished, last_ns.max(ns - 1)),
            Some(Outcome::Ended(ns, End::Duration)) => (EndReason::Duration, last_ns.max(ns - 1)),
        };
        self.tell_end(reason, ns);
        self.write();
    }

    /// Says that the process has died; the file tells of nothing more.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn finish_dead(&mut self, dropped: u64) -> io::Result<()> {
        if self.outcome.is_none() {
            self.flush(dropped);
            self.tell_end(EndReason::ProcessDied, self.encoder.progress.last_ns);
            self.write();
        } else {
            self.finish(dropped);
        }
        match self.outcome.take() {
            Some(Outcome::Io(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn tell_end(&mut self, reason: EndReason, ns: u64) {
        let lost = (self.dropped(), self.missed());
        self.encoder.tell_end(reason, lost, ns);
    }

    fn write(&mut self) {
        let written = self.file.append(self.encoder.out.packets());
        self.encoder.out.clear();
        match written {
            Ok(()) => self.remember_file(),
            Err(error) => {
                self.end_at_last_write();
                self.stop(Outcome::Io(error));
            }
        }
    }

    fn remember_file(&mut self) {
        self.in_file = self.encoder.progress;
        let cap = self.facts.max_bytes.saturating_sub(CAP_RESERVE);
        self.encoder.room = cap.saturating_sub(self.file.len());
    }

    /// Says that what was encoded since the last write could not be written.
    /// Where a disk is full, there mostly is room for this: what the failed
    /// write had begun with was given back, and it is small.
    fn end_at_last_write(&mut self) {
        self.encoder.progress = self.in_file;
        self.tell_end(EndReason::WriteFailed, self.in_file.last_ns);
        // The first error is the one to tell; the file is whole in any case.
        let _ = self.file.append(self.encoder.out.packets());
        self.encoder.out.clear();
    }

    /// What a commit says of it.
    pub(crate) fn committed(&self) -> CommittedSession {
        CommittedSession {
            number: self.facts.number,
            file_len: self.file.len(),
            switches: self.switches_seen - self.switches.num_pending(),
            on_since: self.switches.on_since().unwrap_or(0),
        }
    }

    /// # Errors
    /// The first invariant that does not hold, in words.
    #[cfg(test)]
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        if self.file.len() > self.facts.max_bytes {
            return Err(format!("{} bytes, beyond the cap", self.file.len()));
        }
        self.switches.check_integrity()
    }
}

fn encoder(facts: &SlotFacts, process: Identity, writer: &'static str, rings: usize) -> Encoder {
    let of = FileOf {
        process,
        session: facts.number,
        writer,
        marked_only: facts.marked_only,
    };
    Encoder::new(of, rings)
}
