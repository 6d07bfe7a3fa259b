//! Track descriptors, in file order. Uuids are global over all files.

use super::rule::{Rule, Violations};
use crate::{
    proto::TrackDescriptor,
    timeline::{Position, Track, TrackOf},
};
use std::collections::{BTreeMap, HashMap, btree_map::Entry};

#[derive(Default)]
pub(super) struct Tracks {
    by_uuid: BTreeMap<u64, Described>,
    /// The uuid of a process, and of a thread of a process's uuid.
    by_identity: HashMap<Identity, u64>,
}

struct Described {
    track: Track,
    merge: Option<i32>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Identity {
    /// Containers may reuse a pid, but not at the same start.
    Process {
        pid: i32,
        start: Option<i64>,
    },
    Thread {
        process: u64,
        tid: i64,
    },
}

impl Tracks {
    pub(super) fn describe(
        &mut self,
        descriptor: &TrackDescriptor,
        at: Position,
        out: &mut Violations,
    ) {
        let Some(uuid) = descriptor.uuid else {
            out.add(Rule::UuidUnique, at, || {
                "a track descriptor has no uuid".to_owned()
            });
            return;
        };
        if uuid == 0 {
            // The root of all tracks: it only says how processes are ordered.
            return;
        }
        let track = track(uuid, descriptor, at);
        self.note_identity(&track, at, out);
        let merge = descriptor.sibling_merge_behavior;
        match self.by_uuid.entry(uuid) {
            Entry::Vacant(entry) => {
                entry.insert(Described { track, merge });
            }
            Entry::Occupied(mut entry) => {
                let first = entry.get_mut();
                if let Some(what) = first.conflict(&track, merge) {
                    out.add(Rule::UuidUnique, at, || {
                        format!("track {uuid:#x} was described before with another {what}")
                    });
                } else if !track.name.is_empty() {
                    first.track.name = track.name;
                }
            }
        }
    }

    fn note_identity(&mut self, track: &Track, at: Position, out: &mut Violations) {
        let (identity, what) = match track.of {
            TrackOf::Process { pid, start } => {
                (Identity::Process { pid, start }, format!("process {pid}"))
            }
            TrackOf::Thread { pid, tid } => (
                Identity::Thread {
                    process: track.parent,
                    tid,
                },
                format!("thread {tid} of process {pid}"),
            ),
            _ => return,
        };
        let first = *self.by_identity.entry(identity).or_insert(track.uuid);
        if first != track.uuid {
            out.add(Rule::ProcessUnique, at, || {
                format!(
                    "{what} is track {first:#x} already, and now {:#x}",
                    track.uuid
                )
            });
        }
    }

    pub(super) fn get(&self, uuid: u64) -> Option<&Track> {
        self.by_uuid.get(&uuid).map(|described| &described.track)
    }

    /// What can only be said when all files were read: every track leads up to a process.
    pub(super) fn finish(self, out: &mut Violations) -> BTreeMap<u64, Track> {
        for described in self.by_uuid.values() {
            let track = &described.track;
            if let Err(what) = self.find_process(track) {
                out.add(Rule::ParentDescribed, track.at, || {
                    format!("track {:#x} ({:?}) {what}", track.uuid, track.name)
                });
            }
        }
        self.by_uuid
            .into_iter()
            .map(|(uuid, described)| (uuid, described.track))
            .collect()
    }

    fn find_process(&self, track: &Track) -> Result<(), String> {
        let mut track = track;
        for _ in 0..=self.by_uuid.len() {
            track = match (&track.of, track.parent) {
                (TrackOf::Process { .. }, _) => return Ok(()),
                (_, 0) => return Err("lies below no process".to_owned()),
                (_, parent) => self.get(parent).ok_or_else(|| {
                    format!("lies below track {parent:#x}, which nothing describes")
                })?,
            };
        }
        Err("lies below itself".to_owned())
    }
}

impl Described {
    /// What of the first description another one contradicts.
    fn conflict(&self, other: &Track, merge: Option<i32>) -> Option<&'static str> {
        if self.track.of != other.of {
            Some("process, thread or kind")
        } else if self.track.parent != other.parent {
            Some("parent")
        } else if self.merge != merge {
            Some("merge behaviour")
        } else {
            None
        }
    }
}

fn track(uuid: u64, descriptor: &TrackDescriptor, at: Position) -> Track {
    let name = descriptor.name.clone().unwrap_or_default();
    let (of, name) = if let Some(process) = &descriptor.process {
        let pid = process.pid.unwrap_or(0);
        let start = process.start_timestamp_ns;
        let name = process.process_name.clone().unwrap_or(name);
        (TrackOf::Process { pid, start }, name)
    } else if let Some(thread) = &descriptor.thread {
        let (pid, tid) = (thread.pid.unwrap_or(0), thread.tid.unwrap_or(0));
        let name = thread.thread_name.clone().unwrap_or(name);
        (TrackOf::Thread { pid, tid }, name)
    } else if descriptor.counter.is_some() {
        (TrackOf::Counter, name)
    } else {
        (TrackOf::Events, name)
    };
    Track {
        uuid,
        parent: descriptor.parent_uuid.unwrap_or(0),
        name,
        description: descriptor.description.clone().unwrap_or_default(),
        of,
        at,
    }
}
