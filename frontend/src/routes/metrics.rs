//! `GET /metrics`.

use crate::api_error::ApiError;
use crate::app::App;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let flight = app.lifecycle().profile().flight_counts();
    let text = app
        .metrics
        .text(app.engine.num_open(), &flight)
        .map_err(|error| ApiError::internal(error.to_string()))?;
    let kind = [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)];
    Ok((kind, text).into_response())
}
