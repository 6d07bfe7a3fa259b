//! Reading requests' bodies, within bounds of size, time and memory.

use crate::api_error::ApiError;
use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// How long a client may pause within its body.
const PAUSE: Duration = Duration::from_secs(30);
/// How long a body may take as a whole, however steadily it trickles.
const WHOLE: Duration = Duration::from_secs(300);
/// So many of the largest bodies may be held at once.
const LARGEST_AT_ONCE: u64 = 8;
/// What every body may have beside that, so that those who hold large ones
/// cannot keep others from sending small ones; the number of connections
/// bounds it.
const SMALL_BYTES: usize = 64 << 10;
/// What the bytes beyond it are counted in.
const UNIT_BYTES: usize = 1 << 10;

/// Reads requests' bodies.
///
/// Holds: beyond [`SMALL_BYTES`] of each, bodies that are held at one time have
/// at most [`LARGEST_AT_ONCE`] times `limit` bytes together.
pub struct Bodies {
    /// Bytes of one body.
    limit: u64,
    pause: Duration,
    whole: Duration,
    /// Units that are free.
    units: Arc<Semaphore>,
}

/// A request's whole body.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    /// Units that it takes.
    _share: Option<OwnedSemaphorePermit>,
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bodies {
    /// None may be larger than `limit` bytes.
    pub fn new(limit: u64) -> Bodies {
        let units = limit.saturating_mul(LARGEST_AT_ONCE) / UNIT_BYTES as u64;
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        Bodies {
            limit,
            pause: PAUSE,
            whole: WHOLE,
            units: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
        }
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// When it is too large, alone or with the others, comes too slowly, or
    /// breaks off.
    pub async fn read(&self, mut body: axum::body::Body) -> Result<Body, ApiError> {
        // What is announced as too large is not read at all.
        if body.size_hint().lower() > self.limit {
            return Err(ApiError::body_too_large(self.limit));
        }
        let announced = body.size_hint().exact();
        let end = Instant::now() + self.whole;
        let mut bytes = BytesMut::new();
        let mut share = None;
        loop {
            let patience = end.min(Instant::now() + self.pause);
            let frame = timeout_at(patience, body.frame())
                .await
                .map_err(|_| ApiError::body_timeout())?;
            let data = match frame {
                None => break,
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    return Err(ApiError::malformed(format!(
                        "the body cannot be read: {error}"
                    )));
                }
            };
            let len = bytes.len() + data.len();
            if len as u64 > self.limit {
                return Err(ApiError::body_too_large(self.limit));
            }
            self.grow(&mut share, len)?;
            reserve(&mut bytes, data.len(), announced);
            bytes.extend_from_slice(&data);
        }
        Ok(Body {
            bytes: bytes.freeze(),
            _share: share,
        })
    }

    /// Makes a body's share what `len` bytes of it take.
    fn grow(&self, share: &mut Option<OwnedSemaphorePermit>, len: usize) -> Result<(), ApiError> {
        let units = len.saturating_sub(SMALL_BYTES).div_ceil(UNIT_BYTES);
        let held = share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if units <= held {
            return Ok(());
        }
        let full = |_| ApiError::bodies_too_large(self.limit.saturating_mul(LARGEST_AT_ONCE));
        let more = u32::try_from(units - held).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.units)
            .try_acquire_many_owned(more)
            .map_err(full)?;
        match share {
            Some(share) => share.merge(more),
            None => *share = Some(more),
        }
        Ok(())
    }
}

