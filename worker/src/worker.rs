//! The worker's loop: from the socket to the runner and back.

use crate::backend::{CpuOps, CudaOps};
use crate::error::{LoadError, WorkerError};
use crate::kernels::Pool;
use crate::load::{LoadedModel, load_model};
use crate::model_runner::ModelRunner;
use crate::ops::{Ops, TracedOps};
use crate::sequence::PlanLimits;
use nano_ipc::config::{DeviceKind, WorkerConfig};
use nano_ipc::connection::{Connection, ConnectionError};
use nano_ipc::lifecycle::Lifecycle;
use nano_ipc::recorder;
use nano_ipc::role::Role;
use nano_ipc::scheduler_output::SchedulerOutput;
use nano_ipc::to_core::{Hello, PROTOCOL_VERSION, ToCore};
use nano_ipc::to_worker::{StepMark, ToWorker};
use nano_trace::{Event, Flow, counter, slice, slice_with};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::any::Any;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Serves plans of the core until it is gone or the process is told to end.
/// `run` is the random word of the server's start.
///
/// # Errors
/// When the worker cannot go on; the core was told so, as far as it listens.
pub fn run(
    config: &WorkerConfig,
    connection: Connection,
    run: u64,
    lifecycle: &Lifecycle,
) -> Result<(), WorkerError> {
    match config.device {
        DeviceKind::Cpu => run_model(config, connection, run, lifecycle, |pool| {
            let ops = TracedOps::new(CpuOps::new(config.dtype, pool));
            load_model(ops, config, lifecycle)
        }),
        DeviceKind::Cuda => run_model(config, connection, run, lifecycle, |_| {
            load_model(TracedOps::new(CudaOps::new()?), config, lifecycle)
        }),
    }
}

