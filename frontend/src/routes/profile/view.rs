//! How the profiler stands, as JSON.

use jiff::Timestamp;
use nano_ipc::flight::{DumpMade, FlightState};
use nano_ipc::profile::{Part, ProfilePhase, ProfileState, SessionOfProcess, SessionOfServer};
use nano_trace::SessionState;
use serde_json::{Value, json};
use std::time::SystemTime;

/// What a command is about: the newest session.
pub(super) fn newest(state: &ProfileState) -> Value {
    let newest = state.sessions.first();
    let mut files: Vec<&str> = Vec::new();
    for process in newest.iter().flat_map(|session| &session.processes) {
        if let Part::Told(status) = &process.part
            && let Some(file) = status.file.to_str()
            && !files.contains(&file)
        {
            files.push(file);
        }
    }
    json!({
        "state": phase(state.phase),
        "session": newest.map(|session| session.name.as_str()),
        "processes": newest.map_or_else(Vec::new, processes),
        "files": files,
        "notes": state.notes,
    })
}

/// The newest session, and earlier ones that processes still know.
pub(super) fn all(state: &ProfileState) -> Value {
    let mut view = newest(state);
    let earlier = state.sessions.iter().skip(1).map(|session| {
        json!({
            "session": session.name.as_str(),
            "processes": processes(session),
        })
    });
    view["earlier"] = earlier.collect();
    view["flight"] = state.flight.as_ref().map_or(Value::Null, flight);
    view
}

fn flight(state: &FlightState) -> Value {
    let by_rule = |counts: &[u64]| -> Value {
        let kinds = state.rules.iter().map(|rule| rule.kind);
        let counts = kinds.map(|kind| (kind.name().to_owned(), counts[kind as usize].into()));
        Value::Object(counts.collect())
    };
    json!({
        "seconds": state.keep.as_secs_f64(),
        "rules": state.rules.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "fired": by_rule(&state.counts.fired),
        "suppressed": by_rule(&state.counts.suppressed),
        "dumps": state.dumps.iter().map(dump).collect::<Vec<_>>(),
    })
}

fn dump(dump: &DumpMade) -> Value {
    let mut view = json!({
        "session": dump.session.as_str(),
        "time": time(dump.at),
        "trigger": dump.trigger.name(),
    });
    if let Some(fired) = &dump.fired {
        view["rule"] = fired.rule.to_string().into();
        view["value_ms"] = (fired.value.as_micros() as f64 / 1e3).into();
        if let Some(id) = &fired.request_id {
            view["request_id"] = id.as_str().into();
        }
    }
    view
}

/// As `2026-11-30T17:05:03.123Z`.
fn time(time: SystemTime) -> String {
    // A clock beyond jiff's years is set wrong.
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.3}")
}

fn phase(phase: ProfilePhase) -> &'static str {
    match phase {
        ProfilePhase::Idle => "idle",
        ProfilePhase::Recording => "recording",
        ProfilePhase::Flushing => "flushing",
    }
}

fn processes(session: &SessionOfServer) -> Vec<Value> {
    session.processes.iter().map(process).collect()
}

fn process(process: &SessionOfProcess) -> Value {
    let (state, reason) = match &process.part {
        Part::Told(status) => match &status.state {
            SessionState::Armed => ("armed", None),
            SessionState::Recording => ("recording", None),
            SessionState::Paused => ("paused", None),
            SessionState::Flushing => ("flushing", None),
            SessionState::Finished => ("finished", None),
            SessionState::Capped => ("capped", None),
            SessionState::TimedOut => ("timed out", None),
            SessionState::Failed(reason) => ("failed", Some(reason)),
        },
        Part::Refused(reason) => ("failed", Some(reason)),
        Part::Silent => ("silent", None),
        Part::Gone => ("gone", None),
        Part::None => ("not recorded", None),
    };
    let mut view = json!({
        "process": process.role.to_string(),
        "pid": process.pid,
        "state": state,
    });
    if let Some(reason) = reason {
        view["reason"] = reason.as_str().into();
    }
    if let Part::Told(status) = &process.part {
        view["file"] = status.file.to_string_lossy().into();
        view["bytes"] = status.bytes.into();
        view["events"] = status.events.into();
        view["drops"] = status.drops.into();
        view["late_records"] = status.late_records.into();
        match &status.samples {
            None => {}
            Some(Ok(rate)) => {
                view["sample_hz"] = rate.hz().into();
                view["lost_samples"] = status.lost_samples.into();
                view["unsampled_threads"] = status.unsampled_threads.into();
            }
            Some(Err(reason)) => view["no_samples"] = reason.as_str().into(),
        }
        view["since"] = time(status.since).into();
    }
    view
}
