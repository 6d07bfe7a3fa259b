//! What the server answers, path by path.

mod chat_completions;
mod completions;
mod conversation;
mod generate;
mod health;
mod metrics;
mod models;
pub(crate) mod openapi;
mod profile;
pub(crate) mod tokenize;

use crate::api_error::ApiError;
use crate::app::App;
use crate::panics;
use crate::request_head::RequestHead;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
pub(crate) use chat_completions::ChatCompletionRequest;
pub(crate) use completions::CompletionRequest;
pub(crate) use generate::GenerationRequest;
use generate::generate;
use nano_ipc::lifecycle::boottime_ns;
use nano_ipc::logging::one_line;
use std::sync::Arc;

/// All paths. The profiler's have a key of their own, under /v1 too.
pub fn router(app: Arc<App>) -> Router {
    let v1 = Router::new()
        .route("/models", get(models::models))
        .route("/models/{*name}", get(models::model))
        .route("/completions", post(generate::<CompletionRequest>))
        .route("/chat/completions", post(generate::<ChatCompletionRequest>))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), check_key));
    let profile = Router::new()
        .route("/start_profile", post(profile::start))
        .route("/stop_profile", post(profile::stop))
        .route("/profile/dump", post(profile::dump))
        .route("/profile/status", get(profile::status))
        .route("/profile/trace", get(profile::trace))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            check_profile_key,
        ));
    Router::new()
        .nest("/v1", v1.merge(profile.clone()))
        .merge(profile)
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/health", get(health::health))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .fallback(async |request: Request| ApiError::not_found(request.uri().path()))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(middleware::from_fn(panics::answer))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), frame))
        .with_state(app)
}

/// Around every request: its id and trace context go in and out, and the
/// answer is counted.
async fn frame(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let own_id = format!("{:016x}", app.unique_key());
    let head = RequestHead::new(request.headers(), own_id, boottime_ns());
    // The pattern, not the path: clients must not choose metrics' labels.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    request.extensions_mut().insert(head.clone());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions().get::<ApiError>() {
        let message = one_line(error.message());
        log::info!("{}: {route}: {}: {message}", head.id, response.status());
    }
    head.answer(response.headers_mut());
    app.metrics.http_request(&route, response.status().as_u16());
    response
}

/// Lets only those pass who bring the key of /v1, if there is one.
async fn check_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let_pass(app.config.api_key.as_deref(), request, next).await
}

/// Lets only those pass who bring the profiler's key, if there is one.
async fn check_profile_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let_pass(app.config.profile_api_key.as_deref(), request, next).await
}

async fn let_pass(key: Option<&str>, request: Request, next: Next) -> Response {
    let Some(key) = key else {
        return next.run(request).await;
    };
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes)
        .and_then(bearer);
    if given.is_some_and(|given| equal(given, key.as_bytes())) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    }
}

/// The key after the scheme, whose case is no matter (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
}

/// Compares in a time that does not tell how much is right.
fn equal(given: &[u8], key: &[u8]) -> bool {
    let differences = given.iter().zip(key).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == key.len() && std::hint::black_box(differences) == 0
}
