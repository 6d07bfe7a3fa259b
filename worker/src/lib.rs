//! Weights, KV tensors, forward pass and sampling of one rank.
//!
//! This layer alone knows tensors. It must not know text, HTTP or why the
//! scheduler planned what it planned.
//!
//! A step reads from the top down: [`worker`] receives a plan, [`sequence`]
//! applies it to what is kept of each sequence, [`forward_batch`] lays it out as
//! rows, [`models`] turn rows into logits through the operations of [`ops`],
//! which a [`backend`] carries out, and [`sampling`] turns logits into tokens.
//! A KV cache belongs to the runner, never to a model.

pub mod backend;
pub mod error;
pub mod forward_batch;
pub mod kernels;
pub mod kv_cache;
pub mod load;
pub mod model_runner;
pub mod models;
pub mod ops;
pub mod row_sampler;
pub mod sampling;
pub mod sequence;
pub mod weights;
pub mod worker;

pub use error::WorkerError;
pub use worker::run;
