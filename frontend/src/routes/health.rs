//! `GET /health`, `GET /version`.

use crate::api_error::ApiError;
use crate::app::App;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.health().map_err(ApiError::unavailable)?;
    Ok(Json(json!({"status": "ok"})))
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}
