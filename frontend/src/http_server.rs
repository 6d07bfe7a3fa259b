//! Connections: how many, how long they may idle, how they end.

use crate::stalled_writes::StalledWrites;
use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

/// How long a connection may take for a request's head, or be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may read nothing while something waits for it.
const READ_PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that a client may leave unread before its stream waits; also bounds
/// a request's head.
const BUFFER_BYTES: usize = 64 << 10;
/// After an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves HTTP/1.1 on a listener until it is closed.
pub struct HttpServer {
    closing: watch::Sender<bool>,
    connections: Arc<Semaphore>,
    max_connections: u32,
    accepting: JoinHandle<()>,
}

impl HttpServer {
    /// Starts to accept. Beyond `max_connections`, connections wait in the
    /// kernel's queue.
    pub fn start(listener: TcpListener, router: Router, max_connections: u32) -> HttpServer {
        let (closing, closed) = watch::channel(false);
        let connections = Arc::new(Semaphore::new(max_connections as usize));
        let accepting = tokio::spawn(accept(listener, router, Arc::clone(&connections), closed));
        HttpServer {
            closing,
            connections,
            max_connections,
            accepting,
        }
    }

    /// Stops accepting, closes idle connections, lets the others finish their
    /// answer; returns when none is left.
    pub async fn close(self) {
        self.accepting.abort();
        self.closing.send_replace(true);
        // Never closed: the error cannot happen.
        let _ = self.connections.acquire_many(self.max_connections).await;
    }
}

async fn accept(
    listener: TcpListener,
    router: Router,
    connections: Arc<Semaphore>,
    closed: watch::Receiver<bool>,
) {
    while let Ok(permit) = Arc::clone(&connections).acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = serve(stream, router.clone(), closed.clone());
        tokio::spawn(async move {
            connection.await;
            drop(permit);
        });
    }
}

async fn serve(stream: TcpStream, router: Router, mut closed: watch::Receiver<bool>) {
    // Each event goes out at once. Fails only on a socket that is gone.
    let _ = stream.set_nodelay(true);
    let stream = StalledWrites::new(TokioIo::new(stream), READ_PATIENCE);
    let service =
        tower::ServiceExt::map_request(router, |request: hyper::Request<_>| request.map(Body::new));
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(stream, TowerToHyperService::new(service))
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = async { drop(closed.wait_for(|closing| *closing).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        log::debug!("a connection ended: {error}");
    }
}
