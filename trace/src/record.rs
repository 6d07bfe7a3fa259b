//! What producers call. While nothing records, each call costs one relaxed load.
//!
//! Invariant: an END is written if and only if its BEGIN was, whatever sessions
//! began and ended in between, so that the slices of every ring nest. Which of
//! them a session shows is decided by who reads the rings.

use crate::clock::RawClock;
use crate::entry::{Kind, TEXT_WORDS, pack_text};
use crate::producer::{Home, Producer};
use crate::recorder;
use crate::rings::Rings;
use crate::{Detail, Event, Flow};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

/// How much is recorded, and on which clock: twice a [`Level`]'s number, plus
/// one on [`RawClock::Tsc`].
static RECORDING: AtomicU32 = AtomicU32::new(0);

/// How much is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Level {
    Nothing = 0,
    /// Tracks of requests, so that it is always known which are under way.
    Requests = 1,
    /// Everything of [`Detail::Steps`].
    Steps = 2,
    /// Everything of [`Detail::Ops`].
    Ops = 3,
}

impl Level {
    #[inline(always)]
    pub(crate) const fn of(detail: Detail) -> Level {
        match detail {
            Detail::Steps => Level::Steps,
            Detail::Ops => Level::Ops,
        }
    }

    /// From now on so much is recorded.
    pub(crate) fn set(self, clock: RawClock) {
        let tsc = u32::from(clock == RawClock::Tsc);
        RECORDING.store((self as u32) << 1 | tsc, Ordering::SeqCst);
    }
}

/// What [`RECORDING`] holds if it is at least this level; else 0.
#[inline(always)]
fn recording(least: Level) -> u32 {
    let recording = RECORDING.load(Ordering::Relaxed);
    if recording >= (least as u32) << 1 {
        recording
    } else {
        0
    }
}

#[inline(always)]
fn clock(recording: u32) -> RawClock {
    if recording & 1 == 1 {
        RawClock::Tsc
    } else {
        RawClock::Boottime
    }
}

thread_local! {
    // Without a destructor, so that reaching it costs an addition.
    static PRODUCER: Producer = const { Producer::new() };
    // Touched at the claim only: its destructor returns the ring.
    static GIVE_BACK: GiveBack = const { GiveBack };
}

/// The calling thread's producer.
#[inline(always)]
fn producer<'a>() -> &'a Producer {
    // A closure with anything in it would pass through memory.
    let producer = PRODUCER.with(std::ptr::from_ref);
    // SAFETY: PRODUCER has no destructor, so it lives until its thread has
    // ended; callers use it at once, and it is not Sync, so no other thread gets it.
    unsafe { &*producer }
}

struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        producer().give_back();
    }
}

struct ThisProcess;

impl Home for ThisProcess {
    fn rings(&self) -> Option<&'static Rings> {
        // While the thread's destructors run, nobody would return the ring.
        GIVE_BACK.try_with(|_| ()).ok()?;
        recorder::rings()
    }

    fn wake_drainer(&self) {
        recorder::wake_writer();
    }
}

/// An open slice of the current thread's track; dropping it ends the slice.
///
/// Not `Send`, so that none is held over an await: what awaits lives on the
/// request's track ([`RequestTrack`]).
#[must_use = "dropping it ends the slice"]
#[derive(Debug)]
pub struct Slice {
    /// What was recording when its BEGIN was written; 0 if none was.
    recording: u32,
    event: Event,
    /// Arguments given at the begin.
    given: u8,
    not_send: PhantomData<*const ()>,
}

impl Slice {
    /// Ends the slice with the arguments that are known only now: they
    /// continue those given at its begin.
    #[inline]
    pub fn end<const N: usize>(self, args: [u64; N]) {
        const { assert!(N <= Event::MAX_ARGS) };
        ManuallyDrop::new(self).finish(args);
    }

    #[inline(always)]
    fn finish<const N: usize>(&self, args: [u64; N]) {
        if self.recording != 0 {
            let clock = clock(self.recording);
            producer().end(&ThisProcess, clock, self.event, self.given, args);
        }
    }
}

