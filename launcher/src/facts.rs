//! Facts of the run that every trace carries.

use crate::settings::Settings;
use std::fs;

/// Key and value of each fact.
pub fn facts(settings: &Settings) -> Vec<(String, String)> {
    let fact = |key: &str, value: String| (key.to_owned(), value);
    vec![
        fact("version", env!("CARGO_PKG_VERSION").to_owned()),
        fact("git_hash", env!("NANO_GIT_HASH").to_owned()),
        fact("model", settings.model.path.display().to_string()),
        fact("dtype", settings.dtype_name()),
        fact("device", settings.device_name()),
        fact("command_line", command_line(std::env::args())),
        fact("host", first_line("/proc/sys/kernel/hostname")),
        fact("boot_id", first_line("/proc/sys/kernel/random/boot_id")),
    ]
}

/// Flags whose values are secret.
const KEYS: [&str; 2] = ["--api-key", "--profile-api-key"];

fn is_assigned(arg: &str, flag: &str) -> bool {
    arg.strip_prefix(flag)
        .is_some_and(|rest| rest.starts_with('='))
}

/// The command line without what must not be read by whoever gets the trace.
fn command_line(args: impl Iterator<Item = String>) -> String {
    let mut secret = false;
    let shown: Vec<String> = args
        .map(|arg| {
            if std::mem::take(&mut secret) {
                "***".to_owned()
            } else if let Some(flag) = KEYS.iter().find(|flag| is_assigned(&arg, flag)) {
                format!("{flag}=***")
            } else {
                secret = KEYS.contains(&arg.as_str());
                arg
            }
        })
        .collect();
    shown.join(" ")
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_trace_does_not_tell_the_api_key() {
        let shown = |line: &str| super::command_line(line.split(' ').map(str::to_owned));
        assert_eq!(
            shown("nano-serve --api-key hunter2 --port 0"),
            "nano-serve --api-key *** --port 0"
        );
        assert_eq!(
            shown("nano-serve --api-key=hunter2 --profile-api-key=x --profile-api-key y z"),
            "nano-serve --api-key=*** --profile-api-key=*** --profile-api-key *** z"
        );
    }
}
