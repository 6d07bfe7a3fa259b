//! The trigger: has servers' profilers record a performance phase.
//!
//! At its begin every server gets `POST /start_profile`, at its end, or when
//! the run is interrupted, `POST /stop_profile`; all at once, two seconds each.
//! Whatever becomes of them, the benchmark goes on: they warn, and are noted.

mod log;

pub use log::{Call, ProfilingLog, StopReason};

use crate::client::{Connector, Payload};
use crate::clock::{Moment, now_iso, sleep_until};
use crate::config::Profiling;
use crate::interrupt::Interrupt;
use crate::url::Url;
use clap::ValueEnum;
use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, HeaderValue};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// What kind of server is profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// nano-serve
    Nano,
    /// vLLM
    Vllm,
    /// SGLang
    Sglang,
    /// Megatron-LM
    Megatron,
}

impl Engine {
    /// Where the profiler of the server at `url` listens.
    fn base(self, url: &Url) -> Url {
        match self {
            // It has the routes under /v1, too.
            Engine::Megatron => url.clone(),
            Engine::Nano | Engine::Vllm | Engine::Sglang => url.server_root(),
        }
    }
}

/// So long may an answer take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// So long after a second interrupt: enough to send what was not sent yet.
const GRACE: Duration = Duration::from_millis(200);
/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 64 << 10;

/// Starts and stops profilers, and notes what became of it.
#[derive(Debug)]
pub struct Trigger {
    bases: Vec<Url>,
    /// Those that record, because their start was answered with 200.
    started: Vec<Url>,
    caller: Arc<Caller>,
    log: ProfilingLog,
}

#[derive(Debug)]
struct Caller {
    connector: Connector,
    authorization: Option<HeaderValue>,
}

impl Trigger {
    /// A trigger of these profilers.
    pub fn new(
        profiling: &Profiling,
        connector: Connector,
        authorization: Option<HeaderValue>,
    ) -> Trigger {
        let mut bases: Vec<Url> = Vec::new();
        for url in &profiling.urls {
            let base = profiling.engine.base(url);
            // A server that is asked under two names is started once.
            if !bases.contains(&base) {
                bases.push(base);
            }
        }
        Trigger {
            bases,
            started: Vec::new(),
            caller: Arc::new(Caller {
                connector,
                authorization,
            }),
            log: ProfilingLog::new(profiling.engine),
        }
    }

    /// Begin of a performance phase. Returns when all have answered, or will not.
    pub async fn start(&mut self, interrupt: &Interrupt) {
        let calls = self
            .call_all(&self.bases, "/start_profile", interrupt)
            .await;
        for (base, call) in self.bases.clone().into_iter().zip(calls) {
            call.warn();
            if call.status == Some(200) {
                self.started.push(base);
            }
            self.log.starts.push(call);
        }
    }

    /// End of a performance phase: stops what was started. A second interrupt
    /// ends the waiting, not the sending.
    pub async fn stop(&mut self, reason: StopReason, interrupt: &Interrupt) {
        let started = std::mem::take(&mut self.started);
        let calls = self.call_all(&started, "/stop_profile", interrupt).await;
        for mut call in calls {
            call.warn();
            call.stop_reason = Some(reason);
            self.log.stops.push(call);
        }
    }

    /// What was done so far.
    pub fn log(&self) -> &ProfilingLog {
        &self.log
    }

    async fn call_all(&self, bases: &[Url], path: &str, interrupt: &Interrupt) -> Vec<Call> {
        let begun: Vec<(Call, JoinHandle<Result<u16, String>>)> = bases
            .iter()
            .map(|base| {
                let url = base.join(path);
                let call = Call {
                    url: url.to_string(),
                    sent_at_ns: Moment::now().ns(),
                    sent_at_iso: now_iso(),
                    status: None,
                    error: None,
                    stop_reason: None,
                };
                let (caller, interrupt) = (Arc::clone(&self.caller), interrupt.clone());
                let answer = tokio::spawn(async move { caller.post(&url, interrupt).await });
                (call, answer)
            })
            .collect();
        let mut calls = Vec::with_capacity(begun.len());
        for (mut call, answer) in begun {
            match answer.await {
                Ok(Ok(status)) => call.status = Some(status),
                Ok(Err(error)) => call.error = Some(error),
                Err(error) => call.error = Some(error.to_string()),
            }
            calls.push(call);
        }
        calls
    }
}

impl Caller {
    /// The status of an answer to a POST without a body.
    async fn post(&self, url: &Url, mut interrupt: Interrupt) -> Result<u16, String> {
        let late = sleep_until(Moment::now() + TIMEOUT);
        let hurried = async {
            interrupt.second().await;
            sleep(GRACE).await;
        };
        tokio::select! {
            biased;
            status = self.exchange(url) => status,
            () = late => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
            () = hurried => Err("not waited for: interrupted again".to_owned()),
        }
    }

    async fn exchange(&self, url: &Url) -> Result<u16, String> {
        let connection = self.connector.connect(url.origin()).await;
        let mut connection = connection.map_err(|error| format!("no connection: {error}"))?;
        let mut request = Request::post(url.path())
            .header(HOST, url.authority())
            .header(CONNECTION, "close")
            .header(CONTENT_LENGTH, "0");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Payload::empty())
            .map_err(|error| error.to_string())?;
        let response = connection.send(request).await;
        let response = response.map_err(|error| error.into_error().to_string())?;
        let status = response.status().as_u16();
        // The answer counts; its body is read so that the server is not cut.
        let _ = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await;
        Ok(status)
    }
}
