//! A session's files as one download: whole packets, one file after another,
//! in constant memory.

use crate::api_error::ApiError;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use nano_trace::merge::append;
use nano_trace::read::Source;
use nano_trace::{SessionName, TraceFileName};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

/// Downloads at once: each takes a thread.
const DOWNLOADS: usize = 4;
static PLACES: Semaphore = Semaphore::const_new(DOWNLOADS);

/// Bytes that are handed on at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks that wait for a client.
const CHUNKS: usize = 4;
/// A client that takes nothing for so long is let go: others wait for its place.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names the processes whose files are missing in an answer.
const MISSING: HeaderName = HeaderName::from_static("x-nano-profile-missing");

/// The files of a session of this run: of these roles, if they are there.
pub(super) async fn response(
    dir: PathBuf,
    run: String,
    session: SessionName,
    roles: &[String],
) -> Result<Response, ApiError> {
    let place = PLACES.try_acquire();
    let place =
        place.map_err(|_| ApiError::busy("other traces are being fetched; try again later"))?;
    let failed = |_| ApiError::internal("the traces could not be looked for");
    let of_session = session.clone();
    let files = spawn_blocking(move || files(&dir, &run, &of_session));
    let found = files.await.map_err(failed)?;
    let missing: Vec<&str> = roles
        .iter()
        .map(String::as_str)
        .filter(|role| found.iter().all(|(of, _)| of != role))
        .collect();
    if found.is_empty() {
        let message = format!("the files of session {session} are not in the directory any more");
        return Err(ApiError::missing(message));
    }
    let missing = match &missing[..] {
        [] => None,
        missing => HeaderValue::from_str(&missing.join(", ")).ok(),
    };
    let files: Vec<PathBuf> = found.into_iter().map(|(_, path)| path).collect();
    let (chunks, receiver) = mpsc::channel(CHUNKS);
    spawn_blocking(move || {
        let _place = place;
        send(&files, chunks);
    });
    let body = stream::unfold(receiver, async |mut receiver| {
        Some((receiver.recv().await?, receiver))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{session}.pftrace\""),
        ),
    ];
    let mut response = (headers, Body::from_stream(body)).into_response();
    if let Some(missing) = missing {
        response.headers_mut().insert(MISSING, missing);
    }
    Ok(response)
}

/// Role and path, sorted. A directory that is gone has none; what is no file, or
/// was emptied, is none.
fn files(dir: &Path, run: &str, session: &SessionName) -> Vec<(String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut files: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name: TraceFileName = entry.file_name().to_str()?.parse().ok()?;
            let wanted = name.run == run && name.session == session.as_str();
            let about = entry.metadata().ok()?;
            let is_whole = about.is_file() && about.len() > 0;
            (wanted && is_whole).then(|| {
                let role = match name.rank {
                    Some(rank) => format!("{}-{rank}", name.role),
                    None => name.role,
                };
                (role, entry.path())
            })
        })
        .collect();
    files.sort();
    files
}

/// Sends whole packets, until the client is gone. A file that cannot be read
/// breaks the answer off: what came would look whole.
fn send(files: &[PathBuf], chunks: mpsc::Sender<io::Result<Bytes>>) {
    let mut out = Chunks {
        chunks,
        next: BytesMut::with_capacity(CHUNK_BYTES),
    };
    let sent = files.iter().try_for_each(|file| {
        append(Source::File(file.clone()), &mut out)
            .map(drop)
            .map_err(|error| io::Error::other(error.to_string()))
    });
    if let Err(error) = sent.and_then(|()| out.flush()) {
        // Fails when it was the client that went, or that stands still.
        let _ = out.chunks.try_send(Err(error));
    }
}

/// Hands on what is written, in chunks.
struct Chunks {
    chunks: mpsc::Sender<io::Result<Bytes>>,
    next: BytesMut,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.next.len());
        self.next.extend_from_slice(&bytes[..taken]);
        if self.next.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        let full = std::mem::replace(&mut self.next, BytesMut::with_capacity(CHUNK_BYTES));
        if full.is_empty() {
            return Ok(());
        }
        let sent = self.chunks.send_timeout(Ok(full.freeze()), PATIENCE);
        let sent = Handle::current().block_on(sent);
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}
