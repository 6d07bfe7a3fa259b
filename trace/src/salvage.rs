//! What a process that died left in its rings goes into its file.

use crate::drain::{Drain, Stop};
use crate::encoder::{Encoder, EndReason, Thread};
use crate::request_tracks::RequestTracks;
use crate::rings::{Phase, Rings};
use crate::trace_file::TraceFile;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A file that was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// Which.
    pub file: PathBuf,
    /// Records that were added to it.
    pub events: u64,
    /// Its length now.
    pub bytes: u64,
}

impl Rings {
    /// Completes the trace file of the process that recorded into these rings
    /// and has died: cuts the file in `dir` to what was whole, and appends what
    /// was still in the rings. Ends with what was recorded last. `None`: there
    /// is nothing to complete, because the process never opened a file, or
    /// finished it itself.
    ///
    /// The process must be gone, not only about to go.
    ///
    /// # Errors
    /// When the file is gone or cannot be written; it is cut to whole packets
    /// if that much could be done.
    pub fn salvage(&self, dir: &Path) -> io::Result<Option<Salvaged>> {
        if self.phase() != Phase::Recording {
            return Ok(None);
        }
        self.set_phase(Phase::Finished);
        let name = self.file_name().filter(|name| !name.contains('/'));
        let Some(name) = name else {
            return Err(io::Error::other("trace: the rings name no file"));
        };
        let path = dir.join(name);
        let (file, bytes) = TraceFile::reopen(path.clone(), self.committed().0)?;
        let requests = RequestTracks::replay(&bytes).map_err(io::Error::other)?;
        drop(bytes);

        let (identity, max_bytes) = self.identity();
        let encoder = Encoder::new(identity, "salvage", self.count(), requests);
        let mut drain = Drain::new(self, encoder, file, max_bytes);
        let tid = self.header().writer_tid.load(Ordering::Relaxed);
        drain.encoder().open_own(&Thread::writer(tid));
        let stopped = loop {
            match drain.pass() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(stop) => break Err(stop),
            }
        };
        let reason = match stopped {
            Ok(()) => EndReason::ProcessDied,
            Err(Stop::ByteCap) => EndReason::ByteCap,
            Err(Stop::Io(error)) => return Err(error),
        };
        if let Err(Stop::Io(error)) = drain.end(reason, 0) {
            return Err(error);
        }
        Ok(Some(Salvaged {
            file: path,
            events: drain.events(),
            bytes: drain.file().len(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Event;
    use crate::clock::{RawClock, clock_ns};
    use crate::entry::Kind;
    use crate::identity::Identity;
    use crate::producer::{Home, Producer};
    use crate::proto::trace_packet::Data;
    use crate::proto::track_event::Type;
    use crate::read::{Source, Tail};
    use nix::time::ClockId;

    struct Full(&'static Rings);

    impl Home for Full {
        fn rings(&self) -> Option<&'static Rings> {
            Some(self.0)
        }
        fn wake_drainer(&self) {}
    }

    /// Records on all rings in turn until one is full.
    fn fill(home: &Full, producers: &[Producer], clock: RawClock) {
        for round in 0.. {
            for (thread, producer) in (0_u64..).zip(producers) {
                if !producer.begin(home, clock, Event::Forward, [round], &[]) {
                    return;
                }
                if round % 8 == 0 {
                    let (what, key) = ((Kind::RequestInstant, Event::Aborted), Some(thread));
                    producer.record(home, clock, what, key, [], &[]);
                }
                producer.end(home, clock, Event::Forward, 1, []);
            }
        }
    }

    /// Every ring full, with records of all threads in turn, behind a file as
    /// long as the usual cap. Two seconds after a process's death nobody may be
    /// left of a server, the launcher that salvages included.
    #[test]
    fn the_most_that_can_be_left_is_salvaged_in_time() {
        const NAME: &str = "auto.core.0000000000000001-17.pftrace";
        let dir = tempfile::tempdir().unwrap();
        let rings: &'static Rings = Box::leak(Box::new(Rings::create().unwrap()));
        let identity = Identity {
            run: 1,
            pid: 17,
            started_ns: clock_ns(ClockId::CLOCK_BOOTTIME),
        };
        let (clock, cap) = (RawClock::detect(), 1 << 30);
        rings.set_clock(clock);
        rings.set_identity(&identity, cap);
        rings.set_file_name(NAME);
        let file = TraceFile::create(dir.path().join(NAME)).unwrap();
        let encoder = Encoder::new(identity, "process", rings.count(), RequestTracks::default());
        let mut drain = Drain::new(rings, encoder, file, cap);
        drain.anchor();
        let writer = Thread::writer(18);
        drain.encoder().open_process("core", &writer, &[]);
        rings.set_phase(Phase::Recording);
        let home = Full(rings);
        let producers: Vec<Producer> = (0..rings.count()).map(|_| Producer::new()).collect();
        while drain.file().len() < 64 << 20 {
            fill(&home, &producers, clock);
            drain.pass().unwrap();
        }
        fill(&home, &producers, clock);
        let written = drain.events();
        drop(drain);

        let cpu = || clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) / 1_000_000;
        let (begun, cpu_before) = (std::time::Instant::now(), cpu());
        let salvaged = rings.salvage(dir.path()).unwrap().unwrap();
        // Processor time: the machine of the tests may be busy.
        let (wall, cpu) = (begun.elapsed().as_millis(), cpu() - cpu_before);
        let Salvaged {
            events,
            bytes,
            file,
        } = salvaged;
        println!(
            "{events} records salvaged into {bytes} bytes in {wall} ms, {cpu} ms of a processor"
        );
        assert!(events > 1_000_000, "{events}");
        assert!(cpu < 2000, "{cpu} ms");

        let mut packets = Source::File(file).packets().unwrap();
        let mut shown = 0;
        while let Some(packet) = packets.next_packet().unwrap() {
            // Of counters there is only that of dropped records.
            if let Some(Data::TrackEvent(event)) = &packet.content.data {
                shown += u64::from(event.r#type() != Type::Counter);
            }
        }
        assert_eq!(packets.tail(), Some(&Tail::Whole));
        // One more says how the trace ends.
        assert_eq!(shown, written + events + 1);
    }
}
