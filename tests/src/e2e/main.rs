//! End-to-end tests: the real programs, on a free port, and real clients.

mod bench;
mod death;
mod disconnects;
mod ending;
mod limits;
mod models;
mod moments;
mod openai;
mod parameters;
mod perfetto;
mod perfetto_oracle;
mod profile;
mod random;
mod readme;
mod rows;
mod soak;
mod stalls;
mod starts;
mod structure;
mod trace_soak;
mod traces;

use nano_tests::harness::{client, metrics, procfs, programs, server};
