//! What the trace shows of one sequence in the frontend.

use crate::engine_client::Ending;
use nano_ipc::engine_core_output::EngineCoreOutput;
use nano_trace::{Event, Flow, RequestTrack};

/// What a sequence is at, and so which slice within `request` is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Preprocess,
    Waiting,
    Streaming,
    /// Its last output came; the client may not have it yet.
    Answered,
    Finished,
}

/// What the trace shows of one sequence in the frontend: one track, on which
/// `request` holds `preprocess`, `waiting` and `streaming`, one after the
/// other. Every slice that was begun is ended, at the latest by dropping.
#[derive(Debug)]
pub struct SequenceTrace {
    trace_key: u64,
    /// Through the request as its client sees it, if that sent a `traceparent`.
    of_client: Option<Flow>,
    phase: Phase,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
}

impl SequenceTrace {
    /// A request's first sequence, when the request arrives.
    pub fn begin(
        trace_key: u64,
        texts: &[(&'static str, &str)],
        of_client: Option<Flow>,
    ) -> SequenceTrace {
        let trace = SequenceTrace {
            trace_key,
            of_client,
            phase: Phase::Preprocess,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
        };
        let track = trace.track();
        track.describe(Event::Request, texts);
        trace.begin_with_flows(Event::Request);
        track.begin(Event::Preprocess, [], &[]);
        trace
    }

    /// The key of its track and flow in every process.
    pub fn trace_key(&self) -> u64 {
        self.trace_key
    }

    /// It goes to the engine.
    pub fn submitted(&mut self, prompt_tokens: usize) {
        self.prompt_tokens = prompt_tokens as u64;
        self.leave();
        self.phase = Phase::Waiting;
        self.track().begin(Event::Waiting, [], &[]);
    }

    /// Something came for it.
    pub fn output(&mut self, output: &EngineCoreOutput) {
        self.cached_tokens = u64::from(output.num_cached_tokens);
        self.output_tokens += output.token_ids.len() as u64;
        if self.phase == Phase::Waiting && !output.token_ids.is_empty() {
            self.leave();
            self.phase = Phase::Streaming;
            self.begin_with_flows(Event::Streaming);
        }
        if output.finish_reason.is_some() {
            self.leave();
            self.phase = Phase::Answered;
        }
    }

    /// The client has, or will never have, its whole answer.
    pub fn finish(&mut self, ending: Ending) {
        if self.phase == Phase::Finished {
            return;
        }
        self.leave();
        self.phase = Phase::Finished;
        let label = ending as u64;
        let track = self.track();
        track.instant(Event::Finish, [label], &[self.flow()]);
        track.end(
            Event::Request,
            [
                self.prompt_tokens,
                self.cached_tokens,
                self.output_tokens,
                label,
            ],
            &[],
        );
    }

    /// Begins what arrows lead to, from the client too.
    fn begin_with_flows(&self, event: Event) {
        match self.of_client {
            Some(of_client) => self.track().begin(event, [], &[self.flow(), of_client]),
            None => self.track().begin(event, [], &[self.flow()]),
        }
    }

    /// Ends the slice of the current phase.
    fn leave(&self) {
        let event = match self.phase {
            Phase::Preprocess => Event::Preprocess,
            Phase::Waiting => Event::Waiting,
            Phase::Streaming => Event::Streaming,
            Phase::Answered | Phase::Finished => return,
        };
        self.track().end(event, [], &[]);
    }

    fn track(&self) -> RequestTrack {
        RequestTrack::new(self.trace_key)
    }

    fn flow(&self) -> Flow {
        Flow::request(self.trace_key)
    }
}

impl Drop for SequenceTrace {
    fn drop(&mut self) {
        self.finish(Ending::Abort);
    }
}
