//! One Unix-socket connection of a process that polls or blocks.

use crate::frame::{self, FrameBuffer, FrameError, KEPT_BYTES};
use interprocess::local_socket::{self, GenericFilePath, prelude::*};
use interprocess::os::unix::uds_local_socket::Stream;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

const READ_BYTES: usize = 64 << 10;
const READS_PER_FILL: usize = 16;

/// Why a connection can no longer be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Nobody listens there, or it is no socket.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        /// The socket's path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The peer closed it, or died.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer sent what is no message of ours, or a message is too long to send.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer does not read, and the bytes kept for it reached the bound.
    #[error("the peer does not read: {0} bytes wait for it")]
    Full(usize),
    /// The system refused to read or write.
    #[error("socket error: {0}")]
    Io(#[from] Errno),
}

/// One Unix-socket connection of a process that polls or blocks.
///
/// [`send`](Self::send) and [`receive`](Self::receive) block. A polling loop
/// uses [`queue`](Self::queue) and [`flush`](Self::flush), which never wait, and
/// [`fill`](Self::fill) and [`next`](Self::next), which take what has come. Who
/// does not poll for room uses [`tell`](Self::tell), which does not wait either.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    incoming: FrameBuffer,
    /// Encoded, not yet written; the part before `sent` is.
    outgoing: Vec<u8>,
    sent: usize,
}

impl Connection {
    /// Connects to a listening socket.
    ///
    /// # Errors
    /// [`ConnectionError::Connect`], with the path.
    pub fn connect(path: &Path) -> Result<Connection, ConnectionError> {
        path.to_fs_name::<GenericFilePath>()
            .and_then(local_socket::Stream::connect)
            .map(Connection::from_stream)
            .map_err(|source| ConnectionError::Connect {
                path: path.to_owned(),
                source,
            })
    }

    /// Takes over a connected socket, for example half of a socketpair.
    pub fn from_fd(fd: OwnedFd) -> Connection {
        Connection::from_stream(local_socket::Stream::UdSocket(fd.into()))
    }

    /// Takes over an accepted stream.
    pub fn from_stream(stream: local_socket::Stream) -> Connection {
        let local_socket::Stream::UdSocket(stream) = stream;
        Connection {
            stream,
            incoming: FrameBuffer::default(),
            outgoing: Vec::new(),
            sent: 0,
        }
    }

    /// Gives up the socket, with what was read from it and not yet taken. What
    /// is queued and not flushed is lost.
    pub fn into_parts(self) -> (OwnedFd, FrameBuffer) {
        (self.stream.into(), self.incoming)
    }

    /// Sends one message and waits until the system has taken all of it;
    /// returns the frame's length in bytes.
    ///
    /// # Errors
    /// When the peer is gone or the message is too long.
    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<usize, ConnectionError> {
        let bytes = frame::write(message, &mut self.outgoing)?;
        self.write(MsgFlags::empty())?;
        Ok(bytes)
    }

    /// Waits for one message.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] at the end of the stream.
    pub fn receive<M: DeserializeOwned>(&mut self) -> Result<M, ConnectionError> {
        loop {
            if let Some(message) = self.next()? {
                return Ok(message);
            }
            self.read(MsgFlags::empty())?;
        }
    }

    /// Encodes one message for the next [`flush`](Self::flush); returns the
    /// frame's length in bytes.
    ///
    /// # Errors
    /// [`ConnectionError::Full`] when more than `bound` bytes would wait: the
    /// message is then not queued.
    pub fn queue<M: Serialize>(
        &mut self,
        message: &M,
        bound: usize,
    ) -> Result<usize, ConnectionError> {
        let before = self.outgoing.len();
        let bytes = frame::write(message, &mut self.outgoing)?;
        let waiting = self.outgoing.len() - self.sent;
        if waiting > bound {
            self.outgoing.truncate(before);
            return Err(ConnectionError::Full(waiting));
        }
        Ok(bytes)
    }

