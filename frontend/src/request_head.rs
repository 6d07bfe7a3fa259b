//! What a request's headers say, bounded and harmless.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// Bytes of an id that are kept.
const MAX_ID_BYTES: usize = 128;
/// Bytes of a `tracestate` that are answered.
const MAX_TRACESTATE_BYTES: usize = 512;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const X_NANO_PROFILE: HeaderName = HeaderName::from_static("x-nano-profile");

/// What a request's headers say of where it comes from.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// The client's own id, or one of ours: at most 128 bytes, printable.
    pub id: String,
    /// The id is the client's.
    pub has_own_id: bool,
    /// The client wants it in sessions of marked requests.
    pub is_marked: bool,
    /// A valid W3C trace context.
    pub traceparent: Option<String>,
    tracestate: Option<HeaderValue>,
    /// CLOCK_BOOTTIME in ns.
    pub arrived_ns: u64,
}

impl RequestHead {
    /// `own_id` is for requests that bring none.
    pub fn new(headers: &HeaderMap, own_id: String, arrived_ns: u64) -> RequestHead {
        let id = headers
            .get(&X_REQUEST_ID)
            .map(|value| printable(value.as_bytes()))
            .filter(|id| !id.is_empty());
        let has_own_id = id.is_some();
        let id = id.unwrap_or(own_id);
        let is_marked = headers.get(&X_NANO_PROFILE).is_some_and(|mark| mark == "1");
        let traceparent = headers
            .get(&TRACEPARENT)
            .and_then(|value| value.to_str().ok())
            .filter(|value| is_traceparent(value))
            .map(str::to_owned);
        let tracestate = headers
            .get(&TRACESTATE)
            .filter(|value| traceparent.is_some() && value.len() <= MAX_TRACESTATE_BYTES)
            .cloned();
        RequestHead {
            id,
            has_own_id,
            is_marked,
            traceparent,
            tracestate,
            arrived_ns,
        }
    }

    /// Answers what the client sent.
    pub fn answer(self, headers: &mut HeaderMap) {
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            headers.insert(X_REQUEST_ID, id);
        }
        if let Some(Ok(traceparent)) = self.traceparent.as_deref().map(HeaderValue::from_str) {
            headers.insert(TRACEPARENT, traceparent);
        }
        if let Some(tracestate) = self.tracestate {
            headers.insert(TRACESTATE, tracestate);
        }
    }
}

/// At most [`MAX_ID_BYTES`], with `?` for everything but visible ASCII: an id
/// goes into headers, logs and traces.
fn printable(bytes: &[u8]) -> String {
    let byte = |byte: &u8| match byte {
        b'!'..=b'~' => char::from(*byte),
        _ => '?',
    };
    bytes.iter().take(MAX_ID_BYTES).map(byte).collect()
}

/// `version-trace_id-parent_id-flags` in lower-case hexadecimal, as the W3C
/// recommendation "Trace Context" has it for version 00.
fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, digits| {
        part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let some = |part: &str| part.bytes().any(|b| b != b'0');
    let parts: Vec<&str> = text.split('-').take(5).collect();
    matches!(parts[..], [version, trace, parent, flags]
        if version == "00" && hex(trace, 32) && some(trace)
            && hex(parent, 16) && some(parent) && hex(flags, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(name: &'static str, value: &[u8]) -> RequestHead {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_bytes(value).expect("legal header"));
        RequestHead::new(&headers, "own".to_owned(), 1)
    }

    #[test]
    fn ids_are_bounded_and_printable() {
        assert_eq!(head("x-request-id", b"my-id 1").id, "my-id?1");
        assert_eq!(head("x-request-id", b"\xff\xf0\t").id, "???");
        assert_eq!(head("x-request-id", &[b'a'; 1000]).id, "a".repeat(128));
        assert_eq!(head("x-request-id", b"").id, "own");
        assert_eq!(head("other", b"x").id, "own");
    }

    #[test]
    fn a_mark_is_one_digit() {
        assert!(head("x-nano-profile", b"1").is_marked);
        for other in [&b""[..], b"0", b"1, 1", b"true", b"\xff"] {
            assert!(!head("x-nano-profile", other).is_marked, "{other:?}");
        }
    }

    #[test]
    fn only_whole_trace_contexts_count() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(
            head("traceparent", good.as_bytes()).traceparent.as_deref(),
            Some(good)
        );
        for bad in [
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "",
        ] {
            assert_eq!(
                head("traceparent", bad.as_bytes()).traceparent,
                None,
                "{bad}"
            );
        }
    }
}
