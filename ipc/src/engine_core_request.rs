//! One sequence to generate, as it crosses from a frontend to the core.

use crate::sampling_params::SamplingParams;
use serde::{Deserialize, Serialize};

/// A request's number within its frontend's connection. The core's key is
/// (client, `RequestId`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// One sequence to generate: immutable, and free of text. A client's request
/// with `n > 1` becomes `n` of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineCoreRequest {
    /// Unique within the frontend's connection.
    pub id: RequestId,
    /// The key under which every process finds this request's track and flow
    /// in the trace; unique within the server's run.
    pub trace_key: u64,
    /// What the client sees as the request's id, at most 128 bytes; for logs and traces.
    pub external_id: String,
    /// The prompt, not empty, every id below the vocabulary's size.
    pub prompt_token_ids: Vec<u32>,
    /// At least 1. Prompt and `max_tokens` together fit the model's context.
    pub max_tokens: u32,
    /// Lower is served first; equal ones in order of arrival.
    pub priority: i32,
    /// How tokens are chosen and which end the sequence.
    pub sampling: SamplingParams,
}
