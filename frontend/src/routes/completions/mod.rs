//! `POST /v1/completions`.

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
use convert::CompletionWriter;
use std::sync::Arc;
use types::CompletionRequest;

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    Extension(head): Extension<RequestHead>,
    request: Request,
) -> Result<Response, ApiError> {
    let (info, model) = app.ready()?;
    let id = format!("cmpl-{}", head.id);
    let trace = app.begin_trace(&head, &id);
    let parsed = async {
        let body = body::read(request.into_body(), app.config.max_body_bytes).await?;
        let (shared, model) = (Arc::clone(&app), Arc::clone(&model));
        app.preprocess(body.len(), move || {
            CompletionRequest::from_body(&body, &shared, &model, &info)
        })
        .await
    };
    let (request, trace) = routes::or_finish(trace, parsed.await)?;
    let mut texts = app.submit(
        Submission {
            head: &head,
            external_id: &id,
            trace,
            prompts: &request.prompts,
            max_tokens: &request.max_tokens,
            options: &request.options,
        },
        &model,
    )?;
    let streaming = request.options.streaming.is_some();
    let writer = CompletionWriter::new(request, model, id, app.model_name().to_owned());
    // Until something came, an error still is an answer with its own status.
    let first = texts.next().await?;
    if streaming {
        return Ok(sse::response(texts, first, writer));
    }
    let deltas = routes::collect(texts, first).await?;
    routes::json(writer.whole(deltas))
}
