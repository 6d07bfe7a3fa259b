//! What a process that died left in its rings goes into its files.

use crate::drain::{Drain, PassPlan};
use crate::rings::{MAX_SESSIONS, Rings};
use std::io;
use std::path::{Path, PathBuf};

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

/// A file that could not be completed; it is cut to whole packets if that much
/// could be done.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", file.display())]
pub struct SalvageError {
    /// Which.
    pub file: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl Rings {
    /// Completes the trace files of the process that recorded into these rings
    /// and has died: cuts each file in `dir` to what was whole, and appends
    /// what was still in the rings. Ends with what was recorded last. None are
    /// left to complete where no session recorded or was being written. What
    /// was kept beyond sessions is gone then: [`Rings::dump`] comes before.
    ///
    /// The process must be gone, not only about to go.
    pub fn salvage(&self, dir: &Path) -> Vec<Result<Salvaged, SalvageError>> {
        let mut drain = Drain::new(self, None);
        let mut results = Vec::new();
        for slot in 0..MAX_SESSIONS {
            let Some(facts) = self.header().sessions[slot].facts() else {
                continue;
            };
            let file = dir.join(&facts.file_name);
            if let Err(source) = drain.resume(slot, facts, dir) {
                results.push(Err(SalvageError { file, source }));
                self.header().sessions[slot].free();
            }
        }
        if drain.recordings.is_empty() {
            return results;
        }
        while drain.pass(|_| PassPlan::default()) {}
        let dropped = self.drops();
        for mut recording in drain.recordings {
            let finished = recording.finish_dead(dropped);
            if let Some(slot) = recording.slot(self) {
                slot.free();
            }
            let file = recording.file().path().to_owned();
            results.push(match finished {
                Ok(()) => Ok(Salvaged {
                    file,
                    events: recording.events(),
                    bytes: recording.file().len(),
                }),
                Err(source) => Err(SalvageError { file, source }),
            });
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Event;
    use crate::clock::{RawClock, clock_ns};
    use crate::encoder::Thread;
    use crate::entry::Kind;
    use crate::identity::Identity;
    use crate::producer::{Home, Producer};
    use crate::proto::trace_packet::Data;
    use crate::proto::track_event::Type;
    use crate::read::{Source, Tail};
    use crate::recording::Recording;
    use crate::rings::SlotFacts;
    use crate::switches::Switch;
    use crate::trace_file::TraceFile;
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
        let clock = RawClock::detect();
        rings.set_clock(clock);
        rings.set_identity(&identity);
        let facts = SlotFacts {
            number: 1,
            file_name: NAME.to_owned(),
            max_bytes: 1 << 30,
            begun_len: 0,
            drops_before: 0,
            marked_only: false,
            detail: 1,
        };
        let file = TraceFile::create(dir.path().join(NAME)).unwrap();
        let who = ("core", &Thread::writer(18));
        let recording =
            Recording::begin((0, facts), identity, rings.count(), who, &[], file).unwrap();
        let mut drain = Drain::new(rings, None);
        let slot = &rings.header().sessions[0];
        slot.fill(recording.facts());
        slot.push_switch(Switch { at_ns: 1, on: true }, 0);
        drain.recordings.push(recording);
        drain.pass(|_| PassPlan::default());
        let home = Full(rings);
        let producers: Vec<Producer> = (0..rings.count()).map(|_| Producer::new()).collect();
        while drain.recordings[0].file().len() < 64 << 20 {
            fill(&home, &producers, clock);
            drain.pass(|_| PassPlan::default());
        }
        fill(&home, &producers, clock);
        drain.recordings[0].check_integrity().unwrap();
        let written = drain.recordings[0].events();
        drop(drain);

        let cpu = || clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) / 1_000_000;
        let (begun, cpu_before) = (std::time::Instant::now(), cpu());
        let salvaged = rings.salvage(dir.path()).remove(0).unwrap();
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
        // Two more say when the session was on, and one how the trace ends.
        assert_eq!(shown, written + events + 3);
    }
}
