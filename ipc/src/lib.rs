//! Messages, framing and connections between nano-serve's processes.
//!
//! This layer knows what processes say to each other and how bytes cross a
//! Unix socket. It must not know HTTP, text, tensors or scheduling policy.
//!
//! Messages are enums, one file per receiver, and each variant says when it is
//! legal. Only [`codec`](mod@codec) names the serializer.

#[cfg(feature = "tokio")]
pub mod async_connection;
pub mod child;
pub mod codec;
pub mod config;
pub mod connection;
pub mod engine_core_output;
pub mod engine_core_request;
pub mod engine_info;
pub mod flight;
pub mod frame;
pub mod lifecycle;
pub mod logging;
pub mod model_runner_output;
pub mod profile;
pub mod profile_link;
pub mod recorder;
pub mod role;
pub mod sampling_params;
pub mod scheduler_output;
pub mod step_bounds;
pub mod to_child;
pub mod to_core;
pub mod to_frontend;
pub mod to_launcher;
pub mod to_worker;