    /// Writes what the socket takes without waiting; `true` when nothing is left.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn flush(&mut self) -> Result<bool, ConnectionError> {
        self.write(MsgFlags::MSG_DONTWAIT)
    }

    /// Sends one message as far as that needs no waiting; the rest goes out
    /// before the next one.
    ///
    /// # Errors
    /// When the peer is gone; [`ConnectionError::Full`] as with
    /// [`queue`](Self::queue).
    pub fn tell<M: Serialize>(&mut self, message: &M, bound: usize) -> Result<(), ConnectionError> {
        // What waits goes first: nobody else flushes it, and a full queue would
        // stay full when the peer reads again.
        self.flush()?;
        self.queue(message, bound)?;
        self.flush()?;
        Ok(())
    }

    /// Whether queued bytes wait for the socket to become writable.
    pub fn wants_write(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Reads what has come, without waiting, but not more than a megabyte, so
    /// that one peer cannot keep the caller from the others: poll again for the
    /// rest. Take it by [`next`](Self::next).
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] at the end of the stream; messages read
    /// before can still be taken.
    pub fn fill(&mut self) -> Result<(), ConnectionError> {
        for _ in 0..READS_PER_FILL {
            if self.read(MsgFlags::MSG_DONTWAIT)? < READ_BYTES {
                break;
            }
        }
        Ok(())
    }

    /// The next message among what was read.
    ///
    /// # Errors
    /// When the peer sent what is no message of this type.
    #[expect(clippy::should_implement_trait, reason = "the caller names the type")]
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ConnectionError> {
        Ok(self.incoming.next()?)
    }

    /// Bytes read that belong to no message taken yet.
    pub fn buffered(&self) -> usize {
        self.incoming.len()
    }

    /// Reads once; 0 when nothing has come yet.
    fn read(&mut self, flags: MsgFlags) -> Result<usize, ConnectionError> {
        let mut bytes = [0; READ_BYTES];
        loop {
            match recv(self.stream.as_fd().as_raw_fd(), &mut bytes, flags) {
                Ok(0) | Err(Errno::ECONNRESET) => return Err(ConnectionError::Closed),
                Ok(read) => {
                    self.incoming.extend(&bytes[..read]);
                    return Ok(read);
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(0),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn write(&mut self, flags: MsgFlags) -> Result<bool, ConnectionError> {
        while self.sent < self.outgoing.len() {
            let rest = &self.outgoing[self.sent..];
            match send(
                self.stream.as_fd().as_raw_fd(),
                rest,
                flags | MsgFlags::MSG_NOSIGNAL,
            ) {
                Ok(written) => self.sent += written,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    // What was sent must not pile up in front of what was not;
                    // moving the rest pays once it is the smaller part.
                    if self.sent > self.outgoing.len() / 2 {
                        self.outgoing.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(false);
                }
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(ConnectionError::Closed),
                Err(errno) => return Err(errno.into()),
            }
        }
        self.outgoing.clear();
        self.outgoing.shrink_to(KEPT_BYTES);
        self.sent = 0;
        Ok(true)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_core_request::RequestId;
    use crate::to_core::ToCore;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Connection, Connection) {
        let (a, b) = UnixStream::pair().expect("socketpair");
        (Connection::from_fd(a.into()), Connection::from_fd(b.into()))
    }

    #[test]
    fn a_peer_that_does_not_read_costs_bounded_memory_and_loses_nothing_queued() {
        let (mut near, mut far) = pair();
        let bound = 1 << 20;
        let mut queued = 0;
        let full = loop {
            match near.queue(&ToCore::Abort(RequestId(queued)), bound) {
                Ok(_) => queued += 1,
                Err(error) => break error,
            }
            near.flush().expect("peer is alive");
        };
        assert!(matches!(full, ConnectionError::Full(_)), "{full}");
        let mut received = 0;
        while received < queued {
            let _ = near.flush().expect("peer is alive");
            far.fill().expect("peer is alive");
            while let Some(message) = far.next::<ToCore>().expect("whole frames") {
                assert_eq!(message, ToCore::Abort(RequestId(received)));
                received += 1;
            }
        }
    }

    #[test]
    fn a_peer_that_reads_again_is_told_again() {
        let (mut near, mut far) = pair();
        let bound = 1 << 10;
        let mut told = 0;
        let full = loop {
            match near.tell(&ToCore::Abort(RequestId(told)), bound) {
                Ok(()) => told += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, ConnectionError::Full(_)), "{full}");
        far.fill().expect("peer is alive");
        near.tell(&ToCore::Abort(RequestId(told)), bound)
            .expect("there is room");
        assert!(!near.wants_write(), "everything went out");
        for number in 0..=told {
            let message = far.receive::<ToCore>().expect("peer is alive");
            assert_eq!(message, ToCore::Abort(RequestId(number)));
        }
    }

    #[test]
    fn messages_sent_before_the_end_are_received_before_it() {
        let (mut near, mut far) = pair();
        near.send(&ToCore::Abort(RequestId(1)))
            .expect("peer is alive");
        drop(near);
        assert!(matches!(
            far.receive::<ToCore>(),
            Ok(ToCore::Abort(RequestId(1)))
        ));
        assert!(matches!(
            far.receive::<ToCore>(),
            Err(ConnectionError::Closed)
        ));
        assert!(matches!(
            far.send(&ToCore::Abort(RequestId(2))),
            Err(ConnectionError::Closed)
        ));
    }
}
