//! Names of sessions, which become parts of file names.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A session's name: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`. No such name leaves
/// the directory that its file is made in, or hides there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionName(String);

/// A text that is no session's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a session's name is 1 to {max} characters A-Z a-z 0-9 . _ - and begins with a letter or a digit",
    max = SessionName::MAX_BYTES
)]
pub struct NotASessionName;

impl SessionName {
    /// Bytes of a name at most.
    pub const MAX_BYTES: usize = 128;

    /// The name as a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_name(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_alphanumeric();
    text.len() <= SessionName::MAX_BYTES
        && text.as_bytes().first().is_some_and(alphanumeric)
        && text
            .bytes()
            .all(|byte| alphanumeric(&byte) || matches!(byte, b'.' | b'_' | b'-'))
}

impl FromStr for SessionName {
    type Err = NotASessionName;

    fn from_str(text: &str) -> Result<SessionName, NotASessionName> {
        match is_name(text) {
            true => Ok(SessionName(text.to_owned())),
            false => Err(NotASessionName),
        }
    }
}

impl TryFrom<String> for SessionName {
    type Error = NotASessionName;

    fn try_from(text: String) -> Result<SessionName, NotASessionName> {
        match is_name(&text) {
            true => Ok(SessionName(text)),
            false => Err(NotASessionName),
        }
    }
}

impl From<SessionName> for String {
    fn from(name: SessionName) -> String {
        name.0
    }
}

impl AsRef<str> for SessionName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn names_that_clients_choose_are_taken() {
        let longest = "x".repeat(128);
        for name in [
            "a",
            "7",
            "auto",
            "2026-11-30T09.00.00.123",
            "a..b",
            "x-",
            &longest,
        ] {
            assert_eq!(name.parse::<SessionName>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let (long, huge) = ("x".repeat(129), "x".repeat(1 << 20));
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "-rf",
            "_x",
            "../x",
            "a/b",
            "a/../b",
            "/etc/x",
            "a\\b",
            "a b",
            "a\0",
            "a\n",
            "\u{1b}[2J",
            "a%2fb",
            "ä",
            "a\u{202e}b",
            "a:b",
            &long,
            &huge,
        ] {
            let error = name.parse::<SessionName>().unwrap_err();
            assert!(error.to_string().len() < 200, "says no name back");
            let json = serde_json::to_string(name).unwrap();
            assert!(serde_json::from_str::<SessionName>(&json).is_err());
        }
    }

    proptest! {
        /// Of any bytes, those that are a name stay one visible file of one directory.
        #[test]
        fn a_name_is_one_plain_component(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Ok(name) = SessionName::try_from(text.clone()) {
                prop_assert_eq!(name.as_str(), &text);
                let parts: Vec<Component<'_>> = Path::new(name.as_str()).components().collect();
                prop_assert_eq!(parts, [Component::Normal(name.as_str().as_ref())]);
                prop_assert!(!name.as_str().starts_with('.'));
            }
        }

        #[test]
        fn the_rule_is_the_pattern(text in "[A-Za-z0-9][A-Za-z0-9._-]{0,127}") {
            prop_assert!(text.parse::<SessionName>().is_ok());
            let broken = format!("{text}/");
            prop_assert!(broken.parse::<SessionName>().is_err());
        }
    }
}