impl Drop for Slice {
    #[inline]
    fn drop(&mut self) {
        self.finish([]);
    }
}

/// Begins a slice on the current thread's track.
#[inline]
pub fn slice<const N: usize>(event: Event, args: [u64; N]) -> Slice {
    slice_with(event, args, &[])
}

/// Begins a slice on the current thread's track that `flows` go through (1024 at most).
#[inline]
pub fn slice_with<const N: usize>(event: Event, args: [u64; N], flows: &[Flow]) -> Slice {
    const { assert!(N <= Event::MAX_ARGS) };
    let mut recording = recording(Level::of(event.detail()));
    if recording != 0 && !producer().begin(&ThisProcess, clock(recording), event, args, flows) {
        recording = 0;
    }
    Slice {
        recording,
        event,
        given: N as u8,
        not_send: PhantomData,
    }
}

/// Records what stands alone, if so much is recorded.
#[inline]
fn record<const N: usize>(
    what: (Kind, Event),
    trace_key: Option<u64>,
    args: [u64; N],
    flows: &[Flow],
) {
    const { assert!(N <= Event::MAX_ARGS) };
    let least = match trace_key {
        Some(_) => Level::Requests,
        None => Level::of(what.1.detail()),
    };
    let recording = recording(least);
    if recording != 0 {
        let clock = clock(recording);
        producer().record(&ThisProcess, clock, what, trace_key, args, flows);
    }
}

/// Marks a moment on the current thread's track.
#[inline]
pub fn instant<const N: usize>(event: Event, args: [u64; N], flows: &[Flow]) {
    record((Kind::Instant, event), None, args, flows);
}

/// Sets a counter of this process.
#[inline]
pub fn counter(event: Event, value: u64) {
    record((Kind::Counter, event), None, [value], &[]);
}

/// The track of one request in this process. Any thread may write to it; the
/// caller sees to it that slices on it nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestTrack {
    trace_key: u64,
}

impl RequestTrack {
    /// The bit of a trace key that says that the request is marked: sessions of
    /// marked requests show it. It travels with the key, so every process knows.
    pub const MARKED: u64 = 1 << 63;

    pub(crate) fn is_marked(trace_key: u64) -> bool {
        trace_key & RequestTrack::MARKED != 0
    }

    /// The track of the request with this key.
    pub fn new(trace_key: u64) -> RequestTrack {
        RequestTrack { trace_key }
    }

    /// Puts texts onto the track, once: the request's id, and whatever else
    /// names it (`traceparent`). They show as arguments of the track's next
    /// event, so this is called right before the request's first BEGIN, `first`.
    /// Keys and texts longer than 128 bytes are cut.
    pub fn describe(self, first: Event, texts: &[(&'static str, &str)]) {
        let recording = recording(Level::Requests);
        if recording == 0 {
            return;
        }
        let mut packed = [0; TEXT_WORDS];
        for (key, text) in texts {
            let words = pack_text(key, text, &mut packed);
            let (clock, packed) = (clock(recording), &packed[..words]);
            producer().record_text(&ThisProcess, clock, (self.trace_key, first), packed);
        }
    }

    /// Begins a slice.
    #[inline]
    pub fn begin<const N: usize>(self, event: Event, args: [u64; N], flows: &[Flow]) {
        record(
            (Kind::RequestBegin, event),
            Some(self.trace_key),
            args,
            flows,
        );
    }

    /// Ends the innermost open slice, which must be `event`.
    #[inline]
    pub fn end<const N: usize>(self, event: Event, args: [u64; N], flows: &[Flow]) {
        record((Kind::RequestEnd, event), Some(self.trace_key), args, flows);
    }

    /// Marks a moment.
    #[inline]
    pub fn instant<const N: usize>(self, event: Event, args: [u64; N], flows: &[Flow]) {
        record(
            (Kind::RequestInstant, event),
            Some(self.trace_key),
            args,
            flows,
        );
    }
}
