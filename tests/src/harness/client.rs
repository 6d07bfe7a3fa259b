//! A client of the server's HTTP interface.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use ureq::Agent;

fn agent(timeout: Duration) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(timeout))
        // A connection kept from before would hide that nobody listens.
        .max_idle_connections(0)
        .proxy(None)
        .build()
        .new_agent()
}

/// Status and body of a GET, or that there was no answer.
pub fn get(url: &str) -> Result<(u16, String), String> {
    let mut response = agent(Duration::from_secs(10))
        .get(url)
        .call()
        .map_err(|error| error.to_string())?;
    let body = response.body_mut().read_to_string();
    Ok((response.status().as_u16(), body.map_err(|e| e.to_string())?))
}

/// Status and JSON of a POST.
pub fn post(url: &str, body: &Value) -> Result<(u16, Value), String> {
    let (status, text) = post_for_text(url, body)?;
    let json = serde_json::from_str(&text).map_err(|_| format!("not JSON: {text}"))?;
    Ok((status, json))
}

/// Status and body of a POST.
pub fn post_for_text(url: &str, body: &Value) -> Result<(u16, String), String> {
    let mut response = agent(Duration::from_secs(120))
        .post(url)
        .header("Content-Type", "application/json")
        .send(body.to_string())
        .map_err(|error| error.to_string())?;
    let text = response
        .body_mut()
        .read_to_string()
        .map_err(|error| error.to_string())?;
    Ok((response.status().as_u16(), text))
}

/// What a streaming client sees.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// The status line came.
    Status(u16),
    /// One `data:` line.
    Data(Value),
    /// `data: [DONE]`.
    Done,
    /// The connection ended; whether the response was whole as HTTP.
    End {
        /// The last chunk came.
        whole: bool,
    },
}

/// A streaming request that a thread of its own reads.
pub struct Stream {
    events: mpsc::Receiver<StreamEvent>,
}

impl Stream {
    /// Sends a POST with `"stream": true`.
    pub fn open(base_url: &str, path: &str, mut body: Value) -> Stream {
        body["stream"] = json!(true);
        let url = format!("{base_url}{path}");
        let (event, events) = mpsc::channel();
        thread::spawn(move || {
            let whole = read(&url, &body, &event);
            let _ = event.send(StreamEvent::End { whole });
        });
        Stream { events }
    }

    /// Waits for the first event with data.
    pub fn wait_started(&self) {
        self.next_data();
    }

    /// Waits for the next event with data.
    pub fn next_data(&self) -> Value {
        loop {
            match self.events.recv_timeout(Duration::from_secs(60)) {
                Ok(StreamEvent::Data(data)) => return data,
                Ok(StreamEvent::Status(200)) => {}
                other => panic!("no data: {other:?}"),
            }
        }
    }

    /// Everything that comes until the end, which must come by `deadline`.
    pub fn rest(&self, deadline: Instant) -> Vec<StreamEvent> {
        let mut rest = Vec::new();
        loop {
            let time = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(time) {
                Ok(end @ StreamEvent::End { .. }) => {
                    rest.push(end);
                    return rest;
                }
                Ok(event) => rest.push(event),
                Err(_) => panic!("the client hangs; it has seen {rest:?}"),
            }
        }
    }
}

/// Reads a streaming response to its end; whether it was whole.
fn read(url: &str, body: &Value, event: &mpsc::Sender<StreamEvent>) -> bool {
    let response = agent(Duration::from_secs(300))
        .post(url)
        .header("Content-Type", "application/json")
        .send(body.to_string());
    let Ok(response) = response else { return false };
    let _ = event.send(StreamEvent::Status(response.status().as_u16()));
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let Ok(line) = line else { return false };
        let Some(data) = line.strip_prefix("data:").map(str::trim) else {
            continue;
        };
        let parsed = match serde_json::from_str(data) {
            _ if data == "[DONE]" => StreamEvent::Done,
            Ok(json) => StreamEvent::Data(json),
            Err(error) => panic!("a data line is not JSON ({error}): {data}"),
        };
        let _ = event.send(parsed);
    }
    true
}

/// A completion that goes on for `max_tokens`, whatever the model says.
pub fn long_completion(max_tokens: u32) -> Value {
    json!({
        "model": "tiny-llama",
        "prompt": [1, 2, 3, 4, 5],
        "max_tokens": max_tokens,
        "ignore_eos": true,
        "temperature": 0.0,
    })
}
