//! A server made of the real programs, and everything about its life that a
//! test asks.

use crate::harness::procfs::{self, Found, MARK};
use crate::harness::programs::{WorkerProgram, golden, install};
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take to become ready on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How long after the launcher's end a child may still hold the log open (the
/// two seconds that no orphan may outlive, and a busy machine's delay).
const LOG_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// A server to be started. Defaults: mock worker, tiny-llama, a free port.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    worker: WorkerProgram,
    model: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

/// A server that was started. Dropping it kills whatever is left of it.
pub struct Server {
    launcher: Child,
    mark: String,
    /// Each line of standard output as it comes.
    stdout: mpsc::Receiver<String>,
    log: Arc<Mutex<String>>,
    /// Ends when nobody is left who could write to the log.
    log_reader: thread::JoinHandle<()>,
    base_url: String,
    _installed: TempDir,
}

impl ServerOptions {
    /// With a worker that computes nothing and takes `step_ms` for every step.
    pub fn mock(step_ms: u32) -> ServerOptions {
        ServerOptions {
            worker: WorkerProgram::Mock,
            model: golden("models/tiny-llama"),
            args: Vec::new(),
            env: Vec::new(),
        }
        .env("NANO_MOCK_STEP_MS", &step_ms.to_string())
        .env("NANO_MOCK_VOCAB_SIZE", "768")
    }

    /// With the worker that computes, and this model.
    pub fn real(model: &Path) -> ServerOptions {
        ServerOptions {
            worker: WorkerProgram::Real,
            model: model.to_owned(),
            args: Vec::new(),
            env: Vec::new(),
        }
    }

    /// With a worker that panics when a prompt has token 700.
    pub fn faulty() -> ServerOptions {
        ServerOptions {
            worker: WorkerProgram::Faulty,
            ..ServerOptions::real(&golden("models/tiny-llama"))
        }
    }

    /// Adds flags.
    pub fn args(mut self, args: &[&str]) -> ServerOptions {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    /// Adds a variable.
    pub fn env(mut self, name: &str, value: &str) -> ServerOptions {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it is ready.
    pub fn start(self) -> Server {
        let mut server = self.spawn();
        server.wait_ready();
        server
    }

    /// Starts it, on a free port unless the flags name one, and does not wait.
    pub fn spawn(self) -> Server {
        let installed = install(self.worker);
        let mut command = Command::new(installed.path().join("nano-serve"));
        self.spawn_as(&mut command, installed)
    }

    /// Starts it by a shell that has no job control; in the script
    /// `"$0" "$@"` is the server.
    pub fn spawn_by_shell(self, script: &str) -> Server {
        self.spawn_under(&["/bin/sh", "-c", script])
    }

    /// Has another program start it, with these words before the server's own.
    pub fn spawn_under(self, words: &[&str]) -> Server {
        let installed = install(self.worker);
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg(installed.path().join("nano-serve"));
        self.spawn_as(&mut command, installed)
    }

    fn spawn_as(self, command: &mut Command, installed: TempDir) -> Server {
        static SERVERS: AtomicU32 = AtomicU32::new(0);
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}", std::process::id());
        command.arg("--model").arg(&self.model);
        if !self.args.iter().any(|arg| arg == "--port") {
            command.args(["--port", "0"]);
        }
        let mut launcher = command
            .args(&self.args)
            .env_remove("NANO_PROFILER_DIR")
            .env_remove("NANO_PROFILER_MODE")
            .env_remove("NANO_PROFILER_SCHEDULE")
            .env_remove("NANO_PROFILER_TRIGGER")
            .env_remove("NANO_PROFILER_FLIGHT_SECONDS")
            .env_remove("NANO_PROFILER_SAMPLE_HZ")
            .env_remove("NANO_ENABLE_MULTIPROCESSING")
            .env(MARK, &mark)
            .envs(self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the launcher starts");
        let (line, stdout) = mpsc::channel();
        let out = BufReader::new(launcher.stdout.take().expect("piped"));
        thread::spawn(move || {
            for text in out.lines().map_while(Result::ok) {
                // The server may have been dropped.
                let _ = line.send(text);
            }
        });
        let log = Arc::new(Mutex::new(String::new()));
        let mut err = launcher.stderr.take().expect("piped");
        let of_thread = Arc::clone(&log);
        let log_reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = err.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..read]);
                of_thread.lock().expect("not poisoned").push_str(&text);
            }
        });
        Server {
            launcher,
            mark,
            stdout,
            log,
            log_reader,
            base_url: String::new(),
            _installed: installed,
        }
    }
}

impl Server {
    /// Waits for the line with the address.
    pub fn wait_ready(&mut self) {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.stdout.recv_timeout(rest) {
                Ok(line) => {
                    if let Some(url) = line.strip_prefix("listening on ") {
                        url.clone_into(&mut self.base_url);
                        return;
                    }
                }
                Err(error) => panic!("not ready ({error}); its log:\n{}", self.log()),
            }
        }
    }

    /// `http://` and the address.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// What it has written to standard error.
    pub fn log(&self) -> String {
        self.log.lock().expect("not poisoned").clone()
    }

    /// The living process with this program's name.
    pub fn process(&self, name: &str) -> Found {
        wait_for(
            &format!("a process {name}"),
            Duration::from_secs(20),
            || {
                procfs::marked(&self.mark)
                    .into_iter()
                    // The kernel keeps fifteen bytes of a name.
                    .find(|process| {
                        name.starts_with(&process.name) && name.len().min(15) == process.name.len()
                    })
            },
        )
    }

    /// Signals the process with this program's name.
    pub fn signal(&self, name: &str, signal: Signal) -> Instant {
        let process = self.process(name);
        let now = Instant::now();
        process.signal(signal);
        now
    }

    /// Waits for the end of the process that was started, and then until all
    /// that was written to its log has been read.
    pub fn wait_exit(&mut self, within: Duration) -> ExitStatus {
        let status = wait_for("the server's end", within, || {
            self.launcher.try_wait().expect("our child")
        });
        wait_for("the end of the server's log", LOG_ENDS_WITHIN, || {
            self.log_reader.is_finished().then_some(())
        });
        status
    }

    /// Waits until no process of the server is left; how long after `since` that was.
    pub fn wait_gone(&self, since: Instant, within: Duration) -> Duration {
        let mut left = Vec::new();
        while since.elapsed() <= within {
            left = procfs::marked(&self.mark);
            if left.is_empty() {
                return since.elapsed();
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!(
            "{within:?} later there are still {left:?}; the log:\n{}",
            self.log()
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for process in procfs::marked(&self.mark) {
            process.signal(Signal::SIGKILL);
        }
        let _ = self.launcher.wait();
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// Asks until there is an answer.
pub fn wait_for<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < within, "no {what} within {within:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
