//! `nano-frontend`: HTTP as a process of its own.

use nano_frontend::FrontendError;
use nano_ipc::child;
use nano_ipc::config::FrontendConfig;
use nano_ipc::connection::Connection;
use std::net::TcpListener;
use std::process::ExitCode;

fn main() -> ExitCode {
    child::main(
        |config: FrontendConfig, run, lifecycle| -> Result<(), FrontendError> {
            let http = child::take_inherited(config.http_listener_fd)
                .map(TcpListener::from)
                .map_err(|errno| FrontendError::Inherited(errno.into()))?;
            let engine = Connection::connect(&config.engine_socket)?;
            nano_frontend::run(&config, http, engine, run, lifecycle)
        },
    )
}
