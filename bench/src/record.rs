//! What is known of one request when it is over.

use crate::client::failure::Failure;
use crate::clock::Moment;
use serde_json::{Value, json};

/// One request.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// Its number over the whole run.
    pub index: u64,
    /// Number of the load that it belongs to.
    pub load: usize,
    /// Number of the server that was asked.
    pub endpoint: usize,
    /// When what happened.
    pub times: Times,
    /// The trace id of its `traceparent`.
    pub trace_id: u128,
    /// Tokens of the prompt, as the server counts them.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer: as the server counts them, or else its chunks.
    pub output_tokens: u64,
    /// Chunks with output, in order of time.
    pub chunks: Vec<ArrivedChunk>,
    /// How it ended.
    pub outcome: Outcome,
}

/// Moments of a request. What did not happen is `None`.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// When it was due, in an open loop.
    pub intended: Option<Moment>,
    /// When work on it began.
    pub started: Moment,
    /// When there was a connection.
    pub connected: Option<Moment>,
    /// When the connection had taken it.
    pub sent: Option<Moment>,
    /// When the head of the answer came.
    pub head: Option<Moment>,
    /// When the last event came, or it failed.
    pub ended: Moment,
}

/// A chunk of a stream that has output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedChunk {
    /// When it was read.
    pub at: Moment,
    /// Tokens in it, where the server says.
    pub tokens: Option<u32>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a whole answer.
    Complete,
    /// Without one.
    Failed(Failure),
    /// With the run.
    Aborted,
}

/// Time between tokens: `tokens` times this many milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Milliseconds from one token to the next.
    pub ms: f32,
    /// How many tokens it stands for.
    pub tokens: f32,
}

impl RequestRecord {
    /// What latency counts from: when the request was due, or else sent.
    pub fn origin(&self) -> Moment {
        self.times.intended.unwrap_or(self.times.started)
    }

    /// Time to first token, in ms.
    pub fn ttft_ms(&self) -> Option<f64> {
        Some(self.chunks.first()?.at.ms_since(self.origin()))
    }

    /// Time of the whole request, in ms.
    pub fn e2e_ms(&self) -> f64 {
        self.times.ended.ms_since(self.origin())
    }

    /// Time per output token after the first, in ms: their mean in this request.
    pub fn tpot_ms(&self) -> Option<f64> {
        let [first, .., last] = self.chunks.as_slice() else {
            return None;
        };
        let further = self
            .output_tokens
            .checked_sub(1)
            .filter(|&tokens| tokens > 0)?;
        Some(last.at.ms_since(first.at) / further as f64)
    }

    /// Inter-token latencies.
    ///
    /// A chunk that is known to hold n tokens stands for n intervals, each the
    /// n-th part of the time since the chunk before it. Where nobody says how
    /// many tokens each chunk holds, the request's tokens after the first chunk
    /// (`usage`) are taken to be spread evenly over its further chunks. Either
    /// way the intervals of a request add up to the time from its first chunk
    /// to its last, and none is counted twice.
    pub fn intervals(&self) -> impl Iterator<Item = Interval> {
        let further = self.chunks.len().saturating_sub(1).max(1) as f64;
        let untold = (self.output_tokens as f64 - 1.0).max(1.0) / further;
        self.chunks.windows(2).filter_map(move |pair| {
            let [before, chunk] = pair else { return None };
            let tokens = chunk.tokens.map_or(untold, f64::from);
            Some(Interval {
                ms: (chunk.at.ms_since(before.at) / tokens) as f32,
                tokens: tokens as f32,
            })
        })
    }

    /// How late it was sent, in ms, in an open loop: the client's own delay,
    /// and time for which all connections were in use.
    pub fn lag_ms(&self) -> Option<f64> {
        Some(self.times.started.ms_since(self.times.intended?))
    }

    /// As a line of records.jsonl. Times are in ms after the request's origin,
    /// which itself is in ns of CLOCK_MONOTONIC.
    pub fn to_json(&self) -> Value {
        let origin = self.origin();
        let ms = |moment: Moment| (moment.ms_since(origin) * 1e3).round() / 1e3;
        let failure = match &self.outcome {
            Outcome::Failed(failure) => Some(failure),
            _ => None,
        };
        let mut line = json!({
            "index": self.index,
            "load": self.load,
            "endpoint": self.endpoint,
            "outcome": match &self.outcome {
                Outcome::Complete => "complete".to_owned(),
                Outcome::Failed(failure) => failure.kind.to_string(),
                Outcome::Aborted => "aborted".to_owned(),
            },
            "error": failure.map(|failure| &failure.message),
            "trace_id": format!("{:032x}", self.trace_id),
            "origin_ns": origin.ns(),
            "started_ms": ms(self.times.started),
            "connected_ms": self.times.connected.map(ms),
            "sent_ms": self.times.sent.map(ms),
            "head_ms": self.times.head.map(ms),
            "ended_ms": ms(self.times.ended),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "chunks_ms": self.chunks.iter().map(|chunk| ms(chunk.at)).collect::<Vec<f64>>(),
        });
        if self.chunks.iter().any(|chunk| chunk.tokens.is_some()) {
            let tokens = self.chunks.iter().map(|chunk| json!(chunk.tokens));
            line["chunk_tokens"] = tokens.collect();
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(output_tokens: u64, chunks: &[(u64, Option<u32>)]) -> RequestRecord {
        let at = |ms: u64| Moment::from_ns(ms * 1_000_000);
        RequestRecord {
            index: 0,
            load: 0,
            endpoint: 0,
            times: Times {
                intended: Some(at(5)),
                started: at(8),
                connected: None,
                sent: None,
                head: None,
                ended: at(100),
            },
            trace_id: 1,
            prompt_tokens: None,
            output_tokens,
            chunks: chunks
                .iter()
                .map(|&(ms, tokens)| ArrivedChunk { at: at(ms), tokens })
                .collect(),
            outcome: Outcome::Complete,
        }
    }

    fn intervals(record: &RequestRecord) -> Vec<(f32, f32)> {
        record.intervals().map(|i| (i.ms, i.tokens)).collect()
    }

    #[test]
    fn latency_counts_from_when_the_request_was_due() {
        let record = record(3, &[(25, None), (35, None), (65, None)]);
        assert_eq!(record.ttft_ms(), Some(20.0));
        assert_eq!(record.tpot_ms(), Some(20.0));
        assert_eq!(record.e2e_ms(), 95.0);
        assert_eq!(record.lag_ms(), Some(3.0));
        assert_eq!(intervals(&record), [(10.0, 1.0), (30.0, 1.0)]);
    }

    #[test]
    fn a_chunk_of_several_tokens_is_several_intervals() {
        let told = record(7, &[(20, Some(2)), (50, Some(3)), (90, Some(2))]);
        assert_eq!(intervals(&told), [(10.0, 3.0), (20.0, 2.0)]);
        // Untold: 6 further tokens over two further chunks.
        let untold = record(7, &[(20, None), (50, None), (80, None)]);
        assert_eq!(intervals(&untold), [(10.0, 3.0), (10.0, 3.0)]);
        assert_eq!(untold.tpot_ms(), Some(10.0));
    }

    #[test]
    fn what_did_not_happen_is_not_measured() {
        for record in [record(0, &[]), record(1, &[(20, None)])] {
            assert_eq!(record.tpot_ms(), None);
            assert_eq!(intervals(&record), []);
        }
        assert_eq!(record(0, &[]).ttft_ms(), None);
    }
}
