//! Flight recording: rings keep the last seconds of what has been read, and a
//! dump writes them when somebody asks for them afterwards.
//!
//! Who does what:
//! - the process's writer forgets: it gives the room of records back when they
//!   are older than asked, or a ring is more than half full
//!   ([`forgetting`]), and keeps an account of what is open then in the shared
//!   mapping ([`open_account`]);
//! - whoever has the mapping, the launcher, takes a [`picture`] of it and
//!   encodes that ([`dump`]). The process need not do anything for it, nor
//!   live: one that hangs, was stopped or killed is dumped like any other one.
//!
//! Producers do what they always do, so flight recording costs them what a
//! session costs, and all else happens elsewhere.
//!
//! Invariant: what is forgotten is forgotten in all rings of the process up to
//! one moment, so that the account tells all that is open at that moment.

mod dump;
mod forgetting;
mod open_account;
mod picture;

pub use dump::DumpSpec;
pub(crate) use forgetting::Forgetting;
#[cfg(test)]
pub(crate) use open_account::{read as read_account, write as write_account};

use std::time::Duration;

/// So much longer than asked are records kept: a server takes up to two
/// seconds to end after the death of a process, and is dumped then.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);
