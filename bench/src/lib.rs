//! A load generator for servers with OpenAI's interface, which drives their
//! profilers and tells the truth about latency.
//!
//! `Options` (flags, or a YAML file) are validated once into a [`config::Config`].
//! A [`workload::Workload`] makes requests, a [`schedule::Schedule`] says when
//! each is due, a [`client::Client`] performs it and keeps what it saw in a
//! [`record::RequestRecord`]; records become a [`summary::Summary`], and that the
//! files of a [`report`].
//!
//! This layer knows HTTP as a client does, clocks and statistics. It must not
//! know the server's insides: everything it learns comes over HTTP, from any
//! server with that interface.

pub mod client;
pub mod client_trace;
pub mod clock;
pub mod config;
pub mod interrupt;
pub mod lengths;
pub mod options;
pub mod profiling;
pub mod progress;
pub mod record;
pub mod recorder;
pub mod report;
pub mod run;
pub mod schedule;
pub mod summary;
pub mod url;
pub mod workload;
pub mod yaml;
