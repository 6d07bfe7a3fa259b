//! Stand-ins for processes, simple enough to serve as oracles.

pub mod mock_model;
pub mod mock_worker;
