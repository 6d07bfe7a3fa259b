//! From connected workers to an engine of known size.

use crate::error::CoreError;
use crate::peers::{FrontendEvent, PeerEvent, Peers, WaitFor, WorkerEvent};
use nano_ipc::config::CoreConfig;
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::lifecycle::Lifecycle;
use nano_ipc::to_core::WorkerLoaded;
use nano_ipc::to_worker::ToWorker;
use std::collections::BTreeMap;

/// Waits until every worker has loaded, and has them allocate their KV caches;
/// `None` when the order to end came first.
///
/// # Errors
/// When a worker fails, or what they found cannot work.
pub fn load_workers(
    config: &CoreConfig,
    peers: &mut Peers,
    lifecycle: &Lifecycle,
) -> Result<Option<EngineInfo>, CoreError> {
    let mut loaded = BTreeMap::new();
    while loaded.len() < config.world_size as usize {
        peers.wait(WaitFor::Anybody, lifecycle.shutdown_fd())?;
        if lifecycle.shutdown().is_some() {
            return Ok(None);
        }
        for event in peers.receive()? {
            match event {
                // They are told when the engine is ready.
                PeerEvent::Frontend(_, FrontendEvent::Joined | FrontendEvent::Left) => {}
                PeerEvent::Frontend(client, FrontendEvent::Message(_)) => {
                    peers.dismiss(client, "it sent a request before Ready");
                }
                PeerEvent::Worker(rank, WorkerEvent::Loaded(worker)) => {
                    if loaded.insert(rank, worker).is_some() {
                        let what = "it sent Loaded twice".into();
                        return Err(CoreError::WorkerProtocol { rank, what });
                    }
                }
                PeerEvent::Worker(rank, WorkerEvent::StepDone(_)) => {
                    let what = "it sent StepDone before any plan".into();
                    return Err(CoreError::WorkerProtocol { rank, what });
                }
            }
        }
    }
    let info = engine_info(config, loaded.into_values())?;
    peers.send_to_workers(&ToWorker::AllocateKvCache {
        num_kv_blocks: info.num_kv_blocks,
    })?;
    Ok(Some(info))
}

/// What all workers together can do.
fn engine_info(
    config: &CoreConfig,
    mut workers: impl Iterator<Item = WorkerLoaded>,
) -> Result<EngineInfo, CoreError> {
    let Some(first) = workers.next() else {
        return Err(CoreError::Config("world_size must be at least 1".into()));
    };
    let mut info = EngineInfo {
        max_model_len: first.max_model_len,
        vocab_size: first.vocab_size,
        num_kv_blocks: first.num_kv_blocks,
        block_size: config.block_size,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        enable_prefix_caching: config.enable_prefix_caching,
        model: first.info,
    };
    for worker in workers {
        info.max_model_len = info.max_model_len.min(worker.max_model_len);
        info.num_kv_blocks = info.num_kv_blocks.min(worker.num_kv_blocks);
        if worker.vocab_size != info.vocab_size {
            return Err(CoreError::Config(format!(
                "the workers loaded different models: vocabularies of {} and {} tokens",
                info.vocab_size, worker.vocab_size
            )));
        }
    }

    let numbers = [
        ("max_num_seqs", info.max_num_seqs),
        ("max_num_batched_tokens", info.max_num_batched_tokens),
        ("block_size", info.block_size),
        ("number of KV blocks", info.num_kv_blocks),
        ("vocabulary's size", info.vocab_size),
    ];
    if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == 0) {
        return Err(CoreError::Config(format!("the {name} must be at least 1")));
    }
    // One limit for all to see: what does not fit the cache does not fit.
    let num_slots = info.num_kv_blocks.saturating_mul(info.block_size);
    if num_slots < info.max_model_len {
        log::warn!(
            "the KV cache holds {num_slots} tokens, less than the model's context of {}: \
             requests are limited to {num_slots} (a larger cache lifts that)",
            info.max_model_len
        );
        info.max_model_len = num_slots;
    }
    if info.max_model_len < 2 {
        let what = "the context must hold at least 2 tokens, one to read and one to write";
        return Err(CoreError::Config(what.into()));
    }
    Ok(info)
}
