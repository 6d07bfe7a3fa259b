//! The body of a request, which notes when the connection takes it.

use crate::client_trace::RequestTrace;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body in one piece.
#[derive(Debug)]
pub struct Payload {
    data: Option<Bytes>,
    trace: Option<RequestTrace>,
}

impl Payload {
    /// A body whose request is traced.
    pub fn new(data: Bytes, trace: RequestTrace) -> Payload {
        Payload {
            data: Some(data),
            trace: Some(trace),
        }
    }

    /// No body.
    pub fn empty() -> Payload {
        Payload {
            data: None,
            trace: None,
        }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.data.take();
        if let (Some(_), Some(trace)) = (&data, &self.trace) {
            trace.sent();
        }
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
    }
}
