//! What producers call. While nothing records, each call costs one relaxed load.

use crate::{Event, Flow};
use std::marker::PhantomData;

/// An open slice of the current thread's track; dropping it ends the slice.
///
/// Not `Send`, so that none is held over an await: what awaits lives on the
/// request's track ([`RequestTrack`]).
#[must_use = "dropping it ends the slice"]
pub struct Slice {
    not_send: PhantomData<*const ()>,
}

impl Slice {
    /// Ends the slice with the arguments that are known only now: they
    /// continue those given at its begin.
    pub fn end<const N: usize>(self, args: [u64; N]) {
        let _ = args;
    }
}

/// Begins a slice on the current thread's track.
pub fn slice<const N: usize>(event: Event, args: [u64; N]) -> Slice {
    slice_with(event, args, &[])
}

/// Begins a slice on the current thread's track that `flows` go through.
pub fn slice_with<const N: usize>(event: Event, args: [u64; N], flows: &[Flow]) -> Slice {
    let _ = (event, args, flows);
    Slice {
        not_send: PhantomData,
    }
}

/// Marks a moment on the current thread's track.
pub fn instant<const N: usize>(event: Event, args: [u64; N], flows: &[Flow]) {
    let _ = (event, args, flows);
}

/// Sets a counter of this process.
pub fn counter(event: Event, value: u64) {
    let _ = (event, value);
}

/// The track of one request in this process. Any thread may write to it; the
/// caller sees to it that slices on it nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestTrack {
    trace_key: u64,
}

impl RequestTrack {
    /// The track of the request with this key.
    pub fn new(trace_key: u64) -> RequestTrack {
        RequestTrack { trace_key }
    }

    /// Puts texts onto the track, once: the request's id, and whatever else
    /// names it (`traceparent`). Longer ones are cut at 128 bytes.
    pub fn describe(self, texts: &[(&'static str, &str)]) {
        let _ = (self.trace_key, texts);
    }

    /// Begins a slice.
    pub fn begin<const N: usize>(self, event: Event, args: [u64; N], flows: &[Flow]) {
        let _ = (event, args, flows);
    }

    /// Ends the innermost open slice, which must be `event`.
    pub fn end<const N: usize>(self, event: Event, args: [u64; N], flows: &[Flow]) {
        let _ = (event, args, flows);
    }

    /// Marks a moment.
    pub fn instant<const N: usize>(self, event: Event, args: [u64; N], flows: &[Flow]) {
        let _ = (event, args, flows);
    }
}
