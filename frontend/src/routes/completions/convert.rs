//! From text as it comes to the answer's JSON.

use super::prompt_part::{LogprobList, PromptPart};
use super::types::{Completion, CompletionChoice, CompletionRequest};
use crate::app::unix_seconds;
use crate::engine_client::Timings;
use crate::logprobs::LogprobWriter;
use crate::sse::{AnswerWriter, Events};
use crate::text::TextModel;
use crate::text_delta::TextDelta;
use crate::usage::UsageCounter;
use std::sync::Arc;

/// Turns the texts of one request into its answer, in one piece or in chunks.
pub struct CompletionWriter {
    request: CompletionRequest,
    model: Arc<TextModel>,
    id: String,
    model_name: String,
    created: u64,
    usage: UsageCounter,
    /// Of each sequence: characters of the tokens that were named so far;
    /// `None` before its first part.
    offsets: Vec<Option<usize>>,
    /// Of each prompt, once one of its sequences told.
    parts: Vec<Option<PromptPart>>,
    timings: Timings,
}

impl CompletionWriter {
    pub fn new(
        request: CompletionRequest,
        model: Arc<TextModel>,
        id: String,
        model_name: String,
    ) -> CompletionWriter {
        let sequences = request.prompts.len() * request.options.n as usize;
        CompletionWriter {
            usage: UsageCounter::new(&request.prompts, request.options.n),
            parts: request.prompts.iter().map(|_| None).collect(),
            request,
            model,
            id,
            model_name,
            created: unix_seconds(),
            offsets: vec![None; sequences],
            timings: Timings::default(),
        }
    }

    /// Makes the part of this sequence's prompt, unless it is there.
    fn note_prompt(&mut self, delta: &mut TextDelta) {
        let tokens = delta.prompt_logprobs.take();
        let at = delta.index / self.request.options.n as usize;
        if let Some(prompt) = self.request.prompts.get(at)
            && let Some(part) = self.parts.get_mut(at)
            && part.is_none()
        {
            let part_of = |tokens| PromptPart::new(prompt, tokens, &self.request, &self.model);
            *part = Some(part_of(tokens.as_deref()));
        }
    }

    /// One sequence's news as its part of an answer.
    fn choice(&mut self, mut delta: TextDelta) -> CompletionChoice {
        if self.request.only_echo {
            delta.text.clear();
            delta.token_ids.clear();
            delta.logprobs.clear();
        }
        self.usage.add(&delta);
        self.timings = delta.timings;
        self.note_prompt(&mut delta);
        let options = &self.request.options;
        let at = delta.index / options.n as usize;
        let offset = self.offsets.get_mut(delta.index);
        let before = offset.as_deref().copied().flatten();
        let prompt = self.request.prompts.get(at).filter(|_| before.is_none());
        let part = self.parts.get(at).and_then(Option::as_ref);
        let part = part.filter(|_| before.is_none());
        let mut choice = CompletionChoice {
            index: delta.index,
            text: part.map_or_else(String::new, |part| part.text.clone()),
            prompt_logprobs: part.and_then(|part| part.prompt_logprobs.clone()),
            ..CompletionChoice::default()
        };
        choice.text.push_str(&delta.text);
        let mut list = part.map_or_else(LogprobList::default, |part| part.logprobs.clone());
        list.offset = before.unwrap_or(list.offset);
        if let Some(top) = options.sampling.logprobs {
            let writer = LogprobWriter {
                model: &self.model,
                tokens_as_ids: options.tokens_as_ids,
                top: top as usize,
            };
            let tokens = delta.logprobs.iter();
            tokens.for_each(|token| list.push(&writer, token));
            choice.logprobs = Some(list.lists);
        }
        if let Some(offset) = offset {
            *offset = Some(list.offset);
        }
        if options.return_token_ids {
            choice.prompt_token_ids = prompt.map(|prompt| prompt.token_ids().to_vec());
            choice.token_ids = Some(delta.token_ids);
        }
        if let Some(finish) = delta.finish {
            choice.finish_reason = Some(finish.reason);
            choice.stop_reason = finish.stop_reason;
        }
        choice
    }

    fn completion(&self, choices: Vec<CompletionChoice>) -> Completion<'_> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model_name,
            choices,
            usage: None,
            timings: None,
        }
    }

    fn ends_with_usage(&self) -> bool {
        self.request
            .options
            .streaming
            .is_some_and(|streaming| streaming.include_usage)
    }
}

impl AnswerWriter for CompletionWriter {
    fn whole(mut self, mut deltas: Vec<TextDelta>) -> serde_json::Result<Vec<u8>> {
        let mut choices: Vec<CompletionChoice> = (0..self.offsets.len())
            .map(|index| CompletionChoice {
                index,
                ..CompletionChoice::default()
            })
            .collect();
        // One of a prompt's sequences tells for all, and may not come first.
        for delta in &mut deltas {
            if delta.prompt_logprobs.is_some() {
                self.note_prompt(delta);
            }
        }
        for delta in deltas {
            let part = self.choice(delta);
            if let Some(choice) = choices.get_mut(part.index) {
                choice.append(part);
            }
        }
        let mut completion = self.completion(choices);
        completion.usage = Some(Some(self.usage.usage()));
        completion.timings = self.request.options.timings.then(|| self.timings.into());
        serde_json::to_vec(&completion)
    }

    fn open(&mut self, _: &mut Events) {}

    fn delta(&mut self, delta: TextDelta, events: &mut Events) {
        let choice = self.choice(delta);
        if choice.says_nothing() {
            return;
        }
        let mut chunk = self.completion(vec![choice]);
        chunk.usage = self.ends_with_usage().then_some(None);
        events.push(&chunk);
    }

    fn close(&mut self, events: &mut Events) {
        let timings = self.request.options.timings;
        if self.ends_with_usage() || timings {
            let mut chunk = self.completion(Vec::new());
            chunk.usage = self.ends_with_usage().then(|| Some(self.usage.usage()));
            chunk.timings = timings.then(|| self.timings.into());
            events.push(&chunk);
        }
    }
}

impl CompletionChoice {
    /// Text that is held back comes with a later chunk.
    fn says_nothing(&self) -> bool {
        self.text.is_empty()
            && self.finish_reason.is_none()
            && self.token_ids.is_none()
            && self.logprobs.is_none()
    }

    /// Adds what came later.
    fn append(&mut self, later: CompletionChoice) {
        self.text.push_str(&later.text);
        match (&mut self.logprobs, later.logprobs) {
            (Some(all), Some(later)) => {
                all.text_offset.extend(later.text_offset);
                all.token_logprobs.extend(later.token_logprobs);
                all.tokens.extend(later.tokens);
                all.top_logprobs.extend(later.top_logprobs);
            }
            (all, later) => *all = all.take().or(later),
        }
        match (&mut self.token_ids, later.token_ids) {
            (Some(all), Some(later)) => all.extend(later),
            (all, later) => *all = all.take().or(later),
        }
        self.prompt_token_ids = self.prompt_token_ids.take().or(later.prompt_token_ids);
        self.prompt_logprobs = self.prompt_logprobs.take().or(later.prompt_logprobs);
        self.finish_reason = self.finish_reason.or(later.finish_reason);
        self.stop_reason = self.stop_reason.take().or(later.stop_reason);
    }
}
