//! Profile sessions of real servers.

mod contract;
mod faults;
mod files;
mod flight;
mod load;
mod modes;
mod samples;
pub(crate) mod support;
