//! Each request's track in the trace: queued, prefill, decode, preempted.

use crate::scheduler::{NotAdmitted, SchedulerEvent, TracedEvent};
use nano_ipc::scheduler_output::StepId;
use nano_trace::{Event, Flow, RequestTrack};
use std::collections::HashMap;

/// Draws what the scheduler tells.
///
/// Invariants: a request is in `tracks` from its `Queued` to its `Finished` or
/// `Aborted`; at most one slice is open on a track, so that slices nest
/// whatever the order of plans and results.
#[derive(Debug, Default)]
pub struct RequestTracks {
    tracks: HashMap<u64, Track>,
}

#[derive(Debug, Default)]
struct Track {
    open: Option<Event>,
    /// Step of the open `Prefill`. With two steps in flight the next chunk
    /// begins before the result of the one before is in.
    prefill_step: StepId,
    has_run: bool,
    has_decoded: bool,
}

impl RequestTracks {
    /// Draws events, in order.
    pub fn record(&mut self, events: Vec<TracedEvent>) {
        for event in events {
            self.record_one(event);
        }
    }

    /// Requests that have not ended.
    #[cfg(test)]
    pub fn num_open(&self) -> usize {
        self.tracks.len()
    }

    fn record_one(&mut self, traced: TracedEvent) {
        let on = RequestTrack::new(traced.trace_key);
        let flow = &[Flow::request(traced.trace_key)][..];
        let track = self.tracks.entry(traced.trace_key).or_default();
        match traced.event {
            SchedulerEvent::Queued => {
                on.begin(Event::Queued, [traced.num_prompt_tokens as u64], flow);
                track.open = Some(Event::Queued);
            }
            SchedulerEvent::NotAdmitted(reason) => {
                on.instant(Event::NotAdmitted, [label(reason)], &[]);
            }
            SchedulerEvent::Admitted { num_cached_tokens } => {
                if num_cached_tokens > 0 {
                    on.instant(Event::PrefixHit, [num_cached_tokens as u64], &[]);
                }
            }
            SchedulerEvent::PrefillPlanned {
                step_id,
                num_tokens,
            } => {
                track.end(on, traced);
                let first = !std::mem::replace(&mut track.has_run, true);
                let flows = if first { flow } else { &[] };
                on.begin(Event::Prefill, [step_id.0, num_tokens as u64], flows);
                track.open = Some(Event::Prefill);
                track.prefill_step = step_id;
            }
            SchedulerEvent::PrefillDone(step_id) => {
                if step_id == track.prefill_step {
                    track.end(on, traced);
                }
            }
            SchedulerEvent::DecodeBegan => {
                track.end(on, traced);
                let first = !std::mem::replace(&mut track.has_decoded, true);
                on.begin(Event::Decode, [], if first { flow } else { &[] });
                track.open = Some(Event::Decode);
            }
            SchedulerEvent::Preempted {
                num_blocks,
                num_computed_tokens,
            } => {
                on.instant(Event::Evicted, [num_blocks as u64], &[]);
                track.end(on, traced);
                on.begin(Event::Preempted, [num_computed_tokens as u64], &[]);
                track.open = Some(Event::Preempted);
            }
            SchedulerEvent::Aborted | SchedulerEvent::Finished => {
                if traced.event == SchedulerEvent::Aborted {
                    on.instant(Event::Aborted, [], &[]);
                }
                track.end(on, traced);
                self.tracks.remove(&traced.trace_key);
            }
        }
    }
}

/// A core that ends takes its requests with it: nothing of it goes on, and only
/// a killed process leaves slices without an end.
impl Drop for RequestTracks {
    fn drop(&mut self) {
        for (trace_key, track) in &mut self.tracks {
            if let Some(event) = track.open.take() {
                RequestTrack::new(*trace_key).end(event, [], &[]);
            }
        }
    }
}

impl Track {
    fn end(&mut self, on: RequestTrack, traced: TracedEvent) {
        match self.open.take() {
            Some(Event::Decode) => {
                on.end(Event::Decode, [traced.num_output_tokens as u64], &[]);
            }
            Some(event) => on.end(event, [], &[]),
            None => {}
        }
    }
}

/// Index into [`nano_trace::Event::NotAdmitted`]'s labels.
fn label(reason: NotAdmitted) -> u64 {
    match reason {
        NotAdmitted::TokenBudget => 0,
        NotAdmitted::SequenceSlots => 1,
        NotAdmitted::KvBlocks => 2,
    }
}
