//! `POST /v1/chat/completions`.

mod convert;
mod types;
mod validate;

use crate::api_error::ApiError;
use crate::app::{App, Submission};
use crate::request_head::RequestHead;
use crate::{body, routes, sse};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use convert::ChatWriter;
use std::slice;
use std::sync::Arc;
use types::ChatCompletionRequest;

pub(super) async fn chat_completions(
    State(app): State<Arc<App>>,
    Extension(head): Extension<RequestHead>,
    request: Request,
) -> Result<Response, ApiError> {
    let (info, model) = app.ready()?;
    let id = format!("chatcmpl-{}", head.id);
    let trace = app.begin_trace(&head, &id);
    let parsed = async {
        let body = body::read(request.into_body(), app.config.max_body_bytes).await?;
        let (shared, model) = (Arc::clone(&app), Arc::clone(&model));
        app.preprocess(body.len(), move || {
            ChatCompletionRequest::from_body(&body, &shared, &model, &info)
        })
        .await
    };
    let (request, trace) = routes::or_finish(trace, parsed.await)?;
    let mut texts = app.submit(
        Submission {
            head: &head,
            external_id: &id,
            trace,
            prompts: slice::from_ref(&request.prompt),
            max_tokens: &[request.max_tokens],
            options: &request.options,
        },
        &model,
    )?;
    let streaming = request.options.streaming.is_some();
    let writer = ChatWriter::new(request, model, id, app.model_name().to_owned());
    // Until something came, an error still is an answer with its own status.
    let first = texts.next().await?;
    if streaming {
        return Ok(sse::response(texts, first, writer));
    }
    let deltas = routes::collect(texts, first).await?;
    routes::json(writer.whole(deltas))
}
