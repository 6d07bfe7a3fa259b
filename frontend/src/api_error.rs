//! What a client is told when its request fails, in OpenAI's shape.

use crate::engine_client::AdmissionError;
use crate::text::{EncodeError, TemplateError};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::borrow::Cow;

/// Seconds after which a client that found the server full should try again.
const RETRY_AFTER_SECONDS: &str = "1";
/// Bytes of a message that are kept.
const MAX_MESSAGE_BYTES: usize = 2048;

/// What a client is told when its request fails.
///
/// Holds: the message is at most [`MAX_MESSAGE_BYTES`] and a mark long, however
/// much of the client's own text it quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    param: Option<Cow<'static, str>>,
    /// For programs: a word where OpenAI has one.
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: readable(message.into()),
            param: None,
            code: None,
        }
    }

    /// 400 because of this field.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> ApiError {
        ApiError {
            param: Some(param.into()),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// 400 because of the body as a whole.
    pub fn malformed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400: the prompt, or prompt and answer together, exceed the context.
    pub fn context_length(param: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            code: Some("context_length_exceeded"),
            ..ApiError::invalid(param, message)
        }
    }

    /// 429: clients are sending more at once than is kept.
    pub fn bodies_too_large(limit: u64) -> ApiError {
        ApiError::busy(format!(
            "all requests that are arriving now have {limit} bytes, the limit; try again later"
        ))
    }

    /// 401.
    pub fn unauthorized() -> ApiError {
        ApiError {
            code: Some("invalid_api_key"),
            ..ApiError::new(
                StatusCode::UNAUTHORIZED,
                "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
            )
        }
    }

    /// 404: a model that is not served here.
    pub fn unknown_model(asked: &str, served: &[String]) -> ApiError {
        ApiError {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..ApiError::new(
                StatusCode::NOT_FOUND,
                format!(
                    "the model `{}` is not served here; served: {}",
                    shortened(asked),
                    served.join(", ")
                ),
            )
        }
    }

    /// 404: no such path.
    pub fn not_found(path: &str) -> ApiError {
        ApiError::new(
            StatusCode::NOT_FOUND,
            format!("there is nothing at {}", shortened(path)),
        )
    }

    /// 404: the path is right, what it names is not there.
    pub fn missing(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    /// 409: not beside what goes on.
    pub fn conflict(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, message)
    }

    /// 405.
    pub fn method_not_allowed() -> ApiError {
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this path does not take this method",
        )
    }

    /// 408: the body did not come in time.
    pub fn body_timeout() -> ApiError {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "the request's body did not arrive in time",
        )
    }

    /// 413.
    pub fn body_too_large(limit: u64) -> ApiError {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request's body is larger than {limit} bytes, the limit"),
        )
    }

    /// 429: as many are here as may be.
    pub fn busy(message: impl Into<String>) -> ApiError {
        ApiError {
            code: Some("rate_limit_exceeded"),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
        }
    }

    /// 500: a fault of ours, or of the engine.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// 503: not now.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// What was wrong, in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The body of the answer, or of the event that ends a stream.
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        // For the log.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(
                    header::RETRY_AFTER,
                    HeaderValue::from_static(RETRY_AFTER_SECONDS),
                );
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

impl From<AdmissionError> for ApiError {
    fn from(error: AdmissionError) -> ApiError {
        let message = error.to_string();
        match error {
            AdmissionError::Full(_) => ApiError::busy(message),
            AdmissionError::TooMany { .. } => ApiError::invalid("n", message),
            AdmissionError::Unavailable(_) => ApiError::unavailable(message),
        }
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> ApiError {
        let param = match error {
            TemplateError::NothingToContinue(_) => "continue_final_message",
            _ => "messages",
        };
        ApiError::invalid(param, error.to_string())
    }
}

impl From<EncodeError> for ApiError {
    fn from(error: EncodeError) -> ApiError {
        ApiError::malformed(error.to_string())
    }
}

/// Leaves the middle of a long message out: at its ends it says what was wrong
/// and what was expected.
fn readable(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let start = message.floor_char_boundary(MAX_MESSAGE_BYTES * 3 / 4);
        let end = message.ceil_char_boundary(message.len() - MAX_MESSAGE_BYTES / 4);
        message.replace_range(start..end, " [...] ");
        message.shrink_to_fit();
    }
    message
}

/// A client's own words within a message, cut to a length that stays readable.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    const CHARS: usize = 100;
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_keeps_its_ends_and_no_character_is_cut() {
        let long = format!("n: string {}, expected u32", "é".repeat(1 << 20));
        for error in [
            ApiError::invalid("n", long.clone()),
            ApiError::malformed(long.clone()),
            ApiError::internal(format!("x{long}")),
        ] {
            let message = error.message();
            assert!(message.len() <= MAX_MESSAGE_BYTES + 7, "{}", message.len());
            assert!(message.contains("n: string éé"), "{message}");
            assert!(message.contains("é [...] é"), "{message}");
            assert!(message.ends_with("éé, expected u32"), "{message}");
        }
        assert_eq!(ApiError::malformed("short").message(), "short");
    }
}
