//! Scheduler, KV-cache accounting and the engine's step loop.
//!
//! This layer knows token ids, blocks and steps. It must not know text, HTTP or
//! tensors. `scheduler` and `kv_cache` do no I/O and read no clock.

pub mod engine_core;
pub mod error;
pub mod kv_cache;
pub mod peers;
pub mod scheduler;
pub mod sequence;

mod request_tracks;
mod slow_rules;
mod start_up;
mod step_plan;
mod step_recording;

pub use engine_core::run;
pub use error::CoreError;
pub use peers::Endpoint;

#[cfg(test)]
mod test_support;
