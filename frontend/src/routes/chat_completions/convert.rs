//! From text as it comes to the answer's JSON.

use super::types::{
    ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionRequest, ChatLogprobs, Delta,
    Message,
};
use crate::app::unix_seconds;
use crate::engine_client::Timings;
use crate::logprobs::{LogprobWriter, PromptLogprobs};
use crate::sse::{AnswerWriter, Events};
use crate::text::TextModel;
use crate::text_delta::TextDelta;
use crate::usage::UsageCounter;
use serde::Serialize;
use std::slice;
use std::sync::Arc;

/// Turns the texts of one request into its answer, in one piece or in chunks.
pub struct ChatWriter {
    request: ChatCompletionRequest,
    model: Arc<TextModel>,
    id: String,
    model_name: String,
    created: u64,
    usage: UsageCounter,
    timings: Timings,
}

impl ChatWriter {
    pub fn new(
        request: ChatCompletionRequest,
        model: Arc<TextModel>,
        id: String,
        model_name: String,
    ) -> ChatWriter {
        ChatWriter {
            usage: UsageCounter::new(slice::from_ref(&request.prompt), request.options.n),
            request,
            model,
            id,
            model_name,
            created: unix_seconds(),
            timings: Timings::default(),
        }
    }

    fn note(&mut self, delta: &TextDelta) {
        self.usage.add(delta);
        self.timings = delta.timings;
    }

    fn logprob_writer(&self, top: u32) -> LogprobWriter<'_> {
        LogprobWriter {
            model: &self.model,
            tokens_as_ids: self.request.options.tokens_as_ids,
            top: top as usize,
        }
    }

    fn logprobs(&self, delta: &TextDelta) -> Option<ChatLogprobs> {
        let writer = self.logprob_writer(self.request.options.sampling.logprobs?);
        let entries = delta.logprobs.iter().map(|token| writer.chat_entry(token));
        Some(ChatLogprobs {
            content: entries.collect(),
            refusal: None,
        })
    }

    fn prompt_logprobs(&self, delta: &TextDelta) -> Option<PromptLogprobs> {
        let top = self.request.options.sampling.prompt_logprobs?;
        let tokens = delta.prompt_logprobs.as_deref()?;
        Some(self.logprob_writer(top).prompt(tokens))
    }

    fn completion<C: Serialize>(
        &self,
        object: &'static str,
        choices: Vec<C>,
    ) -> ChatCompletion<'_, C> {
        ChatCompletion {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model_name,
            choices,
            usage: None,
            timings: None,
            prompt_token_ids: None,
            prompt_logprobs: None,
        }
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatCompletion<'_, ChatChunkChoice> {
        let mut chunk = self.completion("chat.completion.chunk", choices);
        chunk.usage = self.ends_with_usage().then_some(None);
        chunk
    }

    fn ends_with_usage(&self) -> bool {
        self.request
            .options
            .streaming
            .is_some_and(|streaming| streaming.include_usage)
    }
}

impl AnswerWriter for ChatWriter {
    fn whole(mut self, deltas: Vec<TextDelta>) -> serde_json::Result<Vec<u8>> {
        let options = &self.request.options;
        let (return_token_ids, timings) = (options.return_token_ids, options.timings);
        let choice = |index| ChatChoice {
            index,
            message: Message {
                role: self.request.response_role.clone(),
                content: self.request.echo.clone().unwrap_or_default(),
                refusal: None,
            },
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: return_token_ids.then(Vec::new),
        };
        let mut choices: Vec<ChatChoice> = (0..options.n as usize).map(choice).collect();
        let mut prompt_logprobs = None;
        for delta in deltas {
            self.note(&delta);
            let Some(choice) = choices.get_mut(delta.index) else {
                continue;
            };
            if let Some(part) = self.logprobs(&delta) {
                let all = choice.logprobs.get_or_insert_default();
                all.content.extend(part.content);
            }
            prompt_logprobs = prompt_logprobs.or_else(|| self.prompt_logprobs(&delta));
            choice.message.content.push_str(&delta.text);
            if let Some(ids) = &mut choice.token_ids {
                ids.extend(delta.token_ids);
            }
            if let Some(finish) = delta.finish {
                choice.finish_reason = Some(finish.reason);
                choice.stop_reason = finish.stop_reason;
            }
        }
        let mut completion = self.completion("chat.completion", choices);
        completion.usage = Some(Some(self.usage.usage()));
        completion.timings = timings.then(|| self.timings.into());
        completion.prompt_token_ids = return_token_ids.then(|| self.request.prompt.token_ids());
        completion.prompt_logprobs = prompt_logprobs;
        serde_json::to_vec(&completion)
    }

    /// Each choice begins with its role.
    fn open(&mut self, events: &mut Events) {
        for index in 0..self.request.options.n as usize {
            let mut chunk = self.chunk(vec![ChatChunkChoice {
                index,
                delta: Delta {
                    role: Some(self.request.response_role.clone()),
                    content: Some(self.request.echo.clone().unwrap_or_default()),
                },
                ..ChatChunkChoice::default()
            }]);
            if self.request.options.return_token_ids {
                chunk.prompt_token_ids = Some(self.request.prompt.token_ids());
            }
            events.push(&chunk);
        }
    }

    fn delta(&mut self, delta: TextDelta, events: &mut Events) {
        self.note(&delta);
        let logprobs = self.logprobs(&delta);
        let token_ids = self
            .request
            .options
            .return_token_ids
            .then_some(delta.token_ids);
        // Text that is held back comes with a later chunk.
        if delta.text.is_empty()
            && delta.finish.is_none()
            && logprobs.is_none()
            && token_ids.is_none()
        {
            return;
        }
        let (finish_reason, stop_reason) = match delta.finish {
            Some(finish) => (Some(finish.reason), finish.stop_reason),
            None => (None, None),
        };
        let chunk = self.chunk(vec![ChatChunkChoice {
            index: delta.index,
            delta: Delta {
                role: None,
                content: (!delta.text.is_empty()).then_some(delta.text),
            },
            logprobs,
            finish_reason,
            stop_reason,
            token_ids,
        }]);
        events.push(&chunk);
    }

    fn close(&mut self, events: &mut Events) {
        let timings = self.request.options.timings;
        if self.ends_with_usage() || timings {
            let mut chunk = self.chunk(Vec::new());
            if self.ends_with_usage() {
                chunk.usage = Some(Some(self.usage.usage()));
            }
            chunk.timings = timings.then(|| self.timings.into());
            events.push(&chunk);
        }
    }
}
