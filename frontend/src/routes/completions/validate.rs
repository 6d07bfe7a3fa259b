//! From a body to a [`CompletionRequest`].

use super::convert::CompletionWriter;
use super::types::CompletionRequest;
use crate::api_error::ApiError;
use crate::fields::Fields;
use crate::generation_options::{GenerationOptions, Limits, MAX_LOGPROBS};
use crate::logprobs::{check_answer_entries, check_prompt_entries};
use crate::prompt::Prompt;
use crate::routes::generate::GenerationRequest;
use crate::served_model::ServedModel;
use crate::sse::AnswerWriter;
use crate::text::TextModel;
use crate::waiter::Waiter;
use nano_trace::Slice;
use std::sync::Arc;

/// Most tokens of an answer where the client does not say, as OpenAI has it.
const DEFAULT_MAX_TOKENS: u32 = 16;

impl GenerationRequest for CompletionRequest {
    const ID_PREFIX: &'static str = "cmpl-";

    fn from_fields(
        fields: &Fields<'_>,
        served: &ServedModel,
        parsing: Slice,
        waiter: &Waiter,
    ) -> Result<CompletionRequest, ApiError> {
        let (model, info) = (&*served.text, &*served.info);
        served.names.check_field(fields)?;
        let echo = fields.flag("echo")?;
        let asked: Option<u32> = fields.number("max_tokens", 0..=u32::MAX)?;
        let only_echo = asked == Some(0);
        if only_echo && !echo {
            return Err(ApiError::invalid(
                "max_tokens",
                "max_tokens must be at least 1 unless echo is true, it is 0",
            ));
        }
        let logprobs = fields.number("logprobs", 0..=MAX_LOGPROBS)?;
        let limits = Limits {
            info,
            defaults: &model.generation_defaults().sampling,
            eos_token_ids: &model.generation_defaults().eos_token_ids,
        };
        let max_tokens = asked.map(|asked| asked.max(1));
        let mut options = GenerationOptions::from_fields(fields, max_tokens, logprobs, limits)?;
        let prompt_logprobs = options.sampling.prompt_logprobs;
        if echo && logprobs.is_some() {
            // The echoed prompt has logprobs too.
            options.sampling.prompt_logprobs = prompt_logprobs.max(logprobs);
        }
        let add_special = fields.get("add_special_tokens")?.unwrap_or(true);
        drop(parsing);
        let prompts = Prompt::from_fields(fields, add_special, model, info, waiter)?;
        // Each answer has its own.
        let echoed = logprobs.filter(|_| echo);
        let entries = [echoed, prompt_logprobs].into_iter().flatten();
        check_prompt_entries(&prompts, options.n, entries.map(|top| top + 1).sum())?;
        let max_tokens: Vec<u32> = prompts
            .iter()
            .map(|prompt| options.max_tokens_for(prompt, Some(DEFAULT_MAX_TOKENS), info))
            .collect::<Result<_, _>>()?;
        check_answer_entries(&max_tokens, &options)?;
        Ok(CompletionRequest {
            prompts,
            max_tokens,
            options,
            echo,
            only_echo,
            prompt_logprobs,
        })
    }

    fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    fn max_tokens(&self) -> &[u32] {
        &self.max_tokens
    }

    fn options(&self) -> &GenerationOptions {
        &self.options
    }

    fn writer(self, model: Arc<TextModel>, id: String, model_name: String) -> impl AnswerWriter {
        CompletionWriter::new(self, model, id, model_name)
    }
}
