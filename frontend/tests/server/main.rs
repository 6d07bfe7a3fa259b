//! The frontend as clients see it: real HTTP, real frames, and a double in the
//! core's place that answers what the test says.

mod bad_input;
mod chat;
mod completions;
mod disconnects;
mod hostile;
mod lifecycle;
mod load;
mod metrics;
mod profile;
mod prompt_logprobs;
mod splits;
mod support;
