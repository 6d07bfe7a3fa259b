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

/// Bytes that a client may leave unread before its stream waits; also bounds
/// a request's head.
const BUFFER_BYTES: usize = 64 << 10;
/// After an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// At once; more wait in the kernel's queue.
    pub max_connections: u32,
    /// How long a connection may take for a request's head, or be idle.
    pub head_timeout: Duration,
    /// How long a client may read nothing while something waits for it.
    pub read_patience: Duration,
}

impl ConnectionLimits {
    /// With the times that clients and proxies are used to.
    pub fn new(max_connections: u32) -> ConnectionLimits {
        ConnectionLimits {
            max_connections,
            head_timeout: Duration::from_secs(60),
            read_patience: Duration::from_secs(120),
        }
    }
}

/// Serves HTTP/1.1 on a listener until it is closed.
pub struct HttpServer {
    closing: watch::Sender<bool>,
    connections: Arc<Semaphore>,
    max_connections: u32,
    accepting: JoinHandle<()>,
}

impl HttpServer {
    /// Starts to accept.
    pub fn start(listener: TcpListener, router: Router, limits: ConnectionLimits) -> HttpServer {
        let (closing, closed) = watch::channel(false);
        let max_connections = limits.max_connections;
        let connections = Arc::new(Semaphore::new(max_connections as usize));
        let acceptor = Acceptor {
            router,
            limits,
            closed,
        };
        let accepting = tokio::spawn(acceptor.run(listener, Arc::clone(&connections)));
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

/// What all connections share.
#[derive(Clone)]
struct Acceptor {
    router: Router,
    limits: ConnectionLimits,
    closed: watch::Receiver<bool>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener, connections: Arc<Semaphore>) {
        while let Ok(permit) = Arc::clone(&connections).acquire_owned().await {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    log::warn!("a connection could not be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let connection = self.clone().serve(stream);
            tokio::spawn(async move {
                connection.await;
                drop(permit);
            });
        }
    }

    async fn serve(mut self, stream: TcpStream) {
        // Each event goes out at once. Fails only on a socket that is gone.
        let _ = stream.set_nodelay(true);
        let stream = StalledWrites::new(TokioIo::new(stream), self.limits.read_patience);
        let service = tower::ServiceExt::map_request(self.router, |request: hyper::Request<_>| {
            request.map(Body::new)
        });
        let mut connection = std::pin::pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.head_timeout)
                .max_buf_size(BUFFER_BYTES)
                .serve_connection(stream, TowerToHyperService::new(service))
        );
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = async { drop(self.closed.wait_for(|closing| *closing).await) } => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            log::debug!("a connection ended: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, timeout};

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    /// Longer than anything here takes on the slowest machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn serve(limits: ConnectionLimits) -> (HttpServer, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("free port");
        let addr = listener.local_addr().expect("bound");
        let router = Router::new().route("/", get(async || "answer"));
        (HttpServer::start(listener, router, limits), addr)
    }

    async fn connect(addr: SocketAddr) -> TcpStream {
        TcpStream::connect(addr).await.expect("the server listens")
    }

    /// Reads until the answer is whole.
    async fn answer(stream: &mut TcpStream) {
        let mut answer = Vec::new();
        while !answer.ends_with(b"answer") {
            let read = stream.read_buf(&mut answer);
            let read = timeout(PATIENCE, read).await.expect("in time");
            assert!(read.expect("connected") > 0, "{answer:?}");
        }
    }

    /// Reads until the server closes.
    async fn closed(stream: &mut TcpStream) {
        let mut rest = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        // Reset, if something was on its way to the server.
        drop(read.expect("the server closes it"));
    }

    #[tokio::test]
    async fn who_idles_or_is_slow_with_a_head_is_closed() {
        let mut limits = ConnectionLimits::new(8);
        limits.head_timeout = Duration::from_millis(50);
        let (_server, addr) = serve(limits).await;
        let silent = connect(addr).await;
        let mut half = connect(addr).await;
        half.write_all(&REQUEST[..20]).await.expect("connected");
        let mut used = connect(addr).await;
        used.write_all(REQUEST).await.expect("connected");
        answer(&mut used).await;
        for mut stream in [silent, half, used] {
            closed(&mut stream).await;
        }
        // A byte now and then does not help.
        let mut slow = connect(addr).await;
        let begun = Instant::now();
        while slow.write_all(b"x").await.is_ok() {
            assert!(begun.elapsed() < PATIENCE, "it is still open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn connections_beyond_the_cap_wait_until_one_ends() {
        let (_server, addr) = serve(ConnectionLimits::new(2)).await;
        let mut open = [connect(addr).await, connect(addr).await];
        for stream in &mut open {
            stream.write_all(REQUEST).await.expect("connected");
            answer(stream).await;
        }
        let mut third = connect(addr).await;
        third.write_all(REQUEST).await.expect("the kernel takes it");
        let early = timeout(Duration::from_millis(200), third.read_u8()).await;
        assert!(early.is_err(), "there are two already");
        let [first, mut second] = open;
        drop(first);
        answer(&mut third).await;
        // Who was there before is served on.
        second.write_all(REQUEST).await.expect("connected");
        answer(&mut second).await;
    }

    #[tokio::test]
    async fn closing_ends_idle_connections_and_accepts_no_more() {
        let (server, addr) = serve(ConnectionLimits::new(8)).await;
        let mut idle = connect(addr).await;
        idle.write_all(REQUEST).await.expect("connected");
        answer(&mut idle).await;
        timeout(PATIENCE, server.close())
            .await
            .expect("none is left");
        closed(&mut idle).await;
        assert!(TcpStream::connect(addr).await.is_err());
    }
}
