//! Requests that are not taken in.

use crate::scheduler::Scheduler;
use crate::sequence::ClientId;
use nano_ipc::engine_core_request::EngineCoreRequest;

/// Why a request is not taken in. Frontends check all but the queue's length
/// by themselves and answer more politely; the core does not rely on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its id is that of an open request. That one goes on.
    #[error("request id {0} is already open on this connection")]
    DuplicateId(u64),
    /// There is nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// There is nothing to do.
    #[error("max_tokens must be at least 1")]
    NoTokensAskedFor,
    /// It names a token that the model does not have.
    #[error("token id {token_id} is not below the vocabulary's size {vocab_size}")]
    UnknownToken {
        /// What the request names.
        token_id: u32,
        /// Rows of the model's lm_head.
        vocab_size: u32,
    },
    /// It can end up longer than the context, or than all KV blocks together.
    #[error(
        "prompt of {num_prompt_tokens} tokens and max_tokens {max_tokens} exceed the context of {max_model_len} tokens"
    )]
    TooLong {
        /// Length of its prompt.
        num_prompt_tokens: usize,
        /// Length of its output at most.
        max_tokens: usize,
        /// What fits.
        max_model_len: usize,
    },
    /// As many wait as may.
    #[error("{0} requests wait already")]
    QueueFull(usize),
}

impl Scheduler {
    pub(super) fn check_request(
        &self,
        client: ClientId,
        request: &EngineCoreRequest,
    ) -> Result<(), Refusal> {
        let num_prompt_tokens = request.prompt_token_ids.len();
        let max_tokens = request.max_tokens as usize;
        if self.by_request.contains_key(&(client, request.id)) {
            return Err(Refusal::DuplicateId(request.id.0));
        }
        if num_prompt_tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if max_tokens == 0 {
            return Err(Refusal::NoTokensAskedFor);
        }
        let biased = request
            .sampling
            .logit_bias
            .iter()
            .map(|(token_id, _)| token_id);
        let mut named = request.prompt_token_ids.iter().chain(biased);
        if let Some(token_id) = named.find(|token_id| **token_id >= self.vocab_size) {
            return Err(Refusal::UnknownToken {
                token_id: *token_id,
                vocab_size: self.vocab_size,
            });
        }
        if num_prompt_tokens + max_tokens > self.max_model_len.min(self.kv_cache.num_slots()) {
            return Err(Refusal::TooLong {
                num_prompt_tokens,
                max_tokens,
                max_model_len: self.max_model_len.min(self.kv_cache.num_slots()),
            });
        }
        if self.waiting.len() >= self.max_waiting {
            return Err(Refusal::QueueFull(self.waiting.len()));
        }
        Ok(())
    }
}
