//! A panic ends one request, and its client is told.

use crate::api_error::ApiError;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;

/// What the work comes to, or 500 when it panics; the log has the panic.
///
/// What the work has changed must not be used after that, but where nothing
/// can be half done: locks here are held over no more than one assignment.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, ApiError> {
    let work = AssertUnwindSafe(work).catch_unwind();
    work.await
        .map_err(|_| ApiError::internal("the server failed at this request; its log says more"))
}

/// Around every handler: a panic is its answer, not a connection that breaks off.
pub async fn answer(request: Request, next: Next) -> Response {
    match caught(next.run(request)).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use http_body_util::BodyExt;
    use serde_json::Value;
    use tower::ServiceExt;

    async fn panics() -> &'static str {
        tokio::task::yield_now().await;
        panic!("on purpose")
    }

    #[tokio::test]
    async fn a_handler_that_panics_answers_500_as_errors_do_and_the_next_is_answered() {
        let router = Router::new()
            .route("/panics", get(panics))
            .route("/", get(async || "fine"))
            .layer(from_fn(answer));
        let ask = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).expect("legal");
            let response = router.clone().oneshot(request).await.expect("infallible");
            let status = response.status();
            let body = response.into_body().collect().await.expect("whole");
            (status, body.to_bytes())
        };
        let (status, body) = ask("/panics").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body["error"]["type"], "server_error");
        assert!(body["error"]["message"].is_string());
        assert_eq!(ask("/").await, (StatusCode::OK, "fine".into()));
    }
}
