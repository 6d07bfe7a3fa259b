//! A frontend on a free port, a double in the core's place, and a client.

mod client;
mod core_double;

pub use client::{Response, get, post, request, send};
pub use core_double::{CoreDouble, output};

use nano_frontend::FrontendError;
use nano_frontend::text::TextModel;
use nano_ipc::config::FrontendConfig;
use nano_ipc::connection::Connection;
use nano_ipc::engine_info::{EngineInfo, ModelRunnerInfo};
use nano_ipc::lifecycle::{Lifecycle, Shutdown};
use nano_ipc::to_launcher::ToLauncher;
use nano_model::ModelSource;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longer than anything here takes on the slowest machine; a test that waits
/// so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Tokens of the context.
pub const MAX_MODEL_LEN: u32 = 512;

/// A frontend on a free port.
pub struct Server {
    pub addr: SocketAddr,
    pub lifecycle: Arc<Lifecycle>,
    /// What it reports to the launcher.
    pub reports: Receiver<ToLauncher>,
    thread: Option<JoinHandle<Result<(), FrontendError>>>,
}

pub fn model_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/tiny-llama")
}

pub fn model() -> TextModel {
    let source = ModelSource::open(&model_path()).expect("golden model");
    TextModel::load(&source, None).expect("golden model")
}

pub fn config() -> FrontendConfig {
    FrontendConfig {
        model: model_path(),
        served_model_names: vec!["tiny".to_owned(), "alias/of-it".to_owned()],
        chat_template: None,
        http_listener_fd: -1,
        engine_socket: PathBuf::new(),
        profile_api_key: None,
        api_key: None,
        max_body_bytes: 1 << 20,
        max_connections: 64,
        max_queued_requests: 16,
        seed: Some(1),
        rules: Default::default(),
    }
}

pub fn engine_info() -> EngineInfo {
    EngineInfo {
        max_model_len: MAX_MODEL_LEN,
        vocab_size: model().vocab_size() as u32,
        num_kv_blocks: 1000,
        block_size: 16,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        enable_prefix_caching: true,
        model: ModelRunnerInfo {
            architecture: "LlamaForCausalLM".to_owned(),
            dtype: "f32".to_owned(),
            device: "none".to_owned(),
            weight_bytes: 0,
            load_ms: 0,
        },
    }
}

impl Server {
    /// Starts a frontend whose core has not said yet that it is ready.
    pub fn loading(config: FrontendConfig) -> (Server, CoreDouble) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("free port");
        let addr = listener.local_addr().expect("bound");
        let (near, far) = UnixStream::pair().expect("socketpair");
        let (sender, reports) = channel();
        let lifecycle = Lifecycle::new(move |message| {
            // A test that is over reads no more.
            let _ = sender.send(message);
        });
        let lifecycle = Arc::new(lifecycle.expect("event descriptor"));
        let shared = Arc::clone(&lifecycle);
        let thread = thread::spawn(move || {
            let engine = Connection::from_fd(near.into());
            nano_frontend::run(&config, listener, engine, RUN, shared)
        });
        let server = Server {
            addr,
            lifecycle,
            reports,
            thread: Some(thread),
        };
        (server, CoreDouble::new(far))
    }

    /// Starts a frontend and waits until it takes requests.
    pub fn start(config: FrontendConfig) -> (Server, CoreDouble) {
        let (server, core) = Server::loading(config);
        core.ready(engine_info());
        let report = server.reports.recv_timeout(PATIENCE).expect("a report");
        assert_eq!(report, ToLauncher::Ready(engine_info()));
        (server, core)
    }

    pub fn shut_down(&self, drain: Duration, reason: &str) {
        self.lifecycle.request_shutdown(Shutdown {
            drain_until: Instant::now() + drain,
            reason: reason.to_owned(),
        });
    }

    /// Waits until the frontend has ended.
    pub fn join(mut self) -> Result<(), FrontendError> {
        let thread = self.thread.take().expect("joined once");
        thread.join().expect("no panic")
    }
}

/// Posts JSON and reads nothing.
pub fn client_send(addr: SocketAddr, path: &str, body: &Value) -> TcpStream {
    send(addr, "POST", path, &[], body.to_string().as_bytes())
}

/// The server's random word.
pub const RUN: u64 = 0x5eed;

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shut_down(Duration::ZERO, "the test is over");
            let ended = thread.join();
            if !thread::panicking() {
                let _ = ended.expect("no panic");
            }
        }
    }
}
