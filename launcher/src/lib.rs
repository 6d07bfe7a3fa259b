//! Command line, model resolution and supervision of nano-serve's processes.
//!
//! This layer knows flags, files, descriptors and processes. It must not know
//! HTTP, text, tensors or scheduling: what a child does is the child's own
//! matter, and the launcher links none of it. It writes no trace either.
//!
//! The way of a start: [`Args`](args::Args) as typed, [`Settings`](settings::Settings)
//! that cannot be wrong, [`Endpoints`](endpoints::Endpoints) that are bound,
//! processes, [`Supervisor`](supervisor::Supervisor).

pub mod announce;
pub mod args;
pub mod dumper;
pub mod endpoints;
pub mod facts;
pub mod hub;
pub mod model;
pub mod outcome;
pub mod process;
pub mod profile_controller;
pub mod profiler;
pub mod pulse;
pub mod settings;
pub mod signals;
pub mod supervisor;
pub mod system_limits;

/// Version and git hash.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("NANO_GIT_HASH"), ")");

/// Exit code of a server that could not start as it was told to: a flag, the
/// model, the port or the profiler's directory is wrong.
pub const EXIT_USAGE: u8 = 2;

/// A random word, not 0, that tells this start of a server from every other.
///
/// # Errors
/// When the system has no random numbers to give.
pub fn run_word() -> std::io::Result<u64> {
    use std::io::Read;
    let mut random = std::fs::File::open("/dev/urandom")?;
    let mut word = [0; 8];
    random.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word).max(1))
}
