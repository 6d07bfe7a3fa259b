//! What every trace file says of itself, beside the facts of the run.

use crate::clock::RawClock;
use crate::identity::Identity;
use crate::{Detail, SessionName, SessionSpec};

/// Of a session's file.
pub(crate) fn of_session(
    spec: &SessionSpec,
    role: &str,
    process: Identity,
    clock: RawClock,
) -> Vec<(String, String)> {
    let mut about = own(
        &spec.name,
        role,
        process,
        clock,
        spec.max_bytes,
        spec.detail,
    );
    if let Some(duration) = spec.duration {
        about.push(("duration_ms".to_owned(), duration.as_millis().to_string()));
    }
    if spec.marked_only {
        about.push(("requests".to_owned(), "marked".to_owned()));
    }
    about
}

/// Of any file.
pub(crate) fn own(
    session: &SessionName,
    role: &str,
    process: Identity,
    clock: RawClock,
    max_bytes: u64,
    detail: Detail,
) -> Vec<(String, String)> {
    let own = [
        ("session", session.to_string()),
        ("role", role.to_owned()),
        ("run", format!("{:016x}", process.run)),
        ("pid", process.pid.to_string()),
        ("recording_clock", format!("{clock:?}").to_lowercase()),
        ("max_bytes", max_bytes.to_string()),
        ("detail", (detail as u8).to_string()),
    ];
    own.map(|(key, value)| (key.to_owned(), value)).to_vec()
}
