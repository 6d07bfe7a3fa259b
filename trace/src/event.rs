//! The catalogue: one closed list of everything that a trace can show.

use crate::Detail;

/// Where an event is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackKind {
    /// On the track of the thread that records it.
    Thread,
    /// On the track of one request in the recording process.
    Request,
    /// On a counter track of the recording process.
    Counter,
}

/// What an argument's integer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// An unsigned number.
    Int,
    /// An index into these names; the name is what the trace shows.
    Label(&'static [&'static str]),
}

/// Labels of how a request ended, by [`Event::Finish`]'s argument.
pub const FINISH_REASONS: &[&str] = &["stop", "length", "abort", "error"];

/// Labels of why a waiting request was not admitted, by [`Event::NotAdmitted`]'s argument.
pub const NOT_ADMITTED_REASONS: &[&str] = &["token budget", "sequence slots", "KV blocks"];

/// Labels of what a product is for, by [`Event::Linear`]'s argument.
pub const LINEAR_ROLES: &[&str] = &["qkv", "o", "gate_up", "down", "lm_head"];

/// Labels of what was too slow, by the arguments of [`Event::SlowRequest`],
/// [`Event::SlowQueue`] and [`Event::SlowStep`].
pub const FLIGHT_RULES: &[&str] = &["ttft_ms", "itl_ms", "queue_ms", "step_ms"];

/// Labels of why a trace ends, by [`Event::TraceEnd`]'s argument.
pub const TRACE_END_REASONS: &[&str] = &[
    "finished",
    "byte cap",
    "process died",
    "write failed",
    "duration",
];

/// Labels of how a request ended for its client, by [`Event::ClientRequest`]'s argument.
pub const CLIENT_OUTCOMES: &[&str] = &["complete", "failed", "aborted"];

macro_rules! catalogue {
    ($($(#[$doc:meta])* $event:ident = $name:literal, $category:literal, $track:ident, [$($arg:literal: $kind:expr),* $(,)?];)*) => {
        /// Everything that a trace can show. Slices and instants carry at most
        /// [`Event::MAX_ARGS`] arguments at their begin and as many at their end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Event { $($(#[$doc])* $event,)* }

        impl Event {
            /// Every event, in order of its number.
            pub const ALL: &'static [Event] = &[$(Event::$event,)*];

            /// What the trace shows.
            pub const fn name(self) -> &'static str { match self { $(Event::$event => $name,)* } }

            /// The process or layer it belongs to.
            pub const fn category(self) -> &'static str { match self { $(Event::$event => $category,)* } }

            /// Where it is drawn.
            pub const fn track(self) -> TrackKind { match self { $(Event::$event => TrackKind::$track,)* } }

            /// Names and kinds of its arguments, in order; those given at the
            /// end of a slice continue those given at its begin.
            pub const fn args(self) -> &'static [(&'static str, ArgKind)] {
                use ArgKind::{Int, Label};
                // Some rows use neither.
                let _ = (Int, Label(&[]));
                match self { $(Event::$event => &[$(($arg, $kind),)*],)* }
            }
        }
    };
}

