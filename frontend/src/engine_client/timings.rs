//! Moments of one sequence's life, as the frontend saw them.

/// Moments of one sequence's life: CLOCK_BOOTTIME in nanoseconds, 0 for what
/// has not happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// The HTTP request's headers were read.
    pub arrived_ns: u64,
    /// The engine's first step that computed it began.
    pub first_step_ns: u64,
    /// Its first token came.
    pub first_token_ns: u64,
    /// Its last token so far came.
    pub last_token_ns: u64,
    /// Tokens so far.
    pub num_tokens: u32,
}

impl Timings {
    /// Seconds from arrival to the first step; `None` before it.
    pub fn queue_seconds(&self) -> Option<f64> {
        seconds(self.arrived_ns, self.first_step_ns)
    }

    /// Seconds from the first step to the first token; `None` before it.
    pub fn prefill_seconds(&self) -> Option<f64> {
        seconds(self.first_step_ns, self.first_token_ns)
    }

    /// Seconds from arrival to the first token; `None` before it.
    pub fn time_to_first_token_seconds(&self) -> Option<f64> {
        seconds(self.arrived_ns, self.first_token_ns)
    }

    /// Seconds from the first token to the last; `None` before the first.
    pub fn decode_seconds(&self) -> Option<f64> {
        seconds(self.first_token_ns, self.last_token_ns)
    }

    /// Mean seconds between two tokens; `None` before the second.
    pub fn mean_inter_token_seconds(&self) -> Option<f64> {
        let gaps = self.num_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(self.decode_seconds()? / f64::from(gaps))
    }
}

/// Seconds between two moments, if both happened.
pub(crate) fn seconds(from_ns: u64, to_ns: u64) -> Option<f64> {
    (from_ns > 0 && to_ns > 0).then(|| to_ns.saturating_sub(from_ns) as f64 / 1e9)
}
