//! From a body to a [`ChatCompletionRequest`].

use super::convert::ChatWriter;
use super::types::ChatCompletionRequest;
use crate::api_error::ApiError;
use crate::fields::Fields;
use crate::generation_options::{GenerationOptions, Limits, MAX_LOGPROBS};
use crate::logprobs::{check_answer_entries, check_prompt_entries};
use crate::prompt::Prompt;
use crate::routes::conversation::Conversation;
use crate::routes::generate::GenerationRequest;
use crate::served_model::ServedModel;
use crate::sse::AnswerWriter;
use crate::text::TextModel;
use crate::waiter::Waiter;
use nano_trace::Slice;
use std::slice;
use std::sync::Arc;

impl GenerationRequest for ChatCompletionRequest {
    const ID_PREFIX: &'static str = "chatcmpl-";

    fn from_fields(
        fields: &Fields<'_>,
        served: &ServedModel,
        parsing: Slice,
        _: &Waiter,
    ) -> Result<ChatCompletionRequest, ApiError> {
        let (model, info) = (&*served.text, &*served.info);
        served.names.check_field(fields)?;
        let limits = Limits {
            info,
            defaults: &model.generation_defaults().sampling,
            eos_token_ids: model.chat_eos_token_ids(),
        };
        let options =
            GenerationOptions::from_fields(fields, max_tokens(fields)?, logprobs(fields)?, limits)?;
        let conversation = Conversation::from_fields(fields)?;
        let add_special = fields.flag("add_special_tokens")?;
        let echo = fields.flag("echo")?.then(|| conversation.text_to_echo());
        drop(parsing);
        let text = conversation.render(model)?;
        let prompt = Prompt::from_text("messages", text, add_special, model, info)?;
        // All answers have them together.
        let entries = options.sampling.prompt_logprobs.map_or(0, |top| top + 1);
        check_prompt_entries(slice::from_ref(&prompt), 1, entries)?;
        let max_tokens = options.max_tokens_for(&prompt, None, info)?;
        check_answer_entries(&[max_tokens], &options)?;
        Ok(ChatCompletionRequest {
            max_tokens,
            prompt,
            options,
            response_role: conversation.answers_role(),
            echo,
        })
    }

    fn prompts(&self) -> &[Prompt] {
        slice::from_ref(&self.prompt)
    }

    fn max_tokens(&self) -> &[u32] {
        slice::from_ref(&self.max_tokens)
    }

    fn options(&self) -> &GenerationOptions {
        &self.options
    }

    fn writer(self, model: Arc<TextModel>, id: String, model_name: String) -> impl AnswerWriter {
        ChatWriter::new(self, model, id, model_name)
    }
}

/// `max_completion_tokens`, or its older name.
fn max_tokens(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let newer = fields.number("max_completion_tokens", 1..=u32::MAX)?;
    let older = fields.number("max_tokens", 1..=u32::MAX)?;
    Ok(newer.or(older))
}

/// `logprobs` says whether, `top_logprobs` with how many alternatives.
fn logprobs(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let top = fields.number("top_logprobs", 0..=MAX_LOGPROBS)?;
    match (fields.flag("logprobs")?, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid(
            "top_logprobs",
            "top_logprobs is only allowed when logprobs is true",
        )),
    }
}
