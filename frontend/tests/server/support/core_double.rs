//! Stands in the core's place: keeps what the frontend says, and answers what
//! the test says.

use super::{PATIENCE, RUN};
use nano_ipc::connection::Connection;
use nano_ipc::engine_core_output::{EngineCoreOutput, FinishReason};
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::lifecycle::boottime_ns;
use nano_ipc::model_runner_output::TokenLogprobs;
use nano_ipc::role::Role;
use nano_ipc::to_core::{Hello, PROTOCOL_VERSION, ToCore};
use nano_ipc::to_frontend::{SchedulerStats, ToFrontend};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

pub struct CoreDouble {
    messages: Receiver<ToCore>,
    sender: Mutex<Connection>,
    socket: UnixStream,
}

impl CoreDouble {
    pub fn new(socket: UnixStream) -> CoreDouble {
        let clone = || socket.try_clone().expect("descriptor");
        let mut receiver = Connection::from_fd(clone().into());
        let sender = Mutex::new(Connection::from_fd(clone().into()));
        let (push, messages) = channel();
        // Ends with the connection.
        thread::spawn(move || {
            while let Ok(message) = receiver.receive() {
                if push.send(message).is_err() {
                    break;
                }
            }
        });
        CoreDouble {
            messages,
            sender,
            socket,
        }
    }

    pub fn send(&self, message: &ToFrontend) {
        let mut sender = self.sender.lock().expect("no panic");
        sender.send(message).expect("the frontend is alive");
    }

    /// Expects the greeting, and says that the engine is ready.
    pub fn ready(&self, info: EngineInfo) {
        let hello = ToCore::Hello(Hello {
            protocol_version: PROTOCOL_VERSION,
            role: Role::Frontend,
            run: RUN,
        });
        assert_eq!(self.next(), hello);
        self.send(&ToFrontend::Ready(info));
    }

    fn next(&self) -> ToCore {
        self.messages
            .recv_timeout(PATIENCE)
            .expect("a message from the frontend")
    }

    pub fn next_add(&self) -> EngineCoreRequest {
        match self.next() {
            ToCore::Add(request) => request,
            other => panic!("expected Add, got {other:?}"),
        }
    }

    /// The next request; that others were given up before is no matter.
    pub fn next_add_after_aborts(&self) -> EngineCoreRequest {
        loop {
            match self.next() {
                ToCore::Add(request) => return request,
                ToCore::Abort(_) => {}
                other => panic!("expected Add, got {other:?}"),
            }
        }
    }

    pub fn next_abort(&self) -> RequestId {
        match self.next() {
            ToCore::Abort(id) => id,
            other => panic!("expected Abort, got {other:?}"),
        }
    }

    /// Nothing came that was not taken.
    pub fn is_quiet(&self) -> bool {
        self.messages.try_recv().is_err()
    }

    pub fn outputs(&self, outputs: Vec<EngineCoreOutput>) {
        self.outputs_with(outputs, SchedulerStats::default());
    }

    pub fn outputs_with(&self, outputs: Vec<EngineCoreOutput>, stats: SchedulerStats) {
        self.send(&ToFrontend::Outputs { outputs, stats });
    }

    /// One output for one sequence.
    pub fn tokens(&self, id: RequestId, token_ids: &[u32], finish: Option<FinishReason>) {
        self.outputs(vec![output(id, token_ids, finish)]);
    }

    /// The core dies: its end of the connection closes.
    pub fn die(&self) {
        self.socket.shutdown(Shutdown::Both).expect("connected");
    }
}

/// An output with log-probabilities that depend on the tokens alone.
pub fn output(
    id: RequestId,
    token_ids: &[u32],
    finish_reason: Option<FinishReason>,
) -> EngineCoreOutput {
    let logprobs = token_ids.iter().map(|id| TokenLogprobs {
        token_id: *id,
        logprob: -0.5,
        rank: 2,
        top: vec![(*id + 1, -0.25), (*id, -0.5), (*id + 2, f32::NEG_INFINITY)],
    });
    EngineCoreOutput {
        id,
        token_ids: token_ids.to_vec(),
        logprobs: logprobs.collect(),
        prompt_logprobs: None,
        num_cached_tokens: 0,
        first_step_ns: boottime_ns(),
        finish_reason,
    }
}
