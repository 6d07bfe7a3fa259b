//! The one task that owns the connection to the core.

use super::router::Router;
use super::slow_rules::SlowRules;
use super::{Command, EngineState};
use crate::metrics::EngineMetrics;
use nano_ipc::async_connection::{self, AsyncReceiver, AsyncSender};
use nano_ipc::connection::{Connection, ConnectionError};
use nano_ipc::lifecycle::boottime_ns;
use nano_ipc::role::Role;
use nano_ipc::to_core::{Hello, PROTOCOL_VERSION, ToCore};
use nano_ipc::to_frontend::ToFrontend;
use nano_trace::{Event, Flow};
use std::io;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, watch};

/// What handlers see of the task.
pub(super) struct Shared {
    pub state: watch::Sender<EngineState>,
    pub metrics: Arc<EngineMetrics>,
    pub admission: Arc<Semaphore>,
    pub max_sequences: usize,
}

/// Why the connection is of no more use.
enum End {
    /// The frontend drops its last client.
    Unused,
    Lost(String),
}

struct Task {
    receiver: AsyncReceiver,
    sender: AsyncSender,
    router: Router,
    shared: Shared,
}

pub(super) fn spawn(
    connection: Connection,
    run: u64,
    commands: mpsc::UnboundedReceiver<Command>,
    slow: SlowRules,
    shared: Shared,
) -> io::Result<()> {
    let (receiver, sender) = async_connection::split(connection)?;
    let task = Task {
        receiver,
        sender,
        router: Router::new(Arc::clone(&shared.metrics), slow),
        shared,
    };
    tokio::spawn(task.run(run, commands));
    Ok(())
}

impl Task {
    async fn run(mut self, run: u64, mut commands: mpsc::UnboundedReceiver<Command>) {
        let hello = self.queue(&ToCore::Hello(Hello {
            protocol_version: PROTOCOL_VERSION,
            role: Role::Frontend,
            run,
        }));
        let end = match hello {
            Ok(()) => self.serve(&mut commands).await,
            Err(error) => End::Lost(error.to_string()),
        };
        let reason = match end {
            End::Unused => "the frontend ends".to_owned(),
            End::Lost(reason) => format!("the engine is gone: {reason}"),
        };
        // First the state, so that whoever learns of the error finds it there.
        self.shared
            .state
            .send_replace(EngineState::Dead(reason.as_str().into()));
        self.router.fail_all(&reason, boottime_ns());
        // What was on its way here gets the same answer, and nothing comes after.
        commands.close();
        while let Some(command) = commands.recv().await {
            if let Command::Submit(sequences) = command {
                for (_, route) in sequences {
                    route.refuse(reason.clone());
                }
            }
        }
    }

    /// Both directions and the handlers' commands, until one of them ends. The
    /// core is read even while it does not read, so that neither waits for the
    /// other.
    async fn serve(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) -> End {
        loop {
            let end = tokio::select! {
                filled = self.receiver.fill() => self.receive(filled),
                command = commands.recv() => match command {
                    Some(command) => self.obey(command).map_err(lost),
                    None => Err(End::Unused),
                },
                flushed = self.sender.flush(), if self.sender.waiting() > 0 => flushed.map_err(lost),
            };
            if let Err(end) = end {
                return end;
            }
        }
    }

    /// Takes apart what was read; also what came before the connection ended.
    fn receive(&mut self, filled: Result<(), ConnectionError>) -> Result<(), End> {
        while let Some(message) = self.receiver.next().map_err(lost)? {
            match message {
                ToFrontend::Ready(info) => {
                    self.shared.metrics.engine_ready(&info);
                    self.shared
                        .state
                        .send_replace(EngineState::Ready(Arc::new(info)));
                }
                ToFrontend::Outputs { outputs, stats } => {
                    let _slice = nano_trace::slice(Event::EngineReceive, [outputs.len() as u64]);
                    let now_ns = boottime_ns();
                    self.shared.metrics.scheduler(&stats);
                    for output in outputs {
                        let id = output.id;
                        if self.router.deliver(output, now_ns) {
                            self.queue(&ToCore::Abort(id)).map_err(lost)?;
                        }
                    }
                }
                ToFrontend::Fatal(reason) => return Err(End::Lost(reason)),
            }
        }
        filled.map_err(lost)
    }

    fn obey(&mut self, command: Command) -> Result<(), ConnectionError> {
        match command {
            Command::Submit(sequences) => {
                for (request, route) in sequences {
                    let _slice = nano_trace::slice_with(
                        Event::EngineSubmit,
                        [request.prompt_token_ids.len() as u64],
                        &[Flow::request(request.trace_key)],
                    );
                    let id = request.id;
                    let watched = self.router.watch(&request);
                    match self.queue(&ToCore::Add(request)) {
                        Ok(()) => self.router.open(id, route, watched),
                        // Too long for a frame: this one alone fails.
                        Err(error) => route.refuse(error.to_string()),
                    }
                }
            }
            Command::Close { id, ending } => {
                if self.router.close(id, ending, boottime_ns()) {
                    self.queue(&ToCore::Abort(id))?;
                }
            }
            Command::FailAll(reason) => {
                for id in self.router.fail_all(&reason, boottime_ns()) {
                    self.queue(&ToCore::Abort(id))?;
                }
            }
            Command::Check(answer) => {
                let free = self.shared.admission.available_permits();
                self.router
                    .check_integrity(self.shared.max_sequences - free);
                // Nobody waits when the test gave up.
                let _ = answer.send(self.router.len());
            }
        }
        Ok(())
    }

    fn queue(&mut self, message: &ToCore) -> Result<(), ConnectionError> {
        self.sender.queue(message).map(drop)
    }
}

fn lost(error: ConnectionError) -> End {
    End::Lost(error.to_string())
}
