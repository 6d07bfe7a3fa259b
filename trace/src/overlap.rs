//! Files of a process that show the same moments: a dump of the flight recorder
//! and what else was written meanwhile. Both show them on the same tracks, and
//! together they would show them twice.

use crate::TraceFileName;
use crate::merge::{MergeError, at};
use crate::proto::trace_packet::Data;
use crate::read::Source;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The fact that says what asked for a dump; no other file has it.
const DUMPED_BY: &str = "trigger";

/// Refuses such files. Their names tell of which process they are, and only
/// where it has a dump among several is more read than that.
pub(crate) fn refuse(inputs: &[PathBuf]) -> Result<(), MergeError> {
    let mut processes: BTreeMap<(String, u32), Vec<(&Path, String)>> = BTreeMap::new();
    for input in inputs {
        let name = input.file_name().and_then(|name| name.to_str());
        let Some(name) = name.and_then(|name| name.parse::<TraceFileName>().ok()) else {
            continue;
        };
        let of_process = processes.entry((name.run, name.pid)).or_default();
        of_process.push((input.as_path(), name.session));
    }
    for ((run, _), files) in processes {
        if files.len() < 2 || !any_is_dump(&files)? {
            continue;
        }
        let mut intervals = Vec::new();
        for (path, session) in files {
            if let Some((from, to)) = interval(path)? {
                intervals.push((from, to, session));
            }
        }
        // Where any two overlap, one overlaps the next one to begin.
        intervals.sort_unstable();
        for pair in intervals.windows(2) {
            if let [(_, end, first), (begin, _, second)] = pair
                && begin <= end
            {
                return Err(MergeError::Overlap {
                    run,
                    first: first.clone(),
                    second: second.clone(),
                });
            }
        }
    }
    Ok(())
}

fn any_is_dump(files: &[(&Path, String)]) -> io::Result<bool> {
    for (path, _) in files {
        if is_dump(path)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_dump(path: &Path) -> io::Result<bool> {
    let mut packets = Source::File(path.to_owned()).packets()?;
    while let Some(packet) = packets.next_packet().map_err(|e| at(path, e))? {
        match &packet.content.data {
            Some(Data::TraceAttributes(facts)) => {
                let mut keys = facts.attribute.iter().map(|fact| fact.key.as_deref());
                return Ok(keys.any(|key| key == Some(DUMPED_BY)));
            }
            // Facts stand before all events.
            Some(Data::TrackEvent(_)) => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}

/// From when to when a file has events; `None`: it has none.
fn interval(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let mut packets = Source::File(path.to_owned()).packets()?;
    let mut interval = None;
    while let Some(packet) = packets.next_packet().map_err(|e| at(path, e))? {
        if let (Some(Data::TrackEvent(_)), Some(time)) =
            (&packet.content.data, packet.content.timestamp)
        {
            let (from, to) = interval.unwrap_or((time, time));
            interval = Some((time.min(from), time.max(to)));
        }
    }
    Ok(interval)
}