/// As [`run`], with a model that `load` gives; it may compute on the threads of
/// the pool. A panic, wherever it happens, ends the worker like an error.
///
/// # Errors
/// As [`run`].
pub fn run_model<B: Ops>(
    config: &WorkerConfig,
    mut connection: Connection,
    run: u64,
    lifecycle: &Lifecycle,
    load: impl FnOnce(Arc<Pool>) -> Result<LoadedModel<B>, LoadError>,
) -> Result<(), WorkerError> {
    // What a panic leaves half done is not used again: the worker ends.
    let served = catch_unwind(AssertUnwindSafe(|| {
        serve(config, &mut connection, run, lifecycle, load)
    }))
    .unwrap_or_else(|panic| {
        Err(WorkerError::Panic {
            step_id: lifecycle.progress().0,
            message: panic_message(&*panic),
        })
    });
    match served {
        // To be told to end, or to lose the core, is how a worker ends.
        Err(
            WorkerError::Load(LoadError::Shutdown)
            | WorkerError::Connection(ConnectionError::Closed),
        ) => Ok(()),
        Err(error) => {
            // The core may be gone, too: the error itself goes to the launcher.
            let _ = connection.send(&ToCore::Fatal(error.to_string()));
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Threads that compute and sample, the current one among them.
fn thread_pool(threads: Option<u32>) -> Result<Arc<Pool>, WorkerError> {
    let threads = match threads {
        Some(threads) => threads as usize,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    Pool::new(threads)
        .map(Arc::new)
        .map_err(|error| WorkerError::System {
            what: "cannot start the threads that compute",
            error,
        })
}

fn serve<B: Ops>(
    config: &WorkerConfig,
    connection: &mut Connection,
    run: u64,
    lifecycle: &Lifecycle,
    load: impl FnOnce(Arc<Pool>) -> Result<LoadedModel<B>, LoadError>,
) -> Result<(), WorkerError> {
    lifecycle.busy(0);
    connection.send(&ToCore::Hello(Hello {
        protocol_version: PROTOCOL_VERSION,
        role: Role::Worker { rank: config.rank },
        run,
    }))?;
    let pool = thread_pool(config.threads)?;
    let Some(mut runner) = start(pool, connection, lifecycle, load)? else {
        return Ok(());
    };
    let mut resident = ResidentMemory::default();
    loop {
        lifecycle.idle();
        if !wait_for_bytes(connection, lifecycle)? {
            return Ok(());
        }
        let step_id = runner.states().next_step();
        lifecycle.busy(step_id);
        let step = slice_with(
            Event::WorkerStep,
            [],
            &[Flow::step_to_rank(step_id, config.rank)],
        );
        let Some((mark, plan)) = receive_plan(connection, lifecycle)? else {
            return Ok(());
        };
        if let Some(mark) = &mark {
            let (_, began_ns) = lifecycle.progress();
            recorder::step_began(mark, began_ns);
        }
        let output = runner.execute(&plan)?;
        let send = slice_with(
            Event::WorkerSend,
            [],
            &[Flow::rank_to_core(step_id, config.rank)],
        );
        let bytes = connection.send(&ToCore::StepDone(output))?;
        send.end([bytes as u64]);
        step.end([
            step_id,
            plan.scheduled.iter().map(|s| u64::from(s.num_tokens)).sum(),
            plan.scheduled.len() as u64,
        ]);
        if let Some(mark) = &mark {
            recorder::step_ended(mark);
        }
        resident.count();
    }
}

/// Loads, reports to the core, and allocates the cache that it asks for.
/// `None` when the worker is to end.
fn start<B: Ops>(
    pool: Arc<Pool>,
    connection: &mut Connection,
    lifecycle: &Lifecycle,
    load: impl FnOnce(Arc<Pool>) -> Result<LoadedModel<B>, LoadError>,
) -> Result<Option<ModelRunner<B>>, WorkerError> {
    let _slice = slice(Event::Load, []);
    let LoadedModel {
        ops,
        model,
        loaded,
        limits,
    } = load(Arc::clone(&pool))?;
    connection.send(&ToCore::Loaded(loaded))?;
    lifecycle.idle();
    let num_kv_blocks = loop {
        match connection.next()? {
            Some(ToWorker::AllocateKvCache { num_kv_blocks }) => break num_kv_blocks as usize,
            Some(ToWorker::Mark(_) | ToWorker::Step(_)) => {
                return Err(WorkerError::Protocol("a plan before AllocateKvCache"));
            }
            None if !wait_for_more_bytes(connection, lifecycle)? => return Ok(None),
            None => {}
        }
    };
    if num_kv_blocks == 0 || num_kv_blocks > limits.num_kv_blocks {
        return Err(WorkerError::Protocol(
            "AllocateKvCache for no block, or for more than were reported",
        ));
    }
    lifecycle.busy(0);
    let limits = PlanLimits {
        num_kv_blocks,
        ..limits
    };
    let bytes = ops.kv_cache_bytes(model.kv_cache_shape(num_kv_blocks, limits.block_size));
    let kv_cache_slice = slice(Event::LoadKvCache, [num_kv_blocks as u64, bytes]);
    let runner = ModelRunner::new(ops, model, limits, pool).map_err(LoadError::from)?;
    drop(kv_cache_slice);
    Ok(Some(runner))
}

/// Takes the plan whose first bytes have come. `None` when the worker is to end.
fn receive_plan(
    connection: &mut Connection,
    lifecycle: &Lifecycle,
) -> Result<Option<(Option<StepMark>, SchedulerOutput)>, WorkerError> {
    let receive = slice(Event::WorkerReceive, []);
    let mut mark = None;
    loop {
        let buffered = connection.buffered();
        match connection.next()? {
            Some(ToWorker::Step(plan)) => {
                receive.end([(buffered - connection.buffered()) as u64]);
                return Ok(Some((mark, plan)));
            }
            Some(ToWorker::Mark(step)) => mark = Some(step),
            Some(ToWorker::AllocateKvCache { .. }) => {
                return Err(WorkerError::Protocol("AllocateKvCache twice"));
            }
            None if !wait_for_more_bytes(connection, lifecycle)? => return Ok(None),
            None => {}
        }
    }
}

/// Waits until some bytes of the core lie in the buffer. `false` when the worker
/// is to end.
fn wait_for_bytes(connection: &mut Connection, lifecycle: &Lifecycle) -> Result<bool, WorkerError> {
    if connection.buffered() > 0 {
        return Ok(lifecycle.shutdown().is_none());
    }
    wait_for_more_bytes(connection, lifecycle)
}

/// Waits until more bytes of the core have come. `false` when the worker is to end.
fn wait_for_more_bytes(
    connection: &mut Connection,
    lifecycle: &Lifecycle,
) -> Result<bool, WorkerError> {
    let buffered = connection.buffered();
    while connection.buffered() == buffered {
        let mut fds = [
            PollFd::new(connection.as_fd(), PollFlags::POLLIN),
            PollFd::new(lifecycle.shutdown_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => {
                return Err(WorkerError::System {
                    what: "cannot wait for the core",
                    error: errno.into(),
                });
            }
        }
        if lifecycle.shutdown().is_some() {
            return Ok(false);
        }
        connection.fill()?;
    }
    Ok(true)
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    message.unwrap_or_else(|| "no message".to_owned())
}

/// Records the process's resident memory, seldom: reading it is a system call.
#[derive(Default)]
struct ResidentMemory {
    counted: Option<Instant>,
}

impl ResidentMemory {
    const INTERVAL: Duration = Duration::from_millis(250);

    fn count(&mut self) {
        if self.counted.is_some_and(|at| at.elapsed() < Self::INTERVAL) {
            return;
        }
        self.counted = Some(Instant::now());
        if let Some(bytes) = resident_bytes() {
            counter(Event::ResidentBytes, bytes);
        }
    }
}

/// Second field of `/proc/self/statm`, in pages (proc(5)).
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    let page_size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    Some(pages * page_size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_that_of_a_process() {
        let bytes = resident_bytes().expect("Linux");
        assert!((1 << 20..1 << 40).contains(&bytes), "{bytes}");
    }
}
