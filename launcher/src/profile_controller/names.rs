//! Names of sessions, each used once in a server's run.

use jiff::Timestamp;
use nano_trace::SessionName;
use std::collections::HashMap;
use std::time::SystemTime;

/// Names that were used. They are never forgotten: each stands for files that
/// are larger.
#[derive(Debug, Default)]
pub(super) struct SessionNames {
    /// With the number to try for the next session that is to be called so.
    used: HashMap<SessionName, u64>,
}

impl SessionNames {
    /// Takes this name, or if it was used, the first of `name-2`, `name-3` ...
    /// that was not. A long name loses its end to the number.
    pub(super) fn take(&mut self, wanted: &str) -> SessionName {
        let mut number = wanted
            .parse::<SessionName>()
            .ok()
            .and_then(|name| self.used.get(&name).copied())
            .unwrap_or(1);
        loop {
            let suffix = match number {
                1 => String::new(),
                _ => format!("-{number}"),
            };
            number += 1;
            let stem = &wanted[..wanted.len().min(SessionName::MAX_BYTES - suffix.len())];
            // Always a name: `wanted` is one, or a time.
            let Ok(name) = format!("{stem}{suffix}").parse::<SessionName>() else {
                continue;
            };
            if !self.used.contains_key(&name) {
                if let Ok(wanted) = wanted.parse() {
                    self.used.insert(wanted, number);
                }
                self.used.entry(name.clone()).or_insert(2);
                return name;
            }
        }
    }
}

/// The name of a session that begins at this time: `20261130T170503.123Z`.
pub(super) fn of_time(time: SystemTime) -> String {
    // A clock beyond jiff's years is set wrong.
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y%m%dT%H%M%S%.3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn no_name_is_given_twice() {
        let mut names = SessionNames::default();
        let mut take = |wanted: &str| names.take(wanted).to_string();
        assert_eq!(take("a"), "a");
        assert_eq!(take("a"), "a-2");
        assert_eq!(take("a-2"), "a-2-2");
        assert_eq!(take("a-3"), "a-3");
        assert_eq!(take("a"), "a-4");
        assert_eq!(take("a"), "a-5");
        let long = "x".repeat(SessionName::MAX_BYTES);
        assert_eq!(take(&long), long);
        let second = take(&long);
        assert_eq!(second.len(), SessionName::MAX_BYTES);
        assert!(second.ends_with("xx-2"), "{second}");
    }

    #[test]
    fn a_time_is_a_name() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_796_058_303_123);
        assert_eq!(of_time(time), "20261130T170503.123Z");
        assert!(of_time(time).parse::<SessionName>().is_ok());
    }
}