/// Makes room for what comes next: once for all that is announced, so that no
/// copy twice as large grows beside it. Who only announces gets little.
fn reserve(bytes: &mut BytesMut, next: usize, announced: Option<u64>) {
    let whole = announced.and_then(|whole| usize::try_from(whole).ok());
    match whole {
        Some(whole) if bytes.len() + next > SMALL_BYTES && whole > bytes.capacity() => {
            bytes.reserve(whole.saturating_sub(bytes.len()));
        }
        _ => bytes.reserve(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;
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

    async fn refused(bodies: &Bodies, body: Body) -> ApiError {
        bodies.read(body).await.expect_err("it is not taken")
    }

    #[tokio::test]
    async fn a_client_that_pauses_or_trickles_too_long_is_told_so() {
        let mut bodies = Bodies::new(1000);
        bodies.pause = Duration::from_millis(20);
        let (sender, paused) = body();
        sender.send(Ok("ab".into())).expect("it is not read yet");
        assert_eq!(refused(&bodies, paused).await, ApiError::body_timeout());
        assert!(sender.is_closed());
        // Never pauses, and never ends.
        let mut bodies = Bodies::new(1000);
        bodies.whole = Duration::from_millis(50);
        let parts = stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok::<_, io::Error>(Bytes::new()), ()))
        });
        let trickles = Body::from_stream(parts);
        assert_eq!(refused(&bodies, trickles).await, ApiError::body_timeout());
    }

    #[tokio::test]
    async fn a_body_is_taken_up_to_the_limit_and_not_if_it_breaks_off() {
        let bodies = Bodies::new(5);
        let (sender, whole) = body();
        for part in ["abc", "de"] {
            sender.send(Ok(part.into())).expect("it is not read yet");
        }
        drop(sender);
        assert_eq!(&*bodies.read(whole).await.expect("fits"), b"abcde");
        let (sender, longer) = body();
        sender
            .send(Ok("abcdef".into()))
            .expect("it is not read yet");
        assert_eq!(refused(&bodies, longer).await, ApiError::body_too_large(5));
        // What says its length is refused before it is there.
        let announced = Body::from("abcdef");
        let error = refused(&bodies, announced).await;
        assert_eq!(error, ApiError::body_too_large(5));
        let (sender, broken) = body();
        let error = io::Error::other("gone");
        sender.send(Err(error)).expect("it is not read yet");
        let message = refused(&bodies, broken).await;
        assert!(message.message().contains("gone"), "{message:?}");
    }

    #[tokio::test]
    async fn large_bodies_are_held_up_to_a_bound_and_small_ones_are_always_taken() {
        const LIMIT: usize = 1 << 20;
        let bodies = Bodies::new(LIMIT as u64);
        let of = |len| Body::from(vec![b' '; len]);
        let mut held = Vec::new();
        for _ in 0..LARGEST_AT_ONCE {
            held.push(bodies.read(of(LIMIT)).await.expect("room"));
        }
        // Each was small in part, and what that leaves is taken too.
        let rest = LARGEST_AT_ONCE as usize * SMALL_BYTES;
        held.push(bodies.read(of(rest + SMALL_BYTES)).await.expect("room"));
        let error = refused(&bodies, of(SMALL_BYTES + 1)).await;
        assert!(error.message().contains("8388608 bytes"), "{error:?}");
        let answer = error.into_response();
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(answer.headers().contains_key("retry-after"));
        held.push(bodies.read(of(SMALL_BYTES)).await.expect("small"));
        // One that breaks off in the middle gives back what it had.
        held.remove(0);
        let (sender, broken) = body();
        sender
            .send(Ok(vec![b' '; LIMIT].into()))
            .expect("it is not read yet");
        sender
            .send(Err(io::Error::other("gone")))
            .expect("it is not read yet");
        assert!(refused(&bodies, broken).await.message().contains("gone"));
        assert_eq!(bodies.read(of(LIMIT)).await.expect("room").len(), LIMIT);
    }

    #[test]
    fn an_announced_body_takes_the_room_that_it_needs_and_no_more() {
        const WHOLE: usize = 600 << 10;
        let mut bytes = BytesMut::new();
        reserve(&mut bytes, 1000, Some(WHOLE as u64));
        assert!(bytes.capacity() < SMALL_BYTES, "nothing has come yet");
        for _ in 0..WHOLE / 1000 {
            reserve(&mut bytes, 1000, Some(WHOLE as u64));
            bytes.extend_from_slice(&[b' '; 1000]);
        }
        reserve(&mut bytes, WHOLE % 1000, Some(WHOLE as u64));
        bytes.extend_from_slice(&[b' '; WHOLE % 1000]);
        // Grown by doubling, it would be a million.
        assert!(
            bytes.capacity() < WHOLE + WHOLE / 10,
            "{}",
            bytes.capacity()
        );
    }
}
