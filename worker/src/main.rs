//! `nano-worker`: one rank's model runner as a process of its own.

use nano_ipc::child;
use nano_ipc::config::WorkerConfig;
use nano_ipc::connection::Connection;
use nano_worker::WorkerError;
use std::process::ExitCode;

fn main() -> ExitCode {
    child::main(
        |config: WorkerConfig, run, lifecycle| -> Result<(), WorkerError> {
            let connection = Connection::connect(&config.engine_socket)?;
            nano_worker::run(&config, connection, run, &lifecycle)
        },
    )
}
