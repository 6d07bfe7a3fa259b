//! A server that plays a script for each request, and notes when it did what.

use nano_bench::clock::Moment;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What is done for a request, in this order.
#[derive(Clone, Debug)]
pub enum Step {
    /// Status line and headers of a stream.
    StreamHead,
    /// One chunk with one token; its moment is noted.
    Token,
    /// One chunk with this text and so many token ids.
    Tokens(usize),
    /// Chunks that say why it ends and count tokens, and `[DONE]`.
    Done,
    /// The end of the body.
    End,
    /// One event with this data.
    Event(&'static str),
    /// A whole answer.
    Whole(u16, &'static str),
    Wait(Duration),
    /// The connection is closed.
    Close,
    /// Nothing ever again.
    Hang,
    /// The server is gone: it closes all connections, and listens no more.
    Die,
    /// All connections do nothing for this time, from now.
    Stall(Duration),
}

/// A request that was served.
#[derive(Clone, Debug)]
pub struct Served {
    pub path: String,
    pub body: String,
    /// Hexadecimal.
    pub trace_id: String,
    pub authorization: Option<String>,
    pub received: Moment,
    /// Right before each token was written.
    pub tokens: Vec<Moment>,
    /// Right before the end was written.
    pub ended: Option<Moment>,
}

type Script = dyn Fn(&str, usize) -> Vec<Step> + Send + Sync;

/// The server; it ends with the test.
pub struct Double {
    address: String,
    scheme: &'static str,
    state: Arc<State>,
}

struct State {
    script: Box<Script>,
    served: Mutex<Vec<Served>>,
    stalled_until: Mutex<Moment>,
    dead: watch::Sender<bool>,
    tls: Option<TlsAcceptor>,
}

/// An answer of tokens that each come after one of these waits.
pub fn stream(waits: impl IntoIterator<Item = Duration>) -> Vec<Step> {
    let mut steps = vec![Step::StreamHead];
    for wait in waits {
        if !wait.is_zero() {
            steps.push(Step::Wait(wait));
        }
        steps.push(Step::Token);
    }
    steps.extend([Step::Done, Step::End]);
    steps
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Double {
    /// `script` gets the path of a request, and how many were before it on that path.
    pub fn start(script: impl Fn(&str, usize) -> Vec<Step> + Send + Sync + 'static) -> Double {
        Double::start_with(None, Box::new(script))
    }

    /// The same behind TLS, as `localhost`.
    pub fn start_tls(
        certificate: &Path,
        key: &Path,
        script: impl Fn(&str, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Double {
        let certificate = CertificateDer::from_pem_file(certificate).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(key).expect("a key");
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config
            .with_single_cert(vec![certificate], key)
            .expect("they fit");
        Double::start_with(Some(TlsAcceptor::from(Arc::new(config))), Box::new(script))
    }

    fn start_with(tls: Option<TlsAcceptor>, script: Box<Script>) -> Double {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut address = listener.local_addr().expect("bound").to_string();
        if tls.is_some() {
            address = address.replace("127.0.0.1", "localhost");
        }
        listener.set_nonblocking(true).expect("a socket");
        let state = Arc::new(State {
            script,
            served: Mutex::new(Vec::new()),
            stalled_until: Mutex::new(Moment::from_ns(0)),
            dead: watch::channel(false).0,
            tls,
        });
        let of_thread = Arc::clone(&state);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(listen(listener, of_thread));
        });
        Double {
            address,
            scheme,
            state,
        }
    }

    pub fn url(&self) -> String {
        format!("{}://{}/v1", self.scheme, self.address)
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn served(&self) -> Vec<Served> {
        self.state.served.lock().expect("not poisoned").clone()
    }

    /// Requests of the API: those that are measured, and warm-ups.
    pub fn requests(&self) -> Vec<Served> {
        let served = self.served().into_iter();
        served
            .filter(|served| served.path.starts_with("/v1/"))
            .collect()
    }

    pub fn served_at(&self, path: &str) -> Vec<Served> {
        let served = self.served().into_iter();
        served.filter(|served| served.path == path).collect()
    }
}

async fn listen(listener: TcpListener, state: Arc<State>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    let mut dead = state.dead.subscribe();
    loop {
        tokio::select! {
            connection = listener.accept() => {
                let Ok((connection, _)) = connection else { continue };
                connection.set_nodelay(true).expect("a socket");
                let (state, mut dead) = (Arc::clone(&state), state.dead.subscribe());
                tokio::spawn(async move {
                    tokio::select! {
                        // Whoever hangs up is served no longer.
                        _ = greet(connection, &state) => {}
                        _ = dead.wait_for(|&dead| dead) => {}
                    }
                });
            }
            _ = dead.wait_for(|&dead| dead) => return,
        }
    }
}

async fn greet(connection: TcpStream, state: &State) -> std::io::Result<()> {
    match &state.tls {
        Some(tls) => serve(tls.accept(connection).await?, state).await,
        None => serve(connection, state).await,
    }
}

async fn serve<S>(mut connection: S, state: &State) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffer = Vec::new();
    loop {
        let (head, body) = loop {
            if let Some(request) = take_request(&mut buffer) {
                break request;
            }
            if connection.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let header = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            let mut values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
            values.next().map(|(_, value)| value.to_owned())
        };
        let path = head.split(' ').nth(1).expect("a request line").to_owned();
        let (place, before) = {
            let mut served = state.served.lock().expect("not poisoned");
            let before = served.iter().filter(|served| served.path == path).count();
            let traceparent = header("traceparent").unwrap_or_default();
            served.push(Served {
                path: path.clone(),
                body,
                trace_id: traceparent.split('-').nth(1).unwrap_or_default().to_owned(),
                authorization: header("authorization"),
                received: Moment::now(),
                tokens: Vec::new(),
                ended: None,
            });
            (served.len() - 1, before)
        };
        for step in (state.script)(&path, before) {
            wait_out_stall(state).await;
            if !play(step, &mut connection, state, place).await? {
                return Ok(());
            }
        }
    }
}

/// A whole request at the begin of the buffer: head and body.
fn take_request(buffer: &mut Vec<u8>) -> Option<(String, String)> {
    let end = buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(buffer[..end].to_vec()).expect("ASCII");
    let length = head.lines().find_map(|line| {
        let (key, value) = line.split_once(": ")?;
        key.eq_ignore_ascii_case("content-length")
            .then(|| value.parse::<usize>().expect("a number"))
    });
    let whole = end + length.unwrap_or(0);
    let body = String::from_utf8(buffer.get(end..whole)?.to_vec()).expect("UTF-8");
    buffer.drain(..whole);
    Some((head, body))
}

async fn wait_out_stall(state: &State) {
    loop {
        let until = *state.stalled_until.lock().expect("not poisoned");
        if Moment::now() >= until {
            return;
        }
        nano_bench::clock::sleep_until(until).await;
    }
}

/// One step; whether the connection goes on.
async fn play(
    step: Step,
    connection: &mut (impl AsyncWrite + Unpin),
    state: &State,
    place: usize,
) -> std::io::Result<bool> {
    let note = |what: &dyn Fn(&mut Served)| {
        what(&mut state.served.lock().expect("not poisoned")[place]);
    };
    match step {
        Step::StreamHead => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            connection.write_all(head.as_bytes()).await?;
        }
        Step::Token => {
            note(&|served| served.tokens.push(Moment::now()));
            connection.write_all(event(TOKEN).as_bytes()).await?;
        }
        Step::Tokens(count) => {
            let ids = vec!["7"; count].join(",");
            let data = format!(
                r#"{{"choices":[{{"index":0,"delta":{{"content":"ab"}},"token_ids":[{ids}]}}]}}"#
            );
            note(&|served| served.tokens.push(Moment::now()));
            connection.write_all(event(&data).as_bytes()).await?;
        }
        Step::Done => {
            let tokens = state.served.lock().expect("not poisoned")[place]
                .tokens
                .len();
            let usage = format!(
                r#"{{"choices":[],"usage":{{"prompt_tokens":5,"completion_tokens":{tokens},"total_tokens":{}}}}}"#,
                tokens + 5
            );
            let finish = event(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#);
            let text = finish + &event(&usage) + &event("[DONE]");
            note(&|served| served.ended = Some(Moment::now()));
            connection.write_all(text.as_bytes()).await?;
        }
        Step::End => connection.write_all(b"0\r\n\r\n").await?,
        Step::Event(data) => connection.write_all(event(data).as_bytes()).await?,
        Step::Whole(status, body) => {
            let text = format!(
                "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            note(&|served| served.ended = Some(Moment::now()));
            connection.write_all(text.as_bytes()).await?;
        }
        Step::Wait(duration) => tokio::time::sleep(duration).await,
        Step::Close => return Ok(false),
        Step::Hang => std::future::pending().await,
        Step::Die => {
            state.dead.send_replace(true);
        }
        Step::Stall(duration) => {
            *state.stalled_until.lock().expect("not poisoned") = Moment::now() + duration;
        }
    }
    Ok(true)
}

/// As servers write it: about 200 bytes a token.
const TOKEN: &str = r#"{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1750000000,"model":"double","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}"#;

/// An event as one chunk of HTTP.
fn event(data: &str) -> String {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len())
}
