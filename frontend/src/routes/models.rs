//! `GET /v1/models` and `GET /v1/models/{id}`.

use crate::api_error::ApiError;
use crate::app::App;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Vec<Value> = app.names.iter().map(|name| card(&app, name)).collect();
    Json(json!({"object": "list", "data": data}))
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.names.check(&name)?;
    Ok(Json(card(&app, &name)))
}

fn card(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "nano-serve",
        "root": app.config.model.to_string_lossy(),
        "parent": null,
        "max_model_len": app.engine.info().ok().map(|info| info.max_model_len),
    })
}
