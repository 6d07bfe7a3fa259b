//! The harness that starts real binaries, and the doubles that stand in for them.

pub mod doubles;
pub mod harness;
