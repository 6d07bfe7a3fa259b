//! The reading side, on traces that are made packet by packet.

mod check;
mod good_trace;
mod merge;
mod mutations;
mod recorded;
mod tool;
