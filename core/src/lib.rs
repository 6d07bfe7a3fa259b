//! Scheduler, KV-cache accounting and the engine's step loop.
//!
//! This layer knows token ids, blocks and steps. It must not know text, HTTP or
//! tensors. `scheduler` and `kv_cache` do no I/O and read no clock.
