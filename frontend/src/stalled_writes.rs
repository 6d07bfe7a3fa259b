//! Ends connections whose clients have stopped to read.

use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose writes fail once the peer has taken nothing for a while. A
/// client that does not read must not hold a connection, and the answer that
/// waits for it, for ever.
pub struct StalledWrites<S> {
    inner: S,
    patience: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StalledWrites<S> {
    /// Writes may wait for `patience`.
    pub fn new(inner: S, patience: Duration) -> StalledWrites<S> {
        StalledWrites {
            inner,
            patience,
            stalled: None,
        }
    }

    /// Passes on what a write came to, unless it has waited too long.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        stalled.as_mut().reset(Instant::now() + patience);
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read",
        )))
    }
}

impl<S: Read + Unpin> Read for StalledWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: Write + Unpin> Write for StalledWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper_util::rt::TokioIo;
    use std::future::poll_fn;
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn a_peer_that_does_not_read_ends_the_stream_and_one_that_reads_does_not() {
        let (near, far) = UnixStream::pair().expect("socketpair");
        let mut near = StalledWrites::new(TokioIo::new(near), Duration::from_millis(100));
        let mut write = async || {
            let bytes = [0; 1 << 16];
            poll_fn(|cx| Pin::new(&mut near).poll_write(cx, &bytes)).await
        };
        let mut sent = 0;
        let error = loop {
            match write().await {
                Ok(written) => sent += written,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(sent > 0);
        let mut bytes = vec![0; sent];
        let mut read = 0;
        while read < sent {
            far.readable().await.expect("connected");
            match far.try_read(&mut bytes[read..]) {
                Ok(more) => read += more,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        write().await.expect("there is room again");
    }
}
