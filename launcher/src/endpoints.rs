//! The sockets that are bound before any process starts: a port in use ends the
//! start at once, and nobody can take the engine's name in between.

use interprocess::local_socket::{self, GenericFilePath, ListenerOptions, ToFsName};
use nix::sys::socket::{Backlog, listen};
use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tempfile::TempDir;

/// The sockets that children inherit.
///
/// The launcher lets go of them ([`close`](Self::close)) once the children
/// have them: a client of a dead frontend is refused, not kept waiting.
#[derive(Debug)]
pub struct Endpoints {
    /// Listens already: clients that come while the model loads wait in its queue.
    pub http: TcpListener,
    /// Where `http` listens.
    pub address: SocketAddr,
    engine: local_socket::Listener,
    run_dir: TempDir,
}

/// How children name what they inherit.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// The bound HTTP socket.
    pub http_listener_fd: RawFd,
    /// The core's bound socket.
    pub engine_listener_fd: RawFd,
    /// The name of the latter.
    pub engine_socket: PathBuf,
}

impl Inherited {
    /// For roles that are threads of one process: nothing is inherited, they
    /// are handed their sockets.
    pub fn nothing() -> Inherited {
        Inherited {
            http_listener_fd: -1,
            engine_listener_fd: -1,
            engine_socket: PathBuf::new(),
        }
    }
}

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum CannotBind {
    /// The HTTP port.
    #[error("cannot listen on {address}: {}", reason(.source))]
    Http {
        /// The last one tried.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The run directory or the socket in it.
    #[error("cannot make the engine's socket in {}: {source} (TMPDIR names another place)", dir.display())]
    Engine {
        /// Where.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Endpoints {
    /// Binds the HTTP port, makes a fresh run directory (0700) and binds the
    /// engine's socket in it. Nothing that exists is touched.
    ///
    /// # Errors
    /// One line that names the address or the directory.
    pub fn bind(addresses: &[SocketAddr]) -> Result<Endpoints, CannotBind> {
        let (http, address) = bind_http(addresses)?;
        let at_engine = |dir: PathBuf| move |source| CannotBind::Engine { dir, source };
        let run_dir = tempfile::Builder::new()
            .prefix("nano-serve-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .map_err(at_engine(std::env::temp_dir()))?;
        let engine = engine_socket_in(&run_dir)
            .to_fs_name::<GenericFilePath>()
            .and_then(|name| {
                ListenerOptions::new()
                    .name(name)
                    // The name lives until the run directory goes.
                    .reclaim_name(false)
                    .create_sync()
            })
            .map_err(at_engine(run_dir.path().to_owned()))?;
        Ok(Endpoints {
            http,
            address,
            engine,
            run_dir,
        })
    }

    /// How children name what they inherit.
    pub fn inherited(&self) -> Inherited {
        Inherited {
            http_listener_fd: self.http.as_raw_fd(),
            engine_listener_fd: self.engine_as_fd().as_raw_fd(),
            engine_socket: engine_socket_in(&self.run_dir),
        }
    }

    /// The HTTP socket, to be inherited by the frontend.
    pub fn http_as_fd(&self) -> BorrowedFd<'_> {
        self.http.as_fd()
    }

    /// The core's listening socket, to be inherited by it.
    pub fn engine_as_fd(&self) -> BorrowedFd<'_> {
        let local_socket::Listener::UdSocket(engine) = &self.engine;
        engine.as_fd()
    }

    /// Lets go of the sockets; the run directory goes when the result does.
    pub fn close(self) -> TempDir {
        self.run_dir
    }
}

fn engine_socket_in(run_dir: &TempDir) -> PathBuf {
    run_dir.path().join("engine.sock")
}

/// Binds the first address that can be. The standard library sets SO_REUSEADDR,
/// so that connections left over from a crash do not keep the port.
///
/// # Errors
/// One line that names the last address.
pub fn bind_http(addresses: &[SocketAddr]) -> Result<(TcpListener, SocketAddr), CannotBind> {
    let mut failure = None;
    for &address in addresses {
        let bound = TcpListener::bind(address).and_then(|http| {
            // A longer queue than the standard library's 128.
            listen(&http, Backlog::MAXCONN)?;
            let address = http.local_addr()?;
            Ok((http, address))
        });
        match bound {
            Ok(bound) => return Ok(bound),
            Err(source) => failure = Some(CannotBind::Http { address, source }),
        }
    }
    Err(failure.unwrap_or(CannotBind::Http {
        address: SocketAddr::from(([0, 0, 0, 0], 0)),
        source: io::Error::other("no address"),
    }))
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is in use (--port names another one, 0 takes a free one)".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_run_directory_is_private_and_goes_with_its_owner() {
        let endpoints = Endpoints::bind(&[SocketAddr::from(([127, 0, 0, 1], 0))]).expect("free");
        let socket = endpoints.inherited().engine_socket;
        let dir = socket.parent().expect("in the run directory").to_owned();
        let mode = fs::metadata(&dir).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let run_dir = endpoints.close();
        assert!(socket.exists(), "children connect by name");
        drop(run_dir);
        assert!(!dir.exists());
    }

    #[test]
    fn a_port_in_use_is_one_clear_line() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("free port");
        let address = taken.local_addr().expect("bound");
        let line = Endpoints::bind(&[address]).expect_err("taken").to_string();
        assert_eq!(
            line,
            format!(
                "cannot listen on {address}: the port is in use (--port names another one, 0 takes a free one)"
            )
        );
    }
}
