//! What answers to a prompt say of the prompt itself.

use super::types::{CompletionLogprobs, CompletionRequest};
use crate::logprobs::{Json, LogprobWriter, PromptLogprobs, finite};
use crate::prompt::Prompt;
use crate::text::TextModel;
use nano_ipc::model_runner_output::TokenLogprobs;

/// What answers to a prompt say of the prompt itself: made once, and the same
/// in all of them.
#[derive(Debug, Default)]
pub struct PromptPart {
    /// What they begin with: nothing, unless they echo.
    pub text: String,
    /// What their `logprobs` begin with, likewise.
    pub logprobs: LogprobList,
    /// If asked for.
    pub prompt_logprobs: Option<PromptLogprobs>,
}

impl PromptPart {
    /// `tokens`: one for each token of the prompt but the first.
    pub fn new(
        prompt: &Prompt,
        tokens: Option<&[TokenLogprobs]>,
        request: &CompletionRequest,
        model: &TextModel,
    ) -> PromptPart {
        let options = &request.options;
        let writer = |top: u32| LogprobWriter {
            model,
            tokens_as_ids: options.tokens_as_ids,
            top: top as usize,
        };
        let mut part = PromptPart::default();
        if request.echo {
            part.text = prompt.text(model);
            if let Some(top) = options.sampling.logprobs {
                let writer = writer(top);
                // The first token of a prompt follows nothing and has no probability.
                if let Some(first) = prompt.token_ids().first() {
                    part.logprobs.add(&writer, *first, None, None);
                }
                for token in tokens.unwrap_or_default() {
                    part.logprobs.push(&writer, token);
                }
            }
        }
        if let (Some(top), Some(tokens)) = (request.prompt_logprobs, tokens) {
            part.prompt_logprobs = Some(writer(top).prompt(tokens));
        }
        part
    }
}

/// The parallel lists of a completion's logprobs, as they grow.
#[derive(Clone, Debug, Default)]
pub struct LogprobList {
    /// Up to now.
    pub lists: CompletionLogprobs,
    /// Characters of the answer's tokens up to now.
    pub offset: usize,
}

impl LogprobList {
    /// Adds a token.
    pub fn push(&mut self, writer: &LogprobWriter<'_>, token: &TokenLogprobs) {
        let logprob = Some(finite(token.logprob));
        let top = writer.completion_top(token);
        self.add(writer, token.token_id, logprob, Some(top));
    }

    fn add(
        &mut self,
        writer: &LogprobWriter<'_>,
        id: u32,
        logprob: Option<f32>,
        top: Option<Json>,
    ) {
        let (name, _) = writer.token(id);
        self.lists.text_offset.push(self.offset);
        self.offset += name.chars().count();
        self.lists.tokens.push(name);
        self.lists.token_logprobs.push(logprob);
        self.lists.top_logprobs.push(top);
    }
}
