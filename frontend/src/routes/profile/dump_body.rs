//! The body of `POST /profile/dump`.

use super::start_body::{ignored, number, session_name};
use crate::api_error::ApiError;
use crate::fields::Fields;
use nano_ipc::profile::ProfileCommand;
use std::time::Duration;

/// How far back a client may ask for.
const MAX_SECONDS: u64 = 3600;

/// Reads a body's fields.
///
/// # Errors
/// Names the field that is wrong, and what it may be.
pub(in crate::routes) fn dump(fields: &Fields<'_>) -> Result<ProfileCommand, ApiError> {
    Ok(ProfileCommand::Dump {
        name: session_name(fields, "name")?,
        reach: number(fields, "seconds", 1..=MAX_SECONDS)?.map(Duration::from_secs),
        ignored: ignored(fields),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<ProfileCommand, ApiError> {
        dump(&Fields::parse(body.as_bytes()).expect("an object"))
    }

    #[test]
    fn name_and_seconds_are_read_and_all_else_is_told() {
        let nothing = ProfileCommand::Dump {
            name: None,
            reach: None,
            ignored: vec!["duration_ms".to_owned(), "prompt".to_owned()],
        };
        let body = r#"{"prompt": "x", "seconds": null, "duration_ms": 5}"#;
        assert_eq!(read(body), Ok(nothing));
        let both = ProfileCommand::Dump {
            name: Some("slow".parse().expect("a name")),
            reach: Some(Duration::from_secs(3)),
            ignored: Vec::new(),
        };
        assert_eq!(read(r#"{"name": "slow", "seconds": "3"}"#), Ok(both));
        for (body, field) in [
            (r#"{"name": "../x"}"#, "name"),
            (r#"{"seconds": 0}"#, "seconds"),
            (r#"{"seconds": "all"}"#, "seconds"),
            (r#"{"seconds": 3601}"#, "seconds"),
        ] {
            let error = read(body).expect_err(body);
            assert_eq!(error.body()["error"]["param"], field, "{body}");
        }
    }
}
