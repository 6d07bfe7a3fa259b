//! What comes back for one request.

use super::chunk::{Chunk, Usage};
use super::failure::{Failure, FailureKind};
use super::sse::{SseReader, TooLong};
use crate::clock::Moment;
use crate::record::ArrivedChunk;
use serde_json::Value;

/// An answer so far.
#[derive(Debug, Default)]
pub(super) struct Answer {
    reader: SseReader,
    state: State,
}

#[derive(Debug, Default)]
struct State {
    chunks: Vec<ArrivedChunk>,
    usage: Option<Usage>,
    /// A choice has said why it ends.
    is_finished: bool,
    /// When `[DONE]` came.
    done: Option<Moment>,
}

impl From<TooLong> for Failure {
    fn from(_: TooLong) -> Failure {
        Failure::new(FailureKind::MalformedSse, "an event without end")
    }
}

impl Answer {
    /// Reads on in a stream; how many chunks of output came.
    pub(super) fn stream(&mut self, bytes: &[u8], now: Moment) -> Result<usize, Failure> {
        let before = self.state.chunks.len();
        let state = &mut self.state;
        self.reader
            .read(bytes, |data| state.take_event(data, now))?;
        Ok(self.state.chunks.len() - before)
    }

    /// The whole answer of a request, which wanted a stream or not.
    pub(super) fn whole(&mut self, bytes: &[u8], wanted_stream: bool) -> Result<(), Failure> {
        let chunk: Chunk = serde_json::from_slice(bytes).map_err(|error| {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
            Failure::new(FailureKind::MalformedJson, format!("{error}: {text}"))
        })?;
        if let Some(error) = &chunk.error {
            return Err(error_object(error));
        }
        if wanted_stream {
            return Err(Failure::new(
                FailureKind::MalformedSse,
                "one JSON object instead of a stream",
            ));
        }
        self.state.usage = chunk.usage;
        Ok(())
    }

    /// The stream has ended, as HTTP, without `[DONE]`.
    pub(super) fn ended(&self) -> Result<(), Failure> {
        if self.state.is_finished {
            return Ok(());
        }
        Err(Failure::new(
            FailureKind::CutStream,
            "the stream ended without [DONE] and without a finish_reason",
        ))
    }

    pub(super) fn is_done(&self) -> bool {
        self.state.done.is_some()
    }

    /// When the last event came.
    pub(super) fn done_at(&self) -> Option<Moment> {
        self.state.done
    }

    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        self.state.usage.map(|usage| usage.prompt_tokens)
    }

    /// As the server counts them; else those that chunks told; else chunks.
    pub(super) fn output_tokens(&self) -> u64 {
        let of_chunks = || {
            let told = self
                .state
                .chunks
                .iter()
                .map(|chunk| u64::from(chunk.tokens.unwrap_or(1)));
            told.sum()
        };
        let told = self.state.usage.map(|usage| usage.completion_tokens);
        told.unwrap_or_else(of_chunks)
    }

    pub(super) fn into_chunks(self) -> Vec<ArrivedChunk> {
        self.state.chunks
    }
}

impl State {
    fn take_event(&mut self, data: &[u8], now: Moment) -> Result<(), Failure> {
        if data == b"[DONE]" {
            self.done = Some(now);
            return Ok(());
        }
        let chunk: Chunk = serde_json::from_slice(data).map_err(|error| {
            let text = String::from_utf8_lossy(&data[..data.len().min(200)]);
            Failure::new(FailureKind::MalformedSse, format!("{error}: {text}"))
        })?;
        if let Some(error) = &chunk.error {
            return Err(error_object(error));
        }
        if chunk.has_output() {
            let tokens = chunk.token_ids().or_else(|| self.further(chunk.usage));
            self.chunks.push(ArrivedChunk {
                at: now,
                tokens: tokens.and_then(|tokens| u32::try_from(tokens).ok()),
            });
        }
        self.is_finished |= chunk.finishes();
        self.usage = chunk.usage.or(self.usage);
        Ok(())
    }

    /// Tokens since the last count, where a server counts in every chunk (and
    /// not only in the last one, which then tells of all of them).
    fn further(&self, usage: Option<Usage>) -> Option<u64> {
        if self.chunks.last().is_some_and(|last| last.tokens.is_none()) {
            return None;
        }
        let before = self.usage.map_or(0, |usage| usage.completion_tokens);
        let further = usage?.completion_tokens.checked_sub(before)?;
        (further > 0).then_some(further)
    }
}

fn error_object(error: &Value) -> Failure {
    let message = match error.get("message") {
        Some(Value::String(message)) => message.clone(),
        _ => error.to_string(),
    };
    Failure::new(FailureKind::ErrorObject, message)
}
