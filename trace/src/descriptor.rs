//! What tracks are, in Perfetto's words.

use crate::Event;
use crate::encoder::Thread;
use crate::hash::{Domain, hash};
use crate::identity::Identity;
use crate::proto::counter_descriptor::Unit;
use crate::proto::trace_attributes::{Attribute, attribute};
use crate::proto::{
    ChildTracksOrdering, CounterDescriptor, ProcessDescriptor, ProcessOrdering, ThreadDescriptor,
    ThreadOrdering, TraceAttributes, TraceUuid, TrackDescriptor,
};

/// The root of all tracks: processes and threads are ordered by rank. The same
/// in every file.
pub(crate) fn root() -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(0),
        process_ordering: Some(ProcessOrdering::Explicit as i32),
        thread_ordering: Some(ThreadOrdering::Explicit as i32),
        ..TrackDescriptor::default()
    }
}

/// A process of the server: in the order in which a request meets them.
pub(crate) fn process(identity: &Identity, role: &str) -> TrackDescriptor {
    let rank = match role.split_once('-') {
        Some((_, rank)) => 2 + rank.parse().unwrap_or(0),
        None if role == "core" => 1,
        None => 0,
    };
    TrackDescriptor {
        uuid: Some(identity.process()),
        process: Some(ProcessDescriptor {
            pid: Some(identity.pid as i32),
            process_name: Some(format!("nano-serve {role}")),
            ..ProcessDescriptor::default()
        }),
        child_ordering: Some(ChildTracksOrdering::Explicit as i32),
        sibling_order_rank: Some(rank),
        ..TrackDescriptor::default()
    }
}

/// A thread: in the order in which they first recorded.
pub(crate) fn thread(identity: &Identity, thread: &Thread) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(identity.thread(thread.tid)),
        parent_uuid: Some(identity.process()),
        thread: Some(ThreadDescriptor {
            pid: Some(identity.pid as i32),
            tid: Some(i64::from(thread.tid)),
            thread_name: Some(thread.name.clone()),
        }),
        sibling_order_rank: Some(i32::try_from(thread.claim).unwrap_or(i32::MAX)),
        ..TrackDescriptor::default()
    }
}

/// A request's track. All of a process have one name and one parent, so that
/// the viewer packs those that do not overlap into lanes.
pub(crate) fn request(identity: &Identity, uuid: u64) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(uuid),
        parent_uuid: Some(identity.process()),
        name: Some("request".to_owned()),
        sibling_order_rank: Some(0),
        ..TrackDescriptor::default()
    }
}

/// A counter of the process.
pub(crate) fn counter(identity: &Identity, event: Event) -> TrackDescriptor {
    let unit = match event {
        Event::ResidentBytes => Unit::SizeBytes,
        _ => Unit::Count,
    };
    TrackDescriptor {
        uuid: Some(identity.counter(event)),
        parent_uuid: Some(identity.process()),
        name: Some(event.name().to_owned()),
        counter: Some(CounterDescriptor {
            unit: Some(unit as i32),
            ..CounterDescriptor::default()
        }),
        sibling_order_rank: Some(1 + event as i32),
        ..TrackDescriptor::default()
    }
}

/// Identity of a run's traces: the same in every file of the run.
pub(crate) fn trace_uuid(identity: &Identity) -> TraceUuid {
    TraceUuid {
        msb: Some(hash(Domain::Trace, &[identity.run]) as i64),
        lsb: Some(identity.run as i64),
    }
}

/// Facts of the run.
pub(crate) fn attributes(facts: &[(String, String)]) -> TraceAttributes {
    let attribute = |(key, value): &(String, String)| Attribute {
        key: Some(key.clone()),
        value: Some(attribute::Value::String(value.clone())),
    };
    TraceAttributes {
        attribute: facts.iter().map(attribute).collect(),
    }
}
