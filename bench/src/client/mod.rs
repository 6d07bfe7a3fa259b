//! One request, from when it is due to its end.

mod answer;
mod chunk;
mod connection;
pub mod failure;
mod payload;
mod sse;
mod watchdog;

pub use connection::{Connector, TlsError};
pub use payload::Payload;

use crate::client_trace::RequestTrace;
use crate::clock::{Moment, sleep_until};
use crate::config::{Config, Timeouts};
use crate::interrupt::Interrupt;
use crate::options::Api;
use crate::record::{Outcome, RequestRecord, Times};
use crate::schedule::Planned;
use crate::url::Url;
use answer::Answer;
use bytes::Bytes;
use connection::{Connection, Pool};
use failure::{Failure, FailureKind};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use watchdog::Watchdog;

/// Bytes of an answer that is no stream, at most.
const MAX_BODY: usize = 256 << 20;
/// Bytes of an error's text that are read.
const MAX_ERROR: usize = 64 << 10;
/// So long after its last event may a stream still end; later, its connection
/// is given up, and the request is no worse for it.
const END_WITHIN: Duration = Duration::from_millis(100);

/// Sends requests to the servers of a run, in turn.
#[derive(Debug)]
pub struct Client {
    endpoints: Vec<Endpoint>,
    authorization: Option<HeaderValue>,
    stream: bool,
    connector: Connector,
    timeouts: Timeouts,
    interrupt: Interrupt,
    /// Chunks of output that came, for whoever watches.
    chunks: AtomicU64,
}

#[derive(Debug)]
struct Endpoint {
    url: Url,
    pool: Pool,
}

/// The value of an `Authorization` header.
pub fn authorization(api_key: Option<&str>) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", api_key?)).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What a request has seen so far; whatever becomes of it, this stays.
#[derive(Debug, Default)]
struct Seen {
    connected: Option<Moment>,
    head: Option<Moment>,
    answer: Answer,
}

impl Client {
    /// A client of the run's servers.
    pub fn new(config: &Config, connector: Connector, interrupt: Interrupt) -> Client {
        let path = match config.api {
            Api::Chat => "/chat/completions",
            Api::Completions => "/completions",
        };
        let endpoint = |url: &Url| Endpoint {
            url: url.join(path),
            pool: Pool::default(),
        };
        Client {
            endpoints: config.endpoints.iter().map(endpoint).collect(),
            authorization: authorization(config.api_key.as_deref()),
            stream: config.stream,
            connector,
            timeouts: config.timeouts,
            interrupt,
            chunks: AtomicU64::new(0),
        }
    }

