//! `nano-trace open`.

use crate::choice::{Choice, merged_name};
use nano_trace::merge::{MergeError, merge_into};
use nano_trace::selection::Wanted;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

/// The viewer. It fetches a trace from its user's machine, and from this
/// origin's pages alone a browser lets it.
const VIEWER: &str = "https://ui.perfetto.dev";

#[derive(clap::Args)]
pub(crate) struct Open {
    #[command(flatten)]
    choice: Choice,
    /// Go on serving after the trace was fetched once
    #[arg(long)]
    keep: bool,
    /// The viewer fetches from port 9001 only
    #[arg(long, default_value_t = 9001, hide = true)]
    port: u16,
}

/// How long a browser may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a request's head at most.
const MAX_HEAD: u64 = 16 << 10;

impl Open {
    pub(crate) fn run(self) -> Result<ExitCode, MergeError> {
        let selection = self.choice.select(Wanted::Newest)?;
        let name = merged_name(&selection);
        let memory = memfd_create("trace", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?;
        let trace = File::from(memory);
        merge_into(&selection.files, trace.try_clone()?)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).map_err(|e| {
            let port = self.port;
            io::Error::new(e.kind(), format!("cannot serve on 127.0.0.1:{port}: {e}"))
        })?;
        let address = listener.local_addr()?;
        println!("{VIEWER}/#!/?url=http://{address}/{name}");
        // A browser opens connections ahead, and says nothing on them: nobody
        // waits for another one.
        let served = Arc::new((name, trace));
        let (fetched, was_fetched) = sync_channel(0);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (served, fetched) = (Arc::clone(&served), fetched.clone());
                let answering = thread::Builder::new().spawn(move || {
                    // A browser that goes away in between may come again.
                    if matches!(answer(connection, &served.0, &served.1), Ok(true)) {
                        let _ = fetched.send(());
                    }
                });
                // Without a thread it is closed, and comes again.
                drop(answering);
            }
        });
        while was_fetched.recv().is_ok() && self.keep {}
        Ok(ExitCode::SUCCESS)
    }
}

/// Answers one request; whether it fetched the trace.
fn answer(mut connection: TcpStream, name: &str, trace: &File) -> io::Result<bool> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut connection)?;
    let line = head.lines().next().unwrap_or_default();
    let mut words = line.split(' ');
    let (method, path) = (
        words.next(),
        words.next().and_then(|path| path.strip_prefix('/')),
    );
    let (status, body) = match (method, path) {
        (Some("GET" | "HEAD"), Some(path)) if path == name => ("200 OK", Some(trace)),
        // Before it asks a page's own machine, a browser may ask whether it may.
        (Some("OPTIONS"), _) => ("204 No Content", None),
        _ => ("404 Not Found", None),
    };
    let length = match &body {
        Some(trace) => trace.metadata()?.len(),
        None => 0,
    };
    let length = match status {
        "204 No Content" => String::new(),
        _ => format!("Content-Length: {length}\r\n"),
    };
    write!(
        connection,
        "HTTP/1.1 {status}\r\n{length}\
         Content-Type: application/octet-stream\r\n\
         Access-Control-Allow-Origin: {VIEWER}\r\n\
         Access-Control-Allow-Private-Network: true\r\n\
         Cache-Control: no-cache\r\n\
         Connection: close\r\n\r\n"
    )?;
    let Some(trace) = body.filter(|_| method == Some("GET")) else {
        return Ok(false);
    };
    let (mut chunk, mut at) = (vec![0; 64 << 10], 0);
    loop {
        // Others read the same file: each has a place of its own.
        let len = trace.read_at(&mut chunk, at)?;
        if len == 0 {
            return Ok(true);
        }
        connection.write_all(&chunk[..len])?;
        at += len as u64;
    }
}

/// A request's head; its body, if it has one, is not looked at.
fn read_head(connection: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = io::BufReader::new(Read::take(connection, MAX_HEAD)).bytes();
    while !head.ends_with(b"\r\n\r\n") {
        match byte.next() {
            Some(byte) => head.push(byte?),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
