//! The frontend's life: load, serve, drain.

use crate::app::App;
use crate::engine_client::{EngineClient, EngineState, SlowRules};
use crate::event_loop::watch_for_stalls;
use crate::http_server::{ConnectionLimits, HttpServer};
use crate::metrics::EngineMetrics;
use crate::routes;
use crate::text::TextModel;
use nano_ipc::config::FrontendConfig;
use nano_ipc::connection::{Connection, ConnectionError};
use nano_ipc::lifecycle::{Lifecycle, Shutdown};
use nano_ipc::to_launcher::ToLauncher;
use nano_model::{ModelError, ModelSource};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Threads of the event loop at most: they only wait, parse and detokenize.
const MAX_THREADS: usize = 4;
/// How long answers that are complete may take to leave when the server ends;
/// less than [`nano_ipc::child::GRACE`], after which the process is ended.
const FLUSH: Duration = Duration::from_millis(500);

/// Why the frontend could not go on.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// The system refused something that the server needs.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The launcher passed no such descriptor.
    #[error("the inherited HTTP socket cannot be used: {0}")]
    Inherited(io::Error),
    /// The core does not listen.
    #[error(transparent)]
    Connect(#[from] ConnectionError),
    /// Tokenizer, chat template or generation config.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file with a chat template that cannot be read.
    #[error("{path}: {source}")]
    ChatTemplate {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The metrics library refused a name or label.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The core is gone.
    #[error("{0}")]
    EngineLost(String),
    /// A thread panicked.
    #[error("the tokenizer could not be loaded: {0}")]
    Load(tokio::task::JoinError),
}

fn system(what: &'static str) -> impl Fn(io::Error) -> FrontendError {
    move |source| FrontendError::System { what, source }
}

/// Serves HTTP on `http` (bound and listening) for the core at the other end
/// of `engine`, until the lifecycle says to end or the core is gone. Listens
/// from the start: `/health` says what is missing until all is loaded, and
/// then the launcher is told.
///
/// # Errors
/// When the model's text part cannot be loaded, or the core is gone; open
/// requests were answered before.
pub fn run(
    config: &FrontendConfig,
    http: std::net::TcpListener,
    engine: Connection,
    run: u64,
    lifecycle: Arc<Lifecycle>,
) -> Result<(), FrontendError> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.min(MAX_THREADS))
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(system("the event loop cannot be started"))?;
    let result = runtime.block_on(serve(config, http, engine, run, lifecycle));
    // A prompt that is still being tokenized is not waited for.
    runtime.shutdown_background();
    result
}

async fn serve(
    config: &FrontendConfig,
    http: std::net::TcpListener,
    engine: Connection,
    run: u64,
    lifecycle: Arc<Lifecycle>,
) -> Result<(), FrontendError> {
    let listener = http
        .set_nonblocking(true)
        .and_then(|()| tokio::net::TcpListener::from_std(http))
        .map_err(system("the HTTP socket cannot be used"))?;
    let name = config.served_model_names.first();
    let metrics = Arc::new(EngineMetrics::new(name.map_or("", String::as_str))?);
    let engine = EngineClient::start(
        engine,
        run,
        config.max_queued_requests as usize,
        Arc::clone(&metrics),
        SlowRules::new(&config.rules, {
            let lifecycle = Arc::clone(&lifecycle);
            move |fired| lifecycle.report(ToLauncher::RuleFired(fired))
        }),
    )
    .map_err(system("the engine's socket cannot be used"))?;
    let app = Arc::new(App::new(
        config.clone(),
        engine,
        metrics,
        Arc::clone(&lifecycle),
        run,
        config.seed.unwrap_or_else(random),
    ));
    let mut orders = Orders::new(Arc::clone(&lifecycle))
        .map_err(system("the shutdown event cannot be watched"))?;
    tokio::spawn(watch_for_stalls());
    let server = HttpServer::start(
        listener,
        routes::router(Arc::clone(&app)),
        ConnectionLimits::new(config.max_connections),
    );
    let shutdown = tokio::select! {
        shutdown = orders.next() => shutdown,
        error = until_broken(&app, &lifecycle) => {
            // Every open request has its error by now, which must go out; and
            // whoever asks learns from /health.
            if matches!(error, FrontendError::EngineLost(_)) {
                sleep(FLUSH).await;
            }
            return Err(error);
        }
    };
    drain(&app, &mut orders, shutdown).await;
    // What does not go out in time has a client that does not read.
    let _ = timeout(FLUSH, server.close()).await;
    Ok(())
}

/// Loads, tells the launcher, and waits for what ends the server.
async fn until_broken(app: &Arc<App>, lifecycle: &Lifecycle) -> FrontendError {
    match load(app.config.clone()).await {
        Ok(model) => {
            // Set once, here.
            let _ = app.model.set(Arc::new(model));
        }
        Err(error) => return error,
    }
    let mut states = app.engine.watch_state();
    loop {
        // Only the last message before the connection's task ends is `Dead`.
        let state = states.borrow_and_update().clone();
        match state {
            EngineState::Loading => {}
            EngineState::Ready(info) => lifecycle.report(ToLauncher::Ready((*info).clone())),
            EngineState::Dead(reason) => return FrontendError::EngineLost(reason.to_string()),
        }
        if states.changed().await.is_err() {
            return FrontendError::EngineLost("the engine's connection broke off".to_owned());
        }
    }
}

async fn load(config: FrontendConfig) -> Result<TextModel, FrontendError> {
    let loading = tokio::task::spawn_blocking(move || {
        let template = match &config.chat_template {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path);
                Some(text.map_err(|source| FrontendError::ChatTemplate {
                    path: path.clone(),
                    source,
                })?)
            }
        };
        let source = ModelSource::open(&config.model)?;
        Ok(TextModel::load(&source, template.as_deref())?)
    });
    loading.await.map_err(FrontendError::Load)?
}

/// Lets open requests go on until they end or their time is up; then they get
/// the order's reason as an error. New ones are refused meanwhile.
async fn drain(app: &App, orders: &mut Orders, first: Shutdown) {
    let mut order = first;
    loop {
        tokio::select! {
            () = app.engine.drained() => return,
            () = sleep_until(Instant::from_std(order.drain_until)) => {
                app.engine.fail_all(&order.reason);
                // Each is told before its room is free.
                return app.engine.drained().await;
            }
            changed = orders.next() => order = changed,
        }
    }
}

/// The launcher's orders to end.
struct Orders {
    event: AsyncFd<OwnedFd>,
    lifecycle: Arc<Lifecycle>,
}

impl Orders {
    fn new(lifecycle: Arc<Lifecycle>) -> io::Result<Orders> {
        let event = lifecycle.shutdown_fd().try_clone_to_owned()?;
        // SAFETY: `event` is open, owned by the `AsyncFd` until that is dropped,
        // and nobody replaces or closes it meanwhile.
        let event = unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) }?;
        Ok(Orders { event, lifecycle })
    }

    /// Waits for an order that was not seen yet. Cancel-safe.
    async fn next(&mut self) -> Shutdown {
        loop {
            match self.event.readable().await {
                // The event is never read; each order is one more edge.
                Ok(mut ready) => ready.clear_ready(),
                // The runtime ends, and this wait with it.
                Err(_) => std::future::pending().await,
            }
            if let Some(shutdown) = self.lifecycle.shutdown() {
                return shutdown;
            }
        }
    }
}

/// The keys of the standard library's hasher come from the system's source of
/// randomness.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
