//! End-to-end tests: the real programs, on a free port, and real clients.

mod death;
mod ending;
mod limits;
mod models;
mod perfetto;
mod perfetto_oracle;
mod readme;
mod structure;
mod traces;

use nano_tests::harness::{client, programs, server};
