//! What all endpoints that generate have in common.

use crate::api_error::ApiError;
use crate::app::{App, Submission};
use crate::engine_client::Ending;
use crate::fields::Fields;
use crate::generation_options::GenerationOptions;
use crate::prompt::Prompt;
use crate::request_head::RequestHead;
use crate::served_model::ServedModel;
use crate::sse::{self, AnswerWriter};
use crate::text::TextModel;
use crate::text_delta::{TextDelta, TextStream};
use crate::waiter::Waiter;
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use nano_trace::{Event, Slice};
use std::sync::Arc;

/// A validated request of an endpoint that generates.
///
/// Holds: as many prompts as `max_tokens`, at least one.
pub trait GenerationRequest: Sized + Send + 'static {
    /// How its ids begin.
    const ID_PREFIX: &'static str;

    /// Reads a body's fields. `parsing` ends where work on the prompt begins,
    /// and the work ends when its `waiter` has gone.
    ///
    /// # Errors
    /// Names the field that is wrong, and what it may be.
    fn from_fields(
        fields: &Fields<'_>,
        served: &ServedModel,
        parsing: Slice,
        waiter: &Waiter,
    ) -> Result<Self, ApiError>;

    /// Reads a body.
    ///
    /// # Errors
    /// Those of [`from_fields`](Self::from_fields), and when it is no object.
    fn from_body(body: &[u8], served: &ServedModel, waiter: &Waiter) -> Result<Self, ApiError> {
        let parsing = nano_trace::slice(Event::HttpParse, [body.len() as u64]);
        Self::from_fields(&Fields::parse(body)?, served, parsing, waiter)
    }

    /// Each is answered `options().n` times.
    fn prompts(&self) -> &[Prompt];

    /// For each prompt, at least 1.
    fn max_tokens(&self) -> &[u32];

    /// Of every sequence.
    fn options(&self) -> &GenerationOptions;

    /// What turns its texts into the answer. `id`: the answer's.
    fn writer(self, model: Arc<TextModel>, id: String, model_name: String) -> impl AnswerWriter;
}

/// Handles a request from its body to its answer, whole or as a stream.
pub async fn generate<R: GenerationRequest>(
    State(app): State<Arc<App>>,
    Extension(head): Extension<RequestHead>,
    request: Request,
) -> Result<Response, ApiError> {
    let served = app.ready()?;
    let model = Arc::clone(&served.text);
    // Who finds the server full need not wait for the work on the prompt.
    app.engine.check_room()?;
    let id = format!("{}{}", R::ID_PREFIX, head.id);
    let mut trace = app.begin_trace(&head, &id);
    let parsed = async {
        let body = app.bodies.read(request.into_body()).await?;
        app.preprocess(body.len(), move |waiter| {
            R::from_body(&body, &served, waiter)
        })
        .await
    };
    let request = match parsed.await {
        Ok(request) => request,
        Err(error) => {
            trace.finish(Ending::Error);
            return Err(error);
        }
    };
    let mut texts = app.submit(
        Submission {
            head: &head,
            external_id: &id,
            trace,
            prompts: request.prompts(),
            max_tokens: request.max_tokens(),
            options: request.options(),
        },
        &model,
    )?;
    let streaming = request.options().streaming.is_some();
    let writer = request.writer(model, id, app.names.first().to_owned());
    // Until something came, an error still is an answer with its own status.
    let first = texts.next().await?;
    if streaming {
        return Ok(sse::response(texts, first, writer));
    }
    let deltas = collect(texts, first).await?;
    let size = deltas.iter().map(TextDelta::answer_bytes).sum();
    let write = move |_: &_| {
        let written = writer.whole(deltas);
        written.map_err(|error| ApiError::internal(error.to_string()))
    };
    let bytes = app.preprocess(size, write).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// Everything that comes, until all texts have ended.
async fn collect(mut texts: TextStream, first: Vec<TextDelta>) -> Result<Vec<TextDelta>, ApiError> {
    let mut all = first;
    while !texts.is_over() {
        all.extend(texts.next().await?);
    }
    Ok(all)
}
