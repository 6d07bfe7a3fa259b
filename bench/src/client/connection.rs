//! Connections: how they are made, and those that wait to be used again.

use super::Payload;
use crate::url::Origin;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, pki_types::ServerName};

/// Makes connections.
#[derive(Clone)]
pub struct Connector {
    /// Present when any server speaks TLS.
    tls: Option<TlsConnector>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("tls", &self.tls.is_some())
            .finish()
    }
}

/// The system has no usable certificates.
#[derive(Debug, thiserror::Error)]
#[error("no certificate authorities to trust (the system's, or SSL_CERT_FILE): {0}")]
pub struct TlsError(String);

impl Connector {
    /// For these servers.
    ///
    /// # Errors
    /// When one speaks TLS and the system trusts nobody.
    pub fn new<'a>(mut origins: impl Iterator<Item = &'a Origin>) -> Result<Connector, TlsError> {
        if !origins.any(|origin| origin.secure) {
            return Ok(Connector { tls: None });
        }
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let errors = found.errors.iter().map(ToString::to_string);
            return Err(TlsError(errors.collect::<Vec<_>>().join("; ")));
        }
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Connector {
            tls: Some(TlsConnector::from(Arc::new(config))),
        })
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self, origin: &Origin) -> io::Result<Connection> {
        let stream = TcpStream::connect((origin.host.as_str(), origin.port)).await?;
        stream.set_nodelay(true)?;
        if !origin.secure {
            return handshake(stream).await;
        }
        let tls = self
            .tls
            .as_ref()
            .ok_or_else(|| io::Error::other("no TLS"))?;
        let name = ServerName::try_from(origin.host.clone()).map_err(io::Error::other)?;
        handshake(tls.connect(name, stream).await?).await
    }
}

async fn handshake<S>(stream: S) -> io::Result<Connection>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(io::Error::other)?;
    // It ends when the sender is dropped, or the server hangs up; what went
    // wrong is told to the request.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(Connection { sender })
}

/// An open connection, for one request at a time.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Payload>,
}

impl Connection {
    /// Sends a request, and waits for the head of its answer. A request that
    /// was not sent at all is in the error.
    pub(crate) async fn send(
        &mut self,
        request: Request<Payload>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Payload>>> {
        self.sender.try_send_request(request).await
    }
}

/// Connections to one server that wait for their next request; no more than
/// requests at once.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<Connection>>);

impl Pool {
    /// Keeps a connection for the next request, unless its server closed it.
    pub(super) fn put(&self, connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(connection);
    }

    /// The one that was used last and is still open.
    pub(super) async fn take(&self) -> Option<Connection> {
        loop {
            let mut connection = self.pop()?;
            if connection.sender.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    fn pop(&self) -> Option<Connection> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop()
    }
}
