//! Log lines of all processes: time, level, role, message; each whole, and
//! written by one call, so that lines of several processes never mix.

use log::LevelFilter;
use std::fmt;
use std::io::Write;

/// Sends the process's log to standard error. Other crates' messages appear
/// from `warn` on, ours from `level`. A second call changes nothing.
pub fn init(role: impl fmt::Display, level: LevelFilter) {
    let role = role.to_string();
    let installed = env_logger::Builder::new()
        .filter_level(level.min(LevelFilter::Warn))
        .filter_module("nano", level)
        .format(move |line, record| {
            // One buffer a line; the logger hands it over in one write.
            let time = line.timestamp_millis();
            writeln!(
                line,
                "{time} {:5} {role}: {}",
                record.level(),
                one_line(&record.args().to_string())
            )
        })
        .try_init();
    // Only fails when a logger is there already: tests run several roles.
    drop(installed);
}

/// Control characters, line ends among them, become escapes: whatever a client
/// or a file says cannot start a line of its own.
pub fn one_line(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = c.is_control().then(|| c.escape_default());
            let plain = escaped.is_none().then_some(c);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn no_text_can_start_a_line_of_its_own() {
        assert_eq!(
            one_line("model \"naïve\"\r\nERROR core: forged\u{1b}[31m"),
            "model \"naïve\"\\r\\nERROR core: forged\\u{1b}[31m"
        );
    }
}
