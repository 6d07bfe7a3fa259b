//! How many tokens a request took.

use crate::engine_client::Timings;
use crate::prompt::Prompt;
use crate::text_delta::TextDelta;
use serde::Serialize;

/// How many tokens a request took, as OpenAI says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

/// Adds up what a request's sequences take.
#[derive(Clone, Debug)]
pub struct UsageCounter {
    prompt_tokens: u32,
    completion_tokens: u32,
    /// Of each prompt, by its first sequence.
    cached: Vec<u32>,
    n: usize,
}

impl UsageCounter {
    /// Each prompt is answered `n` times.
    pub fn new(prompts: &[Prompt], n: u32) -> UsageCounter {
        UsageCounter {
            prompt_tokens: prompts.iter().map(Prompt::len).sum(),
            completion_tokens: 0,
            cached: vec![0; prompts.len()],
            n: n as usize,
        }
    }

    /// A sequence's news.
    pub fn add(&mut self, delta: &TextDelta) {
        self.completion_tokens += delta.token_ids.len() as u32;
        if delta.index.is_multiple_of(self.n)
            && let Some(cached) = self.cached.get_mut(delta.index / self.n)
        {
            *cached = delta.num_cached_tokens;
        }
    }

    /// Up to now.
    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            total_tokens: self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: self.cached.iter().sum(),
            },
        }
    }
}

/// How long a request took, in milliseconds, for clients that set `timings`;
/// of its first sequence to end last.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimingsMs {
    queue_ms: Option<f64>,
    prefill_ms: Option<f64>,
    time_to_first_token_ms: Option<f64>,
    decode_ms: Option<f64>,
    mean_inter_token_ms: Option<f64>,
    tokens_per_second: Option<f64>,
}

impl From<Timings> for TimingsMs {
    fn from(timings: Timings) -> TimingsMs {
        let ms = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
        let mean = timings.mean_inter_token_seconds();
        TimingsMs {
            queue_ms: ms(timings.queue_seconds()),
            prefill_ms: ms(timings.prefill_seconds()),
            time_to_first_token_ms: ms(timings.time_to_first_token_seconds()),
            decode_ms: ms(timings.decode_seconds()),
            mean_inter_token_ms: ms(mean),
            tokens_per_second: mean.filter(|mean| *mean > 0.0).map(|mean| 1.0 / mean),
        }
    }
}
