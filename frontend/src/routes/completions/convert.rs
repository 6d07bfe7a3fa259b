//! From text as it comes to the answer's JSON.

use super::types::{Completion, CompletionChoice, CompletionLogprobs, CompletionRequest};
use crate::app::unix_seconds;
use crate::engine_client::Timings;
use crate::logprobs::{LogprobWriter, finite};
use crate::sse::{AnswerWriter, Events};
use crate::text::TextModel;
use crate::text_delta::TextDelta;
use crate::usage::UsageCounter;
use nano_ipc::model_runner_output::TokenLogprobs;
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
            request,
            model,
            id,
            model_name,
            created: unix_seconds(),
            offsets: vec![None; sequences],
            timings: Timings::default(),
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
        let options = &self.request.options;
        let prompt = self.request.prompts.get(delta.index / options.n as usize);
        let offset = self.offsets.get_mut(delta.index);
        let first = offset.as_deref().is_some_and(Option::is_none);
        let prompt = prompt.filter(|_| first);
        let mut choice = CompletionChoice {
            index: delta.index,
            ..CompletionChoice::default()
        };
        if let Some(prompt) = prompt.filter(|_| self.request.echo) {
            choice.text = prompt.text(&self.model);
        }
        choice.text.push_str(&delta.text);
        let writer = |top: u32| LogprobWriter {
            model: &self.model,
            tokens_as_ids: options.tokens_as_ids,
            top: top as usize,
        };
        if let (Some(top), Some(offset)) = (options.sampling.logprobs, offset) {
            let mut list = LogprobList {
                writer: writer(top),
                lists: CompletionLogprobs::default(),
                offset: offset.unwrap_or(0),
            };
            if let Some(prompt) = prompt.filter(|_| self.request.echo) {
                let prompt_logprobs = delta.prompt_logprobs.as_deref().unwrap_or(&[]);
                list.prompt(prompt.token_ids(), prompt_logprobs);
            }
            delta.logprobs.iter().for_each(|token| list.push(token));
            *offset = Some(list.offset);
            choice.logprobs = Some(list.lists);
        } else if let Some(offset) = self.offsets.get_mut(delta.index) {
            *offset = Some(0);
        }
        if let Some(top) = self.request.prompt_logprobs
            && let Some(tokens) = &delta.prompt_logprobs
        {
            choice.prompt_logprobs = Some(writer(top).prompt(tokens));
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
    fn whole(mut self, deltas: Vec<TextDelta>) -> serde_json::Result<Vec<u8>> {
        let mut choices: Vec<CompletionChoice> = (0..self.offsets.len())
            .map(|index| CompletionChoice {
                index,
                ..CompletionChoice::default()
            })
            .collect();
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

/// The parallel lists of a completion's logprobs, as they grow.
struct LogprobList<'a> {
    writer: LogprobWriter<'a>,
    lists: CompletionLogprobs,
    offset: usize,
}

impl LogprobList<'_> {
    fn push(&mut self, token: &TokenLogprobs) {
        let top = self.writer.completion_top(token);
        self.add(token.token_id, Some(finite(token.logprob)), Some(top));
    }

    /// The first token of a prompt follows nothing and has no probability.
    fn prompt(&mut self, token_ids: &[u32], logprobs: &[TokenLogprobs]) {
        if let Some(first) = token_ids.first() {
            self.add(*first, None, None);
        }
        logprobs.iter().for_each(|token| self.push(token));
    }

    fn add(&mut self, id: u32, logprob: Option<f32>, top: Option<serde_json::Value>) {
        let (name, _) = self.writer.token(id);
        self.lists.text_offset.push(self.offset);
        self.offset += name.chars().count();
        self.lists.tokens.push(name);
        self.lists.token_logprobs.push(logprob);
        self.lists.top_logprobs.push(top);
    }
}