catalogue! {
    // Frontend, threads.
    /// Headers and body of a request become a validated request.
    HttpParse = "http.parse", "frontend", Thread, ["body_bytes": Int];
    /// Messages become the prompt's text.
    ChatTemplate = "chat_template", "frontend", Thread, ["messages": Int, "prompt_bytes": Int];
    /// Text becomes token ids.
    Tokenize = "tokenize", "frontend", Thread, ["prompt_bytes": Int, "prompt_tokens": Int];
    /// The request goes into the socket to the core.
    EngineSubmit = "engine.submit", "frontend", Thread, ["prompt_tokens": Int];
    /// A frame of outputs from the core is taken apart.
    EngineReceive = "engine.receive", "frontend", Thread, ["outputs": Int];
    /// Token ids become text that may be shown.
    Detokenize = "detokenize", "frontend", Thread, ["token_ids": Int];
    /// One server-sent event is handed to the connection.
    SseWrite = "sse.write", "frontend", Thread, ["bytes": Int];
    /// The event loop answered its own timer too late.
    EventLoopStall = "event_loop.stall", "frontend", Thread, ["late_us": Int];
    // Frontend, request.
    /// A request from its first byte to its last.
    Request = "request", "frontend", Request, ["prompt_tokens": Int, "cached_tokens": Int, "output_tokens": Int, "finish_reason": Label(FINISH_REASONS)];
    /// Validation, chat template and tokenization.
    Preprocess = "preprocess", "frontend", Request, [];
    /// From the submission to the first output.
    Waiting = "waiting", "frontend", Request, [];
    /// From the first output to the last.
    Streaming = "streaming", "frontend", Request, [];
    /// The client has, or will never have, its whole answer.
    Finish = "finish", "frontend", Request, ["finish_reason": Label(FINISH_REASONS)];
    // Core, step thread.
    /// One turn of the core's loop that runs at least one sequence.
    CoreStep = "step", "core", Thread, ["step_id": Int, "prefill_tokens": Int, "decode_tokens": Int, "running": Int, "waiting": Int];
    /// Messages of frontends are taken in.
    CoreReceive = "receive", "core", Thread, ["messages": Int];
    /// The plan of the step is made.
    Schedule = "schedule", "core", Thread, [];
    /// The plan goes to every rank.
    Dispatch = "dispatch", "core", Thread, ["bytes": Int];
    /// The core waits for the ranks' results.
    WaitWorkers = "wait_workers", "core", Thread, [];
    /// Results become states of sequences.
    Update = "update", "core", Thread, ["sampled_tokens": Int];
    /// Outputs go to the frontends.
    CoreSend = "send", "core", Thread, ["outputs": Int];
    // Core, request.
    /// Admitted, and in no step yet.
    Queued = "queued", "core", Request, ["prompt_tokens": Int];
    /// One chunk of the prompt, from its plan to its result.
    Prefill = "prefill", "core", Request, ["step_id": Int, "chunk_tokens": Int];
    /// From the first sampled token to the last.
    Decode = "decode", "core", Request, ["output_tokens": Int];
    /// Without KV blocks until they can be computed anew.
    Preempted = "preempted", "core", Request, ["computed_tokens": Int];
    /// Why the request still waits; once per change of reason.
    NotAdmitted = "not admitted", "core", Request, ["reason": Label(NOT_ADMITTED_REASONS)];
    /// Leading blocks came from the prefix cache.
    PrefixHit = "prefix hit", "core", Request, ["cached_tokens": Int];
    /// The request's blocks were taken from it.
    Evicted = "evicted", "core", Request, ["blocks": Int];
    /// Its client gave it up.
    Aborted = "aborted", "core", Request, [];
    // Core, counters.
    /// Sequences in steps.
    Running = "running", "core", Counter, [];
    /// Sequences admitted but in no step.
    WaitingSequences = "waiting", "core", Counter, [];
    /// KV blocks that sequences hold.
    KvBlocksUsed = "kv_blocks_used", "core", Counter, [];
    /// Tokens of the step's batch.
    BatchedTokens = "batched_tokens", "core", Counter, [];
    // Worker.
    /// One plan from its arrival to its answer.
    WorkerStep = "step", "worker", Thread, ["step_id": Int, "tokens": Int, "sequences": Int];
    /// The plan is read and decoded.
    WorkerReceive = "receive", "worker", Thread, ["bytes": Int];
    /// The plan becomes positions, slots and block tables.
    PrepareInputs = "prepare_inputs", "worker", Thread, [];
    /// Token ids become logits.
    Forward = "forward", "worker", Thread, ["tokens": Int];
    /// Logits become tokens.
    Sample = "sample", "worker", Thread, ["sequences": Int];
    /// The result goes to the core.
    WorkerSend = "send", "worker", Thread, ["bytes": Int];
    /// From the process's start until it can take plans.
    Load = "load", "worker", Thread, [];
    /// Headers are read and files are mapped.
    LoadOpen = "load.open", "worker", Thread, ["file_bytes": Int];
    /// Tensors are read and repacked.
    LoadWeights = "load.weights", "worker", Thread, ["weight_bytes": Int];
    /// The KV cache is allocated.
    LoadKvCache = "load.kv_cache", "worker", Thread, ["blocks": Int, "bytes": Int];
    /// Resident memory of the process.
    ResidentBytes = "resident_bytes", "worker", Counter, [];
    // The recorder itself, in every process.
    /// The last moment that the file tells of.
    TraceEnd = "trace.end", "trace", Thread, ["reason": Label(TRACE_END_REASONS), "events": Int, "dropped": Int, "lost_samples": Int, "unsampled_threads": Int];
    /// Records that found no room in their ring, so far.
    DroppedRecords = "dropped_records", "trace", Counter, [];
    /// The session records; what lies beside such slices is not in the file.
    TraceRecording = "recording", "trace", Thread, [];
    // What fires a dump of the flight recorder.
    /// A token came later than a rule allows.
    SlowRequest = "slow request", "frontend", Request, ["rule": Label(FLIGHT_RULES), "value_us": Int, "limit_us": Int];
    /// The request waited longer for its first step than a rule allows.
    SlowQueue = "slow queue", "core", Request, ["rule": Label(FLIGHT_RULES), "value_us": Int, "limit_us": Int];
    /// The step takes longer than a rule allows.
    SlowStep = "slow step", "core", Thread, ["rule": Label(FLIGHT_RULES), "value_us": Int, "limit_us": Int];
    // Of detail 2.
    /// One layer of the forward pass.
    Layer = "layer", "worker", Thread, ["layer": Int];
    /// Token ids become hidden states.
    Embed = "embed", "worker", Thread, ["rows": Int];
    /// A norm by the root mean square.
    RmsNorm = "rms_norm", "worker", Thread, ["rows": Int];
    /// The residual is added to, and normed.
    AddRmsNorm = "add_rms_norm", "worker", Thread, ["rows": Int];
    /// A product with a layer's weights.
    Linear = "linear", "worker", Thread, ["role": Label(LINEAR_ROLES), "rows": Int];
    /// Queries and keys are rotated, keys and values go into the cache.
    RopeAndWriteKv = "rope_and_write_kv", "worker", Thread, ["rows": Int];
    /// Queries attend to the cache.
    PagedAttention = "paged_attention", "worker", Thread, ["rows": Int];
    /// The gate of an MLP.
    SiluMul = "silu_mul", "worker", Thread, ["rows": Int];
    /// Rows whose logits are wanted are picked.
    GatherRows = "gather_rows", "worker", Thread, ["rows": Int];
    // A client that measures (nano-bench), request.
    /// A request as its client sees it.
    ClientRequest = "client.request", "bench", Request, ["output_tokens": Int, "outcome": Label(CLIENT_OUTCOMES)];
    /// A connection is made, or one that is open is taken.
    ClientConnect = "connect", "bench", Request, [];
    /// Until the connection has taken the request.
    ClientSend = "send", "bench", Request, [];
    /// Until the head of the answer has come.
    ClientWait = "wait", "bench", Request, [];
    /// Until the answer has come, or failed.
    ClientStream = "stream", "bench", Request, [];
    /// A chunk with output has come.
    ClientToken = "token", "bench", Request, [];
}

impl Event {
    /// Arguments of one record at most.
    pub const MAX_ARGS: usize = 5;

    /// The least detail of a session that shows it.
    #[inline(always)]
    pub const fn detail(self) -> Detail {
        match self {
            Event::Layer
            | Event::Embed
            | Event::RmsNorm
            | Event::AddRmsNorm
            | Event::Linear
            | Event::RopeAndWriteKv
            | Event::PagedAttention
            | Event::SiluMul
            | Event::GatherRows => Detail::Ops,
            _ => Detail::Steps,
        }
    }
}
