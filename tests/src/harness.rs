//! Starts the real programs and speaks to them; for end-to-end tests, load
//! runs and benchmarks alike.

pub mod client;
pub mod metrics;
pub mod procfs;
pub mod programs;
pub mod server;
