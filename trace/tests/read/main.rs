//! The reading side, on traces that are made packet by packet.

mod check;
mod flame;
mod good_trace;
mod merge;
mod mutations;
mod recorded;
mod sample_mutations;
mod samples;
mod tool;
