//! `nano-mock-worker`: stands in for `nano-worker`, with the same control and
//! data protocols, and no model. See [`nano_tests::doubles::mock_worker`].

use nano_ipc::child;
use nano_ipc::config::WorkerConfig;
use nano_ipc::connection::Connection;
use nano_tests::doubles::mock_worker::MockWorker;
use std::process::ExitCode;

fn main() -> ExitCode {
    child::main(
        |config: WorkerConfig, run, _lifecycle| -> Result<(), String> {
            let core =
                Connection::connect(&config.engine_socket).map_err(|error| error.to_string())?;
            // It needs no order to end: the end of the core's connection is one.
            MockWorker::from_config(&config)?.serve(core, run)
        },
    )
}
