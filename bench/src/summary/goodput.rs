//! Requests that keep limits.

use crate::options::Limit;
use crate::record::RequestRecord;
use serde::Serialize;

/// Limits that a good request keeps, in ms; none: no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Goodput {
    /// Of the time to first token.
    pub ttft: Option<f64>,
    /// Of its longest inter-token latency.
    pub itl: Option<f64>,
    /// Of its mean time per output token.
    pub tpot: Option<f64>,
    /// Of the whole request.
    pub e2e: Option<f64>,
}

/// How many requests were good.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GoodputSummary {
    /// What they kept.
    pub limits_ms: Goodput,
    /// How many.
    pub good_requests: u64,
    /// Of all that were sent.
    pub share: f64,
    /// Good requests a second.
    pub requests_per_s: f64,
}

/// A limit of something that is not measured, or out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}:{1}: limits are positive, of ttft, itl, tpot and e2e, in ms")]
pub struct UnknownLimit(String, f64);

impl Goodput {
    /// These limits.
    ///
    /// # Errors
    /// When a name is not known.
    pub fn new(limits: Vec<Limit>) -> Result<Goodput, UnknownLimit> {
        let mut goodput = Goodput::default();
        for (name, limit) in limits {
            let place = match name.as_str() {
                "ttft" => &mut goodput.ttft,
                "itl" => &mut goodput.itl,
                "tpot" => &mut goodput.tpot,
                "e2e" => &mut goodput.e2e,
                _ => return Err(UnknownLimit(name, limit)),
            };
            if !(limit > 0.0 && limit.is_finite()) {
                return Err(UnknownLimit(name, limit));
            }
            *place = Some(limit);
        }
        Ok(goodput)
    }

    /// Whether a complete request keeps them all. What was not measured of it
    /// (an answer of one token has no ITL) breaks no limit.
    pub fn keeps(&self, record: &RequestRecord) -> bool {
        let keeps = |limit: Option<f64>, measured: Option<f64>| match (limit, measured) {
            (Some(limit), Some(measured)) => measured <= limit,
            _ => true,
        };
        let longest = || {
            record
                .intervals()
                .map(|interval| f64::from(interval.ms))
                .reduce(f64::max)
        };
        keeps(self.ttft, record.ttft_ms())
            && keeps(self.tpot, record.tpot_ms())
            && keeps(self.e2e, Some(record.e2e_ms()))
            && (self.itl.is_none() || keeps(self.itl, longest()))
    }

    /// `None` without limits.
    pub fn summary(&self, good: u64, sent: u64, duration_s: f64) -> Option<GoodputSummary> {
        (*self != Goodput::default()).then(|| GoodputSummary {
            limits_ms: self.clone(),
            good_requests: good,
            share: good as f64 / sent.max(1) as f64,
            requests_per_s: if duration_s > 0.0 {
                good as f64 / duration_s
            } else {
                0.0
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::record::{ArrivedChunk, Outcome, Times};

    fn limits(limits: &[(&str, f64)]) -> Goodput {
        let limits = limits.iter().map(|&(name, limit)| (name.to_owned(), limit));
        Goodput::new(limits.collect()).expect("known")
    }

    #[test]
    fn a_good_request_keeps_every_limit() {
        let at = |ms: u64| Moment::from_ns(ms * 1_000_000);
        // TTFT 20, ITL 10 and 30, TPOT 20, E2E 65.
        let record = RequestRecord {
            index: 0,
            load: 0,
            endpoint: 0,
            times: Times {
                intended: None,
                started: at(0),
                connected: None,
                sent: None,
                head: None,
                ended: at(65),
            },
            trace_id: 1,
            prompt_tokens: None,
            output_tokens: 3,
            chunks: [20, 30, 60]
                .map(|ms| ArrivedChunk {
                    at: at(ms),
                    tokens: None,
                })
                .to_vec(),
            outcome: Outcome::Complete,
        };
        for (name, measured) in [("ttft", 20.0), ("itl", 30.0), ("tpot", 20.0), ("e2e", 65.0)] {
            assert!(limits(&[(name, measured)]).keeps(&record), "{name}");
            assert!(!limits(&[(name, measured - 0.5)]).keeps(&record), "{name}");
        }
        assert_eq!(limits(&[]).summary(1, 1, 1.0), None);
    }
}
