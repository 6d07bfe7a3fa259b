//! How often stacks are sampled.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Samples in a second of a thread's CPU time: 1 to [`SampleRate::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct SampleRate(u32);

impl SampleRate {
    /// The highest rate, in Hz. Kernels fire CPU clocks at most once a tick, of
    /// which there are 100 to 1000 in a second; a sample that stands for several
    /// periods weighs as much.
    pub const MAX: u32 = 1000;
    /// Where none is named, in Hz: not in step with what happens a hundred times
    /// a second.
    pub const DEFAULT: SampleRate = SampleRate(99);

    /// In Hz.
    pub fn hz(self) -> u32 {
        self.0
    }

    /// CPU time from one sample to the next.
    pub fn period(self) -> Duration {
        Duration::from_secs(1) / self.0
    }
}

/// A number that is no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {}, in Hz", SampleRate::MAX)]
pub struct NotASampleRate;

impl TryFrom<u32> for SampleRate {
    type Error = NotASampleRate;

    fn try_from(hz: u32) -> Result<SampleRate, NotASampleRate> {
        match hz {
            1..=SampleRate::MAX => Ok(SampleRate(hz)),
            _ => Err(NotASampleRate),
        }
    }
}

impl From<SampleRate> for u32 {
    fn from(rate: SampleRate) -> u32 {
        rate.0
    }
}

impl FromStr for SampleRate {
    type Err = NotASampleRate;

    fn from_str(text: &str) -> Result<SampleRate, NotASampleRate> {
        let hz = text.parse::<u32>().map_err(|_| NotASampleRate)?;
        hz.try_into()
    }
}

impl fmt::Display for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_bounds() {
        for (text, hz) in [("1", Some(1)), ("99", Some(99)), ("1000", Some(1000))] {
            assert_eq!(text.parse().ok().map(SampleRate::hz), hz, "{text}");
        }
        for text in ["0", "1001", "-1", "99.5", "", "4294967296"] {
            assert_eq!(text.parse::<SampleRate>(), Err(NotASampleRate), "{text}");
        }
        assert!(serde_json::from_str::<SampleRate>("0").is_err());
        assert_eq!(serde_json::to_string(&SampleRate::DEFAULT).unwrap(), "99");
        assert_eq!(SampleRate(250).period(), Duration::from_millis(4));
    }
}