    /// So many chunks of output came so far.
    pub fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }

    /// Performs a request; it ends at the latest when its time is out, or when
    /// the run is interrupted.
    pub async fn perform(
        &self,
        planned: Planned,
        load: usize,
        trace: RequestTrace,
    ) -> RequestRecord {
        let started = Moment::now();
        let place = (planned.index % self.endpoints.len() as u64) as usize;
        let mut seen = Seen::default();
        let watchdog = Watchdog::new(self.timeouts, started);
        let mut interrupt = self.interrupt.clone();
        let result = tokio::select! {
            biased;
            result = self.exchange(&self.endpoints[place], &planned, &mut seen, &watchdog, &trace) => result,
            failure = watchdog.bites() => Err(failure),
            () = interrupt.first() => Err(Failure::aborted()),
        };
        let ended = seen.answer.done_at().unwrap_or_else(Moment::now);
        let outcome = match result {
            Ok(()) => Outcome::Complete,
            Err(failure) if failure.kind == FailureKind::Aborted => Outcome::Aborted,
            Err(failure) => Outcome::Failed(failure),
        };
        trace.end(seen.answer.output_tokens(), &outcome);
        RequestRecord {
            index: planned.index,
            load,
            endpoint: place,
            times: Times {
                intended: planned.intended,
                started,
                connected: seen.connected,
                sent: trace.sent_at(),
                head: seen.head,
                ended,
            },
            trace_id: trace.trace_id(),
            prompt_tokens: seen.answer.prompt_tokens(),
            output_tokens: seen.answer.output_tokens(),
            chunks: seen.answer.into_chunks(),
            outcome,
        }
    }

    async fn exchange(
        &self,
        endpoint: &Endpoint,
        planned: &Planned,
        seen: &mut Seen,
        watchdog: &Watchdog,
        trace: &RequestTrace,
    ) -> Result<(), Failure> {
        let (connection, response) = self.send(endpoint, planned, seen, trace).await?;
        let now = Moment::now();
        watchdog.feed(now);
        seen.head = Some(now);
        trace.head();
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        let is_json = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        let mut body = response.into_body();
        if !self.stream || is_json {
            let bytes = Limited::new(body, MAX_BODY).collect().await;
            let bytes = bytes.map_err(|error| Failure::new(FailureKind::CutStream, error))?;
            seen.answer.whole(&bytes.to_bytes(), self.stream)?;
            endpoint.pool.put(connection);
            return Ok(());
        }
        while !seen.answer.is_done() {
            let Some(frame) = body.frame().await else {
                return seen.answer.ended();
            };
            let frame = frame.map_err(|error| Failure::new(FailureKind::CutStream, error))?;
            if let Some(data) = frame.data_ref() {
                let now = Moment::now();
                watchdog.feed(now);
                let chunks = seen.answer.stream(data, now)?;
                self.chunks.fetch_add(chunks as u64, Ordering::Relaxed);
                trace.tokens(chunks);
            }
        }
        let rest = tokio::time::timeout(END_WITHIN, body.frame()).await;
        if matches!(rest, Ok(None)) {
            endpoint.pool.put(connection);
        }
        Ok(())
    }

    /// Sends the request on a connection that is open, or on a new one; waits
    /// for the head of the answer.
    async fn send(
        &self,
        endpoint: &Endpoint,
        planned: &Planned,
        seen: &mut Seen,
        trace: &RequestTrace,
    ) -> Result<(Connection, Response<Incoming>), Failure> {
        let mut request = Some(self.request(endpoint, planned, trace)?);
        trace.connecting();
        loop {
            let (mut connection, is_new) = match endpoint.pool.take().await {
                Some(connection) => (connection, false),
                None => (self.connect(&endpoint.url).await?, true),
            };
            seen.connected = Some(Moment::now());
            trace.sending();
            let Some(next) = request.take() else {
                return Err(Failure::new(FailureKind::NoResponse, "the request is gone"));
            };
            match connection.send(next).await {
                Ok(response) => return Ok((connection, response)),
                Err(mut error) => match error.take_message() {
                    // The server had closed the idle connection: nothing was sent.
                    Some(unsent) if !is_new => request = Some(unsent),
                    _ => {
                        return Err(Failure::new(FailureKind::NoResponse, error.into_error()));
                    }
                },
            }
        }
    }

    async fn connect(&self, url: &Url) -> Result<Connection, Failure> {
        let deadline = Moment::now() + self.timeouts.connect;
        tokio::select! {
            biased;
            connection = self.connector.connect(url.origin()) =>
                connection.map_err(|error| Failure::new(FailureKind::Connect, error)),
            () = sleep_until(deadline) =>
                Err(Failure::new(FailureKind::ConnectTimeout, format!("{:?}", self.timeouts.connect))),
        }
    }

    fn request(
        &self,
        endpoint: &Endpoint,
        planned: &Planned,
        trace: &RequestTrace,
    ) -> Result<Request<Payload>, Failure> {
        let accept = if self.stream {
            "text/event-stream"
        } else {
            "application/json"
        };
        let mut request = Request::post(endpoint.url.path())
            .header(HOST, endpoint.url.authority())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, accept)
            .header(
                USER_AGENT,
                concat!("nano-bench/", env!("CARGO_PKG_VERSION")),
            )
            .header("traceparent", trace.traceparent());
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request
            .body(Payload::new(planned.body.clone(), trace.clone()))
            .map_err(|error| Failure::new(FailureKind::Connect, error))
    }
}

/// What a server said that did not answer 200.
async fn refusal(response: Response<Incoming>) -> Failure {
    let status = response.status();
    let text = Limited::new(response.into_body(), MAX_ERROR)
        .collect()
        .await;
    let text = text
        .map(|text| text.to_bytes())
        .unwrap_or_else(|_| Bytes::new());
    Failure::new(
        FailureKind::Http(status.as_u16()),
        String::from_utf8_lossy(&text),
    )
}
