//! What the engine sent for a sequence, as text.

use crate::api_error::ApiError;
use crate::engine_client::{Arrival, Ending, Generation, Timings};
use crate::generation_options::GenerationOptions;
use crate::text::{Detokenizer, StopMatcher, TextModel};
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::lifecycle::boottime_ns;
use nano_ipc::model_runner_output::TokenLogprobs;
use nano_trace::Event;
use serde::Serialize;

/// Why a text ended, as OpenAI says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TextEnd {
    /// The model ended it, or something the client named did.
    Stop,
    /// It is as long as it may be.
    Length,
}

/// What of the things that the client named ended its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    /// One of `stop`.
    Text(String),
    /// One of `stop_token_ids`.
    TokenId(u32),
}

/// How a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// For everybody.
    pub reason: TextEnd,
    /// `None` where the model ended it itself, or the length did.
    pub stop_reason: Option<StopReason>,
}

/// What came for a sequence since the last time, as text.
#[derive(Clone, Debug)]
pub struct TextDelta {
    /// Which of the request's sequences.
    pub index: usize,
    /// Text that may be shown now.
    pub text: String,
    /// Tokens that came; their text may be held back.
    pub token_ids: Vec<u32>,
    /// One for each of `token_ids`, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// One for each prompt token but the first, if asked for; once.
    pub prompt_logprobs: Option<Vec<TokenLogprobs>>,
    /// Prompt tokens that the prefix cache had.
    pub num_cached_tokens: u32,
    /// In the last one.
    pub finish: Option<Finish>,
    /// Moments up to now.
    pub timings: Timings,
}

impl TextDelta {
    /// Bytes that it makes in an answer, about.
    pub fn answer_bytes(&self) -> usize {
        const ENTRY_BYTES: usize = 32;
        let prompt = self.prompt_logprobs.iter().flatten();
        let entries = self.logprobs.iter().chain(prompt).map(|t| 1 + t.top.len());
        self.text.len() + ENTRY_BYTES * (self.token_ids.len() + entries.sum::<usize>())
    }
}

/// Text of one sequence.
struct SequenceText {
    /// Taken when the text ends.
    decoder: Option<(Detokenizer, StopMatcher)>,
    num_tokens: u32,
}

/// The texts of one request's sequences, as they are generated. When it is
/// dropped, the request has ended, and the log gets its line.
pub struct TextStream {
    external_id: String,
    prompt_tokens: u32,
    /// Of the sequence that told last.
    cached_tokens: u32,
    timings: Timings,
    output_tokens: usize,
    generation: Generation,
    sequences: Vec<SequenceText>,
    min_tokens: u32,
    client_stop_token_ids: Vec<u32>,
}

impl TextStream {
    /// Follows `generation`, whose sequences all have these options.
    /// `prompt_tokens`: of all prompts.
    pub fn new(
        generation: Generation,
        external_id: String,
        prompt_tokens: u32,
        options: &GenerationOptions,
        model: &TextModel,
    ) -> TextStream {
        let sequence = || SequenceText {
            decoder: Some((
                model.detokenizer(options.skip_special_tokens),
                options.stop.matcher(),
            )),
            num_tokens: 0,
        };
        let sequences = generation.endings().map(|_| sequence()).collect();
        TextStream {
            external_id,
            prompt_tokens,
            cached_tokens: 0,
            timings: generation.timings(),
            output_tokens: 0,
            generation,
            sequences,
            min_tokens: options.sampling.min_tokens,
            client_stop_token_ids: options.client_stop_token_ids.clone(),
        }
    }

    /// Waits until something came; empty once every text has ended. Cancel-safe.
    ///
    /// # Errors
    /// When the engine failed one of the sequences: the request is over.
    pub async fn next(&mut self) -> Result<Vec<TextDelta>, ApiError> {
        let arrivals = self.generation.next().await;
        arrivals
            .into_iter()
            .map(|arrival| self.delta(arrival))
            .collect()
    }

    /// Whether every text has ended.
    pub fn is_over(&self) -> bool {
        self.sequences.iter().all(|text| text.decoder.is_none())
    }

