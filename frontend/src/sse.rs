//! Server-sent events: how an answer goes out while it is generated.

use crate::api_error::ApiError;
use crate::text_delta::{TextDelta, TextStream};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use nano_trace::Event;
use serde::Serialize;
use std::convert::Infallible;

/// Events that go out in one write.
#[derive(Debug, Default)]
pub struct Events {
    bytes: BytesMut,
}

impl Events {
    /// Adds one event: one line of JSON.
    pub fn push<T: Serialize>(&mut self, event: &T) {
        let before = self.bytes.len();
        let slice = nano_trace::slice(Event::SseWrite, []);
        self.bytes.put_slice(b"data: ");
        // Our own chunk types have string keys and finite numbers only, which
        // are all that JSON could refuse. Its text never has a line break.
        if let Err(error) = serde_json::to_writer((&mut self.bytes).writer(), event) {
            log::error!("an event cannot be written: {error}");
            self.bytes.truncate(before);
            return;
        }
        self.bytes.put_slice(b"\n\n");
        slice.end([(self.bytes.len() - before) as u64]);
    }

    fn done(&mut self) {
        self.bytes.put_slice(b"data: [DONE]\n\n");
    }

    fn take(&mut self) -> Bytes {
        self.bytes.split().freeze()
    }
}

/// Turns the texts of one request into its endpoint's answer.
pub trait AnswerWriter: Send + 'static {
    /// The answer in one piece, from everything that came.
    ///
    /// # Errors
    /// When JSON cannot say it.
    fn whole(self, deltas: Vec<TextDelta>) -> serde_json::Result<Vec<u8>>;
    /// In chunks: what goes before all text.
    fn open(&mut self, events: &mut Events);
    /// One sequence's news.
    fn delta(&mut self, delta: TextDelta, events: &mut Events);
    /// What goes after all text, before `[DONE]`.
    fn close(&mut self, events: &mut Events);
}

struct State<W> {
    texts: TextStream,
    writer: W,
    events: Events,
    /// What came before the response began.
    first: Option<Vec<TextDelta>>,
    over: bool,
}

/// The response that streams `texts`, of which `first` came already. All that
/// came in one wake goes out in one write. An error in mid-stream is one event
/// and ends the stream.
pub fn response<W: AnswerWriter>(texts: TextStream, first: Vec<TextDelta>, writer: W) -> Response {
    let state = State {
        texts,
        writer,
        events: Events::default(),
        first: Some(first),
        over: false,
    };
    let chunks = stream::unfold(state, |mut state| async move {
        let bytes = state.step().await?;
        Some((Ok::<Bytes, Infallible>(bytes), state))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Reverse proxies must not collect the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<W: AnswerWriter> State<W> {
    /// The next write; `None` when the stream is over.
    async fn step(&mut self) -> Option<Bytes> {
        while !self.over {
            match self.news().await {
                Ok(deltas) => {
                    for delta in deltas {
                        self.writer.delta(delta, &mut self.events);
                    }
                    if self.texts.is_over() {
                        self.writer.close(&mut self.events);
                        self.events.done();
                        self.over = true;
                    }
                }
                Err(error) => {
                    self.events.push(&error.body());
                    self.over = true;
                }
            }
            let bytes = self.events.take();
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
        None
    }

    async fn news(&mut self) -> Result<Vec<TextDelta>, ApiError> {
        match self.first.take() {
            Some(first) => {
                self.writer.open(&mut self.events);
                Ok(first)
            }
            None => self.texts.next().await,
        }
    }
}
