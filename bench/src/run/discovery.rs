//! What servers say of themselves.

use crate::client::{Connector, Payload};
use crate::clock::{Moment, sleep_until};
use crate::url::Url;
use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue};
use serde_json::Value;
use std::time::Duration;

/// So long may an answer take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 1 << 20;

/// Asks servers, before anything is measured.
pub(super) struct Discovery<'a> {
    connector: &'a Connector,
    authorization: Option<HeaderValue>,
}

impl Discovery<'_> {
    pub(super) fn new(connector: &Connector, authorization: Option<HeaderValue>) -> Discovery<'_> {
        Discovery {
            connector,
            authorization,
        }
    }

    /// The first model that any of the servers lists.
    pub(super) async fn model(&self, endpoints: &[Url]) -> Result<String, String> {
        let mut why = "no server was asked".to_owned();
        for endpoint in endpoints {
            let url = endpoint.join("/models");
            match self.get(&url).await {
                Ok(answer) => match answer.pointer("/data/0/id").and_then(Value::as_str) {
                    Some(model) => return Ok(model.to_owned()),
                    None => why = format!("{url} lists none"),
                },
                Err(error) => why = format!("{url} does not tell: {error}"),
            }
        }
        Err(why)
    }

    /// What each server's `/version` says.
    pub(super) async fn versions(&self, endpoints: &[Url]) -> Vec<Option<String>> {
        let mut versions = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let answer = self.get(&endpoint.server_root().join("/version")).await;
            let version = answer.ok().and_then(|answer| {
                answer
                    .get("version")
                    .and_then(Value::as_str)
                    .map(str::to_owned)
            });
            versions.push(version);
        }
        versions
    }

    async fn get(&self, url: &Url) -> Result<Value, String> {
        let late = sleep_until(Moment::now() + TIMEOUT);
        tokio::select! {
            biased;
            answer = self.exchange(url) => answer,
            () = late => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        }
    }

    async fn exchange(&self, url: &Url) -> Result<Value, String> {
        let connection = self.connector.connect(url.origin()).await;
        let mut connection = connection.map_err(|error| error.to_string())?;
        let mut request = Request::get(url.path())
            .header(HOST, url.authority())
            .header(CONNECTION, "close");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Payload::empty())
            .map_err(|error| error.to_string())?;
        let response = connection.send(request).await;
        let response = response.map_err(|error| error.into_error().to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        if !status.is_success() {
            return Err(format!("status {status}"));
        }
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }
}
