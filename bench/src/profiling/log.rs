//! What was asked of profilers, and what they said: profiling.json.

use super::Engine;
use serde::Serialize;
use std::fmt::Write;

/// All calls of a run.
#[derive(Clone, Debug, Serialize)]
pub struct ProfilingLog {
    /// What kind of server.
    pub engine: Engine,
    /// Calls of `/start_profile`, in the order in which they were made.
    pub starts: Vec<Call>,
    /// Calls of `/stop_profile`.
    pub stops: Vec<Call>,
}

/// One call.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    /// Where to.
    pub url: String,
    /// CLOCK_MONOTONIC of this host, in ns.
    pub sent_at_ns: u64,
    /// The same moment in UTC.
    pub sent_at_iso: String,
    /// What was answered.
    pub status: Option<u16>,
    /// Why nothing was answered.
    pub error: Option<String>,
    /// Of a stop: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
}

/// Why a profiler is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The performance phase is over.
    PhaseEnd,
    /// The run was interrupted.
    Abort,
}

impl ProfilingLog {
    pub(super) fn new(engine: Engine) -> ProfilingLog {
        ProfilingLog {
            engine,
            starts: Vec::new(),
            stops: Vec::new(),
        }
    }

    /// Seconds from the first start that was answered with 200 to the last stop.
    pub fn span_s(&self) -> Option<f64> {
        let started = self.starts.iter().find(|call| call.status == Some(200))?;
        let stopped = self.stops.last()?;
        Some(stopped.sent_at_ns.saturating_sub(started.sent_at_ns) as f64 / 1e9)
    }

    /// The section of report.txt.
    pub fn section(&self) -> String {
        let engine = serde_json::to_value(self.engine).unwrap_or_default();
        let mut text = format!("Profiling\n  Engine: {}\n", engine.as_str().unwrap_or("?"));
        for call in &self.starts {
            let _ = writeln!(text, "  Start:  {}", call.describe());
        }
        for call in &self.stops {
            let _ = writeln!(text, "  Stop:   {}", call.describe());
        }
        if let Some(span) = self.span_s() {
            let _ = writeln!(text, "  Trigger span: {span:.3} s");
        }
        text
    }
}

impl Call {
    fn describe(&self) -> String {
        let outcome = match (self.status, &self.error) {
            (Some(404), _) => "404 (profiling is not enabled on the server)".to_owned(),
            (Some(409), _) => "409 (the server records another session)".to_owned(),
            (Some(status), _) => status.to_string(),
            (None, Some(error)) => format!("error: {error}"),
            (None, None) => "no answer".to_owned(),
        };
        let reason = match self.stop_reason {
            None => "",
            Some(StopReason::PhaseEnd) => " (phase_end)",
            Some(StopReason::Abort) => " (abort)",
        };
        format!(
            "POST {} @ {} -> {outcome}{reason}",
            self.url, self.sent_at_iso
        )
    }

    pub(super) fn warn(&self) {
        if self.status != Some(200) {
            eprintln!("nano-bench: warning: {}", self.describe());
        }
    }
}
