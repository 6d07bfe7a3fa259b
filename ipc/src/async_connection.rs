//! One Unix-socket connection of an async process.

use crate::connection::{Connection, ConnectionError};
use crate::frame::{self, FrameBuffer, KEPT_BYTES};
use interprocess::local_socket::tokio::Stream;
use nix::errno::Errno;
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const READ_BYTES: usize = 64 << 10;

/// Turns a blocking connection into its two async directions. Must be called
/// within a tokio runtime.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub fn split(connection: Connection) -> io::Result<(AsyncReceiver, AsyncSender)> {
    let (fd, incoming) = connection.into_parts();
    let socket = UnixStream::from(fd);
    socket.set_nonblocking(true)?;
    let stream = Arc::new(Stream::UdSocket(OwnedFd::from(socket).try_into()?));
    let receiver = AsyncReceiver {
        stream: Arc::clone(&stream),
        incoming,
        bytes: vec![0; READ_BYTES],
    };
    let sender = AsyncSender {
        stream,
        outgoing: Vec::new(),
        sent: 0,
    };
    Ok((receiver, sender))
}

/// The direction towards this process.
#[derive(Debug)]
pub struct AsyncReceiver {
    stream: Arc<Stream>,
    incoming: FrameBuffer,
    bytes: Vec<u8>,
}

impl AsyncReceiver {
    /// Waits until bytes came and adds them to what [`next`](Self::next)
    /// takes. Cancel-safe: a dropped wait has read nothing.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] at the end of the stream; messages read
    /// before can still be taken.
    pub async fn fill(&mut self) -> Result<(), ConnectionError> {
        match (&*self.stream).read(&mut self.bytes).await {
            Ok(0) => Err(ConnectionError::Closed),
            Ok(read) => {
                self.incoming.extend(&self.bytes[..read]);
                Ok(())
            }
            Err(error) => Err(connection_error(&error)),
        }
    }

    /// The next message among what was read.
    ///
    /// # Errors
    /// When the peer sent what is no message of this type.
    #[expect(clippy::should_implement_trait, reason = "the caller names the type")]
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ConnectionError> {
        Ok(self.incoming.next()?)
    }

    /// Waits for one message. Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] at the end of the stream.
    pub async fn receive<M: DeserializeOwned>(&mut self) -> Result<M, ConnectionError> {
        loop {
            if let Some(message) = self.next()? {
                return Ok(message);
            }
            self.fill().await?;
        }
    }
}

/// The direction towards the peer.
#[derive(Debug)]
pub struct AsyncSender {
    stream: Arc<Stream>,
    /// Encoded, not yet written; the part before `sent` is.
    outgoing: Vec<u8>,
    sent: usize,
}

impl AsyncSender {
    /// Encodes one message for the next [`flush`](Self::flush); returns the
    /// frame's length in bytes.
    ///
    /// # Errors
    /// When the message is longer than a frame may be: it is not queued.
    pub fn queue<M: Serialize>(&mut self, message: &M) -> Result<usize, ConnectionError> {
        Ok(frame::write(message, &mut self.outgoing)?)
    }

    /// Bytes that wait for the peer.
    pub fn waiting(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Writes all that is queued. Cancel-safe: what a dropped call wrote is not
    /// written again.
    ///
    /// # Errors
    /// When the peer is gone.
    pub async fn flush(&mut self) -> Result<(), ConnectionError> {
        while self.sent < self.outgoing.len() {
            let rest = &self.outgoing[self.sent..];
            match (&*self.stream).write(rest).await {
                Ok(written) => self.sent += written,
                Err(error) => return Err(connection_error(&error)),
            }
        }
        self.outgoing.clear();
        // One long message must not hold its memory for ever.
        self.outgoing.shrink_to(KEPT_BYTES);
        self.sent = 0;
        Ok(())
    }
}

fn connection_error(error: &io::Error) -> ConnectionError {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ConnectionError::Closed,
        _ => ConnectionError::Io(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_core_request::RequestId;
    use crate::to_core::ToCore;
    use std::thread;

    fn on_runtime<F: Future>(work: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime")
            .block_on(work)
    }

    #[test]
    fn messages_cross_to_a_blocking_peer_and_back_in_order() {
        const MESSAGES: u64 = 50_000; // More than the socket's buffers hold.
        let (near, far) = UnixStream::pair().expect("socketpair");
        let echo = thread::spawn(move || {
            let mut far = Connection::from_fd(far.into());
            for _ in 0..MESSAGES {
                let message: ToCore = far.receive().expect("peer is alive");
                far.send(&message).expect("peer is alive");
            }
        });
        on_runtime(async {
            let (mut receiver, mut sender) =
                split(Connection::from_fd(near.into())).expect("in a runtime");
            for id in 0..MESSAGES {
                sender.queue(&ToCore::Abort(RequestId(id))).expect("short");
            }
            let mut received = 0;
            while received < MESSAGES {
                // The echo blocks unless both directions go on at once.
                tokio::select! {
                    flushed = sender.flush(), if sender.waiting() > 0 => flushed.expect("peer is alive"),
                    message = receiver.receive::<ToCore>() => {
                        assert_eq!(message.expect("peer is alive"), ToCore::Abort(RequestId(received)));
                        received += 1;
                    }
                }
            }
            assert!(matches!(
                receiver.fill().await,
                Err(ConnectionError::Closed)
            ));
            sender.queue(&ToCore::Abort(RequestId(0))).expect("short");
            assert!(matches!(sender.flush().await, Err(ConnectionError::Closed)));
        });
        echo.join().expect("no panic");
    }
}