    fn delta(&mut self, arrival: Arrival) -> Result<TextDelta, ApiError> {
        let Arrival {
            index,
            output,
            timings,
        } = arrival;
        self.cached_tokens = output.num_cached_tokens;
        self.timings = timings;
        self.output_tokens += output.token_ids.len();
        let end = match output.finish_reason {
            None => None,
            Some(FinishReason::Stop) => Some(TextEnd::Stop),
            Some(FinishReason::Length) => Some(TextEnd::Length),
            Some(FinishReason::Abort) => {
                return Err(ApiError::internal("the engine gave the request up"));
            }
            Some(FinishReason::Error(reason)) => return Err(ApiError::internal(reason)),
            Some(FinishReason::Refused(reason)) => return Err(ApiError::busy(reason)),
        };
        let slice = nano_trace::slice(Event::Detokenize, [output.token_ids.len() as u64]);
        let mut delta = TextDelta {
            index,
            text: String::new(),
            token_ids: output.token_ids,
            logprobs: output.logprobs,
            prompt_logprobs: output.prompt_logprobs,
            num_cached_tokens: output.num_cached_tokens,
            finish: None,
            timings,
        };
        let sequence = self
            .sequences
            .get_mut(index)
            .ok_or_else(|| ApiError::internal("the engine answered a sequence that is not"))?;
        sequence.decode(&mut delta, end, self.min_tokens);
        if end.is_none() && delta.finish.is_some() {
            // The engine does not know of the stop string.
            self.generation.stop(index);
        }
        if let Some(finish) = &mut delta.finish
            && end == Some(TextEnd::Stop)
            && finish.stop_reason.is_none()
        {
            finish.stop_reason = delta
                .token_ids
                .last()
                .filter(|id| self.client_stop_token_ids.contains(id))
                .map(|id| StopReason::TokenId(*id));
        }
        drop(slice);
        Ok(delta)
    }
}

impl Drop for TextStream {
    fn drop(&mut self) {
        let endings = self.generation.endings();
        let mut endings: Vec<&str> = endings.map(|e| e.unwrap_or(Ending::Abort).name()).collect();
        endings.dedup();
        let first_token = match self.timings.time_to_first_token_seconds() {
            Some(seconds) => format!(", the first after {seconds:.3} s"),
            None => String::new(),
        };
        log::info!(
            "{}: {} prompt tokens ({} cached), {} generated{first_token}, {} after {:.3} s",
            self.external_id,
            self.prompt_tokens,
            self.cached_tokens,
            self.output_tokens,
            endings.join(" and "),
            boottime_ns().saturating_sub(self.timings.arrived_ns) as f64 / 1e9,
        );
    }
}

impl SequenceText {
    /// Fills in text and finish, and cuts the tokens behind a stop string.
    fn decode(&mut self, delta: &mut TextDelta, end: Option<TextEnd>, min_tokens: u32) {
        let Some((mut detokenizer, mut matcher)) = self.decoder.take() else {
            return;
        };
        // A stop token ends the text and is no part of it.
        let ended_by_token = usize::from(end == Some(TextEnd::Stop));
        let shown = delta.token_ids.len().saturating_sub(ended_by_token);
        for (at, id) in delta.token_ids.iter().take(shown).enumerate() {
            self.num_tokens += 1;
            let piece = detokenizer.push(*id);
            if self.num_tokens <= min_tokens {
                delta.text.push_str(&piece);
                continue;
            }
            delta.text.push_str(&matcher.push(&piece));
            if matcher.stopped_at().is_some() {
                delta.token_ids.truncate(at + 1);
                delta.logprobs.truncate(at + 1);
                break;
            }
        }
        if matcher.stopped_at().is_none() {
            if end.is_none() {
                self.decoder = Some((detokenizer, matcher));
                return;
            }
            delta.text.push_str(&matcher.push(&detokenizer.finish()));
        }
        let stop_reason = matcher
            .stopped_at()
            .map(|text| StopReason::Text(text.to_owned()));
        let reason = match &stop_reason {
            Some(_) => Some(TextEnd::Stop),
            None => end,
        };
        delta.text.push_str(&matcher.finish());
        delta.finish = reason.map(|reason| Finish {
            reason,
            stop_reason,
        });
    }
}
