//! Server-sent events: how an answer goes out while it is generated.

use crate::api_error::ApiError;
use crate::panics::caught;
use crate::text_delta::{TextDelta, TextStream};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use nano_trace::Event;
use serde::Serialize;
use std::convert::Infallible;

/// Who has written so much lets others have their turn on the event loop.
const TURN_BYTES: usize = 64 << 10;

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
        let step = caught(state.step()).await;
        let bytes = step.unwrap_or_else(|error| Some(state.end_with(&error)))?;
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
                        if self.events.bytes.len() >= TURN_BYTES {
                            tokio::task::yield_now().await;
                        }
                    }
                    if self.texts.is_over() {
                        self.writer.close(&mut self.events);
                        self.events.done();
                        self.over = true;
                    }
                }
                Err(error) => return Some(self.end_with(&error)),
            }
            let bytes = self.events.take();
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
        None
    }

    /// The last write. What a panic left half written is no event.
    fn end_with(&mut self, error: &ApiError) -> Bytes {
        self.over = true;
        self.events = Events::default();
        self.events.push(&error.body());
        self.events.take()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_client::EngineClient;
    use crate::engine_client::SlowRules;
    use crate::fields::Fields;
    use crate::generation_options::{GenerationOptions, Limits};
    use crate::metrics::EngineMetrics;
    use crate::test_support::{new_sequence, served_model};
    use http_body_util::BodyExt;
    use nano_ipc::async_connection::split;
    use nano_ipc::connection::Connection;
    use nano_ipc::engine_core_output::EngineCoreOutput;
    use nano_ipc::engine_core_request::RequestId;
    use nano_ipc::to_core::ToCore;
    use nano_ipc::to_frontend::{SchedulerStats, ToFrontend};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// Writes each token's text, and panics at the second.
    struct Panics(u32);

    impl AnswerWriter for Panics {
        fn whole(self, _: Vec<TextDelta>) -> serde_json::Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn open(&mut self, _: &mut Events) {}

        fn delta(&mut self, delta: TextDelta, events: &mut Events) {
            self.0 += 1;
            events.push(&delta.text);
            assert!(self.0 < 2, "on purpose");
        }

        fn close(&mut self, _: &mut Events) {}
    }

    #[tokio::test]
    async fn a_panic_in_mid_stream_is_one_event_ends_the_stream_and_frees_the_engine() {
        let served = served_model();
        let (near, far) = UnixStream::pair().expect("socketpair");
        let metrics = Arc::new(EngineMetrics::new("m").expect("legal names"));
        let near = Connection::from_fd(near.into());
        let engine =
            EngineClient::start(near, 1, 4, metrics, SlowRules::none()).expect("in a runtime");
        let (mut of_core, mut to_client) =
            split(Connection::from_fd(far.into())).expect("in a runtime");
        let ready = ToFrontend::Ready((*served.info).clone());
        to_client.queue(&ready).expect("short");
        to_client.flush().await.expect("it reads");
        while engine.info().is_err() {
            tokio::task::yield_now().await;
        }
        let admission = engine.admit(1).expect("room");
        let generation = admission.submit(vec![new_sequence(9)], 1);
        let limits = Limits {
            info: &served.info,
            defaults: &served.text.generation_defaults().sampling,
            eos_token_ids: &[],
        };
        let fields = Fields::parse(b"{}").expect("an object");
        let options = GenerationOptions::from_fields(&fields, None, None, limits).expect("legal");
        let mut texts = TextStream::new(generation, "x".to_owned(), 1, &options, &served.text);
        let mut send = async |token_id| {
            let outputs = vec![EngineCoreOutput {
                id: RequestId(1),
                token_ids: vec![token_id],
                logprobs: Vec::new(),
                prompt_logprobs: None,
                num_cached_tokens: 0,
                first_step_ns: 1,
                finish_reason: None,
            }];
            let stats = SchedulerStats::default();
            let message = ToFrontend::Outputs { outputs, stats };
            to_client.queue(&message).expect("short");
            to_client.flush().await.expect("it reads");
        };
        let token_ids = served.text.encode("a b", false).expect("tokens");
        send(token_ids[0]).await;
        let first = texts.next().await.expect("no error");
        send(token_ids[1]).await;
        let body = response(texts, first, Panics(0)).into_body();
        let body = body.collect().await.expect("it ends").to_bytes();
        let text = String::from_utf8_lossy(&body);
        let events: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(events[0], r#"data: "a""#);
        assert!(events[1].starts_with(r#"data: {"error":{"#), "{text}");
        assert_eq!(events[2..], [""], "{text}");
        let mut messages = Vec::new();
        for _ in 0..3 {
            messages.push(of_core.receive::<ToCore>().await.expect("connected"));
        }
        assert_eq!(messages[2], ToCore::Abort(RequestId(1)));
    }
}
