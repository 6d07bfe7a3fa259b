//! Recorder, Perfetto encoding and trace tools.
//!
//! This layer knows events, clocks, files and Perfetto's format. It must not
//! know what a request, a scheduler or a model is beyond their names in the
//! catalogue ([`Event`]), and depends on no other crate of ours.

mod about;
pub mod check;
mod clock;
mod descriptor;
mod drain;
mod encoder;
mod entry;
mod event;
mod file_name;
pub mod flame;
mod flight;
mod flow;
mod hash;
mod identity;
mod interning;
#[cfg(test)]
mod live_tests;
pub mod merge;
mod overlap;
mod packet;
mod producer;
pub mod proto;
pub mod read;
mod record;
mod recorder;
mod recording;
mod replay;
mod request_tracks;
mod rings;
mod salvage;
mod sample_rate;
mod sampled;
pub mod sampler;
pub mod selection;
mod session;
mod session_name;
mod sessions;
mod switches;
pub mod symbols;
pub mod timeline;
mod trace_file;
mod walk;
mod writer;

pub use event::{ArgKind, Event, FLIGHT_RULES, TrackKind};
pub use file_name::{EXTENSION, NotATraceFileName, TraceFileName};
pub use flight::DumpSpec;
pub use flow::{Flow, FlowKind};
pub use record::{RequestTrack, Slice, counter, instant, slice, slice_with};
pub use recorder::{
    ProcessTrace, StartError, begin_session, check_integrity, end_session, finish, flush,
    on_session_end, replace_session, sessions, stamp_session, start, wait_whole,
};
pub use rings::{Rings, RingsError};
pub use salvage::{SalvageError, Salvaged};
pub use sample_rate::{NotASampleRate, SampleRate};
pub use session::{Begin, Detail, SessionError, SessionSpec, SessionState, SessionStatus};
pub use session_name::{NotASessionName, SessionName};
