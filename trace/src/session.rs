//! What a session is, and how it stands.

use crate::{SampleRate, SessionName};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// One recording: an interval, a filter and bounds. Each process selects what
/// belongs to it, and writes it to a file of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// What it is called; no two of a process are called alike.
    pub name: SessionName,
    /// Its file never grows beyond; at least [`SessionSpec::MIN_BYTES`].
    pub max_bytes: u64,
    /// It ends by itself so long after it recorded first.
    pub duration: Option<Duration>,
    /// When it records.
    pub begin: Begin,
    /// Of requests, show only those that are marked
    /// ([`RequestTrack::MARKED`](crate::RequestTrack::MARKED)).
    pub marked_only: bool,
    /// How much it shows.
    pub detail: Detail,
    /// How often threads' stacks are sampled; `None`: it shows no samples. Of
    /// sessions at one time the highest rate counts.
    pub sample_rate: Option<SampleRate>,
}

impl SessionSpec {
    /// The smallest cap.
    pub const MIN_BYTES: u64 = 128 << 10;

    /// A session of all requests and steps, from now on until its cap.
    pub fn new(name: SessionName, max_bytes: u64) -> SessionSpec {
        SessionSpec {
            name,
            max_bytes,
            duration: None,
            begin: Begin::Now,
            marked_only: false,
            detail: Detail::Steps,
            sample_rate: None,
        }
    }
}

/// When a session records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Begin {
    /// From now on.
    Now,
    /// From this moment on, in nanoseconds of `CLOCK_BOOTTIME`: the same in all
    /// processes, and after an earlier session's end.
    At(u64),
    /// Between stamps ([`stamp_session`](crate::stamp_session)), which may be
    /// known a tenth of a second late.
    Stamped,
}

/// How much a session shows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Detail {
    /// Requests, steps and their parts.
    #[default]
    Steps = 1,
    /// Layers and ops too.
    Ops = 2,
}

impl TryFrom<u8> for Detail {
    type Error = u8;

    fn try_from(number: u8) -> Result<Detail, u8> {
        match number {
            1 => Ok(Detail::Steps),
            2 => Ok(Detail::Ops),
            other => Err(other),
        }
    }
}

/// How far a session is in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionState {
    /// Its file is open; it has not recorded yet.
    Armed,
    /// It records.
    Recording,
    /// It has recorded and may again.
    Paused,
    /// It records no more; its file is being finished.
    Flushing,
    /// It ended as it was told to; the file is whole.
    Finished,
    /// It reached its cap of bytes; the file is whole.
    Capped,
    /// Its duration is over; the file is whole.
    TimedOut,
    /// The file could not be made or written any further, for this reason; it
    /// holds whole packets until then.
    Failed(String),
}

impl SessionState {
    /// Nothing more will be recorded.
    pub fn has_ended(&self) -> bool {
        !matches!(
            self,
            SessionState::Armed | SessionState::Recording | SessionState::Paused
        )
    }

    /// Nothing more will be written.
    pub fn is_over(&self) -> bool {
        self.has_ended() && *self != SessionState::Flushing
    }
}

/// How a session stands in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Which.
    pub name: SessionName,
    /// Where it goes.
    pub file: PathBuf,
    /// How far it is.
    pub state: SessionState,
    /// The file's length.
    pub bytes: u64,
    /// Records in the file.
    pub events: u64,
    /// Records that were lost while it recorded: they found no room in their
    /// ring, or on a request's track.
    pub drops: u64,
    /// Records near a stamp or an end that was known too late, or that were
    /// themselves too late, and stamps that found no room: at most so many
    /// records of the file should not be in it, or are lacking.
    pub late_records: u64,
    /// Its stack samples: how often they are taken at least (another session may
    /// want more), or why there are none;
    /// `None`: it shows none.
    pub samples: Option<Result<SampleRate, String>>,
    /// Stack samples that were lost while it recorded: they found no room on
    /// their way to the file.
    pub lost_samples: u64,
    /// Threads that could not be sampled for a while, or not at all.
    pub unsampled_threads: u64,
    /// When it was begun.
    pub since: SystemTime,
}

/// Why a session cannot be begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SessionError {
    /// No directory was configured, or the process is at its end.
    #[error("profiling is off in this process")]
    Off,
    /// The name is that of another session of this process.
    #[error("session {0} is there already")]
    Taken(SessionName),
    /// Too many record or are being written.
    #[error("{0} sessions are recording or being written; wait until one is finished")]
    TooMany(usize),
    /// The cap is too small for any trace.
    #[error("a cap of {0} bytes is less than {min}", min = SessionSpec::MIN_BYTES)]
    Cap(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_survive_the_way_there_and_back() {
        let spec = SessionSpec {
            name: "a-1".parse().unwrap(),
            max_bytes: SessionSpec::MIN_BYTES,
            duration: Some(Duration::from_millis(1500)),
            begin: Begin::At(7),
            marked_only: true,
            detail: Detail::Ops,
            sample_rate: Some(SampleRate::DEFAULT),
        };
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<SessionSpec>(&json).unwrap(), spec);
        let status = SessionStatus {
            name: spec.name,
            file: "/tmp/x".into(),
            state: SessionState::Failed("why".to_owned()),
            bytes: 1,
            events: 2,
            drops: 3,
            late_records: 4,
            samples: Some(Err("why".to_owned())),
            lost_samples: 5,
            unsampled_threads: 6,
            since: SystemTime::UNIX_EPOCH,
        };
        let json = serde_json::to_string(&status).unwrap();
        assert_eq!(
            serde_json::from_str::<SessionStatus>(&json).unwrap(),
            status
        );
    }

    #[test]
    fn details_have_numbers() {
        assert_eq!(Detail::try_from(1), Ok(Detail::Steps));
        assert_eq!(Detail::try_from(2), Ok(Detail::Ops));
        assert_eq!([0, 3].map(Detail::try_from), [Err(0), Err(3)]);
    }
}
