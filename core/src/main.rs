//! `nano-core`: the engine's step loop as a process of its own.

use nano_core::{CoreError, Endpoint};
use nano_ipc::child;
use nano_ipc::config::CoreConfig;
use std::process::ExitCode;

fn main() -> ExitCode {
    child::main(
        |config: CoreConfig, run, lifecycle| -> Result<(), CoreError> {
            let listener = child::take_inherited(config.engine_listener_fd)?;
            let endpoint = Endpoint::Listener(listener);
            nano_core::run(&config, endpoint, run, &lifecycle)
        },
    )
}
