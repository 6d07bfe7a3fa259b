//! Recorder, Perfetto encoding and trace tools.
//!
//! This layer knows events, clocks, files and Perfetto's format. It must not
//! know what a request, a scheduler or a model is beyond their names in the
//! catalogue ([`Event`]), and depends on no other crate of ours.

pub mod check;
mod event;
mod file_name;
mod flow;
pub mod merge;
pub mod proto;
pub mod read;
mod record;
pub mod timeline;

pub use event::{ArgKind, Event, TrackKind};
pub use file_name::{EXTENSION, NotATraceFileName, TraceFileName};
pub use flow::{Flow, FlowKind};
pub use record::{RequestTrack, Slice, counter, instant, slice, slice_with};
