//! Reading a request's body, within bounds of size and time.

use crate::api_error::ApiError;
use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use std::time::Duration;

/// How long a client may pause within its body.
const PAUSE: Duration = Duration::from_secs(30);

/// Reads the whole body.
///
/// # Errors
/// When it is larger than `limit`, pauses too long, or breaks off.
pub async fn read(mut body: Body, limit: u64) -> Result<Bytes, ApiError> {
    // What is announced as too large is not read at all.
    if body.size_hint().lower() > limit {
        return Err(ApiError::body_too_large(limit));
    }
    let mut bytes = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(PAUSE, body.frame())
            .await
            .map_err(|_| ApiError::body_timeout())?;
        match frame {
            None => return Ok(bytes.freeze()),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    if (bytes.len() + data.len()) as u64 > limit {
                        return Err(ApiError::body_too_large(limit));
                    }
                    bytes.extend_from_slice(data);
                }
            }
            Some(Err(error)) => {
                return Err(ApiError::malformed(format!(
                    "the body cannot be read: {error}"
                )));
            }
        }
    }
}
