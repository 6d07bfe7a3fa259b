//! What clients send, read as the routes do, without a server around it: for
//! fuzz targets, which have bytes and nothing else.

use crate::api_error::ApiError;
use crate::fields::Fields;
use crate::routes::{ChatCompletionRequest, CompletionRequest, GenerationRequest, tokenize};
use crate::served_model::{ServedModel, ServedNames};
use crate::text::TextModel;
use crate::waiter::Waiting;
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::sampling_params::SamplingParams;

/// A request that would go to the engine.
#[derive(Debug)]
pub struct Taken {
    /// Each answered `n` times.
    pub prompt_token_ids: Vec<Vec<u32>>,
    /// For each prompt.
    pub max_tokens: Vec<u32>,
    /// Of every sequence.
    pub sampling: SamplingParams,
    /// Answers to each prompt.
    pub n: u32,
}

/// Reads bodies for one model.
pub struct ClientInput {
    served: ServedModel,
}

impl ClientInput {
    /// Reads for this model, in an engine of these bounds.
    pub fn new(text: TextModel, info: EngineInfo) -> ClientInput {
        ClientInput {
            served: ServedModel {
                names: ServedNames::new(vec!["model".to_owned()]).into(),
                text: text.into(),
                info: info.into(),
            },
        }
    }

    /// A body of `/v1/completions`, or the error's body.
    ///
    /// # Errors
    /// What the client would read.
    pub fn completion(&self, body: &[u8]) -> Result<Taken, serde_json::Value> {
        self.taken::<CompletionRequest>(body)
    }

    /// A body of `/v1/chat/completions`, or the error's body.
    ///
    /// # Errors
    /// What the client would read.
    pub fn chat(&self, body: &[u8]) -> Result<Taken, serde_json::Value> {
        self.taken::<ChatCompletionRequest>(body)
    }

    /// A body of `/tokenize`, or the error's body.
    ///
    /// # Errors
    /// What the client would read.
    pub fn tokenize(&self, body: &[u8]) -> Result<serde_json::Value, serde_json::Value> {
        let fields = Fields::parse(body).map_err(|error| error.body())?;
        tokenize::tokenize_body(&fields, &self.served).map_err(|error| error.body())
    }

    /// A body of `/detokenize`, or the error's body.
    ///
    /// # Errors
    /// What the client would read.
    pub fn detokenize(&self, body: &[u8]) -> Result<serde_json::Value, serde_json::Value> {
        let fields = Fields::parse(body).map_err(|error| error.body())?;
        tokenize::detokenize_body(&fields, &self.served).map_err(|error| error.body())
    }

    fn taken<R: GenerationRequest>(&self, body: &[u8]) -> Result<Taken, serde_json::Value> {
        let waiting = Waiting::begin();
        let request = R::from_body(body, &self.served, &waiting.waiter())
            .map_err(|error: ApiError| error.body())?;
        let ids = request
            .prompts()
            .iter()
            .map(|prompt| prompt.token_ids().to_vec());
        Ok(Taken {
            prompt_token_ids: ids.collect(),
            max_tokens: request.max_tokens().to_vec(),
            sampling: request.options().sampling.clone(),
            n: request.options().n,
        })
    }
}
