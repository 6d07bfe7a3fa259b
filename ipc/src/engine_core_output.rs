//! What one step added to a request, as it crosses from the core to a frontend.

use crate::{engine_core_request::RequestId, model_runner_output::TokenLogprobs};
use serde::{Deserialize, Serialize};

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// A stop token was generated; it is the last of the output's `token_ids`.
    Stop,
    /// `max_tokens` or the context's end.
    Length,
    /// The client or its frontend gave it up.
    Abort,
    /// The engine failed this request alone; the text says why.
    Error(String),
    /// As many wait in the core as may, so it was not taken in; later there may
    /// be room. The text says how many.
    Refused(String),
}

/// What one step added to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineCoreOutput {
    /// The frontend's own number of the request.
    pub id: RequestId,
    /// Tokens generated since the last output, in order. May be empty.
    pub token_ids: Vec<u32>,
    /// One for each of `token_ids` where the request asked for logprobs, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// One for each prompt token but the first; sent with the first output.
    pub prompt_logprobs: Option<Vec<TokenLogprobs>>,
    /// Prompt tokens whose KV came from the prefix cache; valid from the first output on.
    pub num_cached_tokens: u32,
    /// CLOCK_BOOTTIME in ns of the first step that computed the request, for
    /// its queue time; 0 when it ended before one did. Valid from the first
    /// output on.
    pub first_step_ns: u64,
    /// Set in the request's last output.
    pub finish_reason: Option<FinishReason>,
}
