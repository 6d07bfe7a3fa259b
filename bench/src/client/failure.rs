//! How a request can fail.

use serde::{Serialize, Serializer};
use std::fmt;

/// What went wrong; its name is what failures are counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// No connection.
    Connect,
    /// No connection in time.
    ConnectTimeout,
    /// The connection ended before the head of an answer.
    NoResponse,
    /// A status other than 200.
    Http(u16),
    /// An event that is not of the protocol.
    MalformedSse,
    /// A whole answer that is not of the protocol.
    MalformedJson,
    /// The answer ended before it was whole.
    CutStream,
    /// `{"error": ...}` in an answer that had begun well.
    ErrorObject,
    /// Silence for too long.
    Hang,
    /// The whole request took too long.
    Timeout,
    /// The run was interrupted; no failure of the server.
    Aborted,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureKind::Http(status) => write!(f, "http_{status}"),
            FailureKind::Connect => f.write_str("connect"),
            FailureKind::ConnectTimeout => f.write_str("connect_timeout"),
            FailureKind::NoResponse => f.write_str("no_response"),
            FailureKind::MalformedSse => f.write_str("malformed_sse"),
            FailureKind::MalformedJson => f.write_str("malformed_json"),
            FailureKind::CutStream => f.write_str("cut_stream"),
            FailureKind::ErrorObject => f.write_str("error_object"),
            FailureKind::Hang => f.write_str("hang"),
            FailureKind::Timeout => f.write_str("timeout"),
            FailureKind::Aborted => f.write_str("aborted"),
        }
    }
}

impl Serialize for FailureKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A failure, with what is known about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// What it is counted under.
    pub kind: FailureKind,
    /// In words; at most 512 bytes.
    pub message: String,
}

/// Bytes of a message.
const MAX_MESSAGE: usize = 512;

impl Failure {
    /// A failure in these words.
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Failure {
        let mut message = message.to_string();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Failure { kind, message }
    }

    pub(super) fn aborted() -> Failure {
        Failure::new(FailureKind::Aborted, "the run was interrupted")
    }
}
