//! End-to-end tests: the real programs, on a free port, and real clients.

mod client;
mod death;
mod ending;
mod models;
mod perfetto;
mod perfetto_oracle;
mod procfs;
mod programs;
mod server;
mod structure;
mod traces;
