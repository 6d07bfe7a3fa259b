//! HTTP/1.1 as plain as it gets, so that tests see every byte.

use super::PATIENCE;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// An answer whose head was read; the body comes when it is asked for.
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    /// What the frames held, and no line of it was taken yet.
    held: Vec<u8>,
}

pub fn get(addr: SocketAddr, path: &str) -> Response {
    request(addr, "GET", path, &[], b"")
}

pub fn post(addr: SocketAddr, path: &str, body: &Value) -> Response {
    let headers = [("content-type", "application/json")];
    request(addr, "POST", path, &headers, body.to_string().as_bytes())
}

pub fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    Response::read(send(addr, method, path, headers, body))
}

/// Sends a request and reads nothing.
pub fn send(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TcpStream {
    let mut stream = TcpStream::connect(addr).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("socket");
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).expect("server reads");
    // A server may answer, and close, before it has read all.
    let _ = stream.write_all(body);
    stream
}

impl Response {
    pub fn read(stream: TcpStream) -> Response {
        let mut reader = BufReader::new(stream);
        let line = |reader: &mut BufReader<TcpStream>| {
            let mut line = String::new();
            reader.read_line(&mut line).expect("the server answers");
            line.trim_end().to_owned()
        };
        let status = line(&mut reader);
        let status = status.split(' ').nth(1).unwrap_or_default();
        let mut headers = Vec::new();
        loop {
            let header = line(&mut reader);
            let Some((name, value)) = header.split_once(':') else {
                break;
            };
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        Response {
            status: status.parse().expect("a status line"),
            headers,
            reader,
            held: Vec::new(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }

    /// The next frame of a chunked body; empty at its end.
    fn frame(&mut self) -> Vec<u8> {
        let mut size = String::new();
        self.reader.read_line(&mut size).expect("a frame");
        let size = usize::from_str_radix(size.trim(), 16).expect("a frame's size");
        let mut frame = vec![0; size + 2];
        self.reader.read_exact(&mut frame).expect("a whole frame");
        frame.truncate(size);
        frame
    }

    pub fn text(mut self) -> String {
        let mut body = Vec::new();
        if self.is_chunked() {
            loop {
                let frame = self.frame();
                if frame.is_empty() {
                    break;
                }
                body.extend(frame);
            }
        } else {
            self.reader.read_to_end(&mut body).expect("a body");
        }
        String::from_utf8(body).expect("UTF-8")
    }

    pub fn json(self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The next server-sent event's data; `None` at the end of the body.
    /// Panics unless each is one line `data: ...` and an empty one.
    pub fn event(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.held.windows(2).position(|pair| pair == b"\n\n") {
                let rest = self.held.split_off(end + 2);
                let event = std::mem::replace(&mut self.held, rest);
                let event = String::from_utf8(event).expect("UTF-8");
                let data = event.trim_end().strip_prefix("data: ").expect("data");
                assert!(!data.contains(['\n', '\r']), "{data:?} is one line");
                return Some(data.to_owned());
            }
            let frame = self.frame();
            if frame.is_empty() {
                assert!(self.held.is_empty(), "a cut event");
                return None;
            }
            self.held.extend(frame);
        }
    }

    /// The next event as JSON.
    pub fn event_json(&mut self) -> Value {
        let event = self.event().expect("an event");
        serde_json::from_str(&event).unwrap_or_else(|error| panic!("{error}: {event}"))
    }

    /// All events to come, the last of which must be `[DONE]`.
    pub fn events_to_done(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event().expect("[DONE] comes last");
            if event == "[DONE]" {
                assert_eq!(self.event(), None, "[DONE] comes last");
                return events;
            }
            events.push(serde_json::from_str(&event).expect("JSON"));
        }
    }
}
