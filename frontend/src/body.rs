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
pub async fn read(body: Body, limit: u64) -> Result<Bytes, ApiError> {
    read_with_pauses(body, limit, PAUSE).await
}

async fn read_with_pauses(mut body: Body, limit: u64, pause: Duration) -> Result<Bytes, ApiError> {
    // What is announced as too large is not read at all.
    if body.size_hint().lower() > limit {
        return Err(ApiError::body_too_large(limit));
    }
    let mut bytes = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(pause, body.frame())
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use std::io;
    use tokio::sync::mpsc;

    /// A body that comes as the test sends it.
    fn body() -> (mpsc::UnboundedSender<io::Result<Bytes>>, Body) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let parts = stream::unfold(receiver, async |mut receiver| {
            Some((receiver.recv().await?, receiver))
        });
        (sender, Body::from_stream(parts))
    }

    #[tokio::test]
    async fn a_client_that_pauses_too_long_is_told_so() {
        let (sender, body) = body();
        sender.send(Ok("ab".into())).expect("it is not read yet");
        let refused = read_with_pauses(body, 1000, Duration::from_millis(20)).await;
        assert_eq!(refused, Err(ApiError::body_timeout()));
        assert!(sender.is_closed());
    }

    #[tokio::test]
    async fn a_body_is_taken_up_to_the_limit_and_not_if_it_breaks_off() {
        let (sender, whole) = body();
        for part in ["abc", "de"] {
            sender.send(Ok(part.into())).expect("it is not read yet");
        }
        drop(sender);
        assert_eq!(read(whole, 5).await, Ok("abcde".into()));
        let (sender, longer) = body();
        sender
            .send(Ok("abcdef".into()))
            .expect("it is not read yet");
        assert_eq!(read(longer, 5).await, Err(ApiError::body_too_large(5)));
        // What says its length is refused before it is there.
        let announced = Body::from("abcdef");
        assert_eq!(read(announced, 5).await, Err(ApiError::body_too_large(5)));
        let (sender, broken) = body();
        let error = io::Error::other("gone");
        sender.send(Err(error)).expect("it is not read yet");
        let message = read(broken, 5).await.expect_err("it broke off");
        assert!(message.message().contains("gone"), "{message:?}");
    }
}
