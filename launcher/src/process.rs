//! One child: how it is started, told things and heard.

use crate::dumper::Recorded;
use crate::pulse::Pulse;
use crate::signals::END_SIGNALS;
use nano_ipc::child::CONTROL_FD_FLAG;
use nano_ipc::config::Start;
use nano_ipc::connection::{Connection, ConnectionError};
use nano_ipc::role::Role;
use nano_ipc::to_child::ToChild;
use nano_ipc::to_launcher::ToLauncher;
use nano_trace::Rings;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of messages to a child that does not read; a stopped one gets few.
const CONTROL_BOUND: usize = 1 << 20;

/// A child that has not been reaped.
#[derive(Debug)]
pub struct Process {
    /// What it is.
    pub role: Role,
    /// Its number, which cannot be reused before it is reaped.
    pub pid: Pid,
    /// Pings and pongs.
    pub pulse: Pulse,
    /// The reason it gave for ending, if it did.
    pub failed: Option<String>,
    /// Whether we killed it.
    pub killed: bool,
    /// It was ended by a signal that was not ours, without a chance to finish
    /// anything.
    pub is_dead: bool,
    /// What it records into, if it does; outlives it.
    rings: Option<Arc<Rings>>,
    /// `None` once it has closed its end, as it does when it dies.
    control: Option<Connection>,
}

/// Why a child could not be started.
#[derive(Debug, thiserror::Error)]
pub enum CannotSpawn {
    /// Not there, or not executable, or no process to be had.
    #[error("cannot start {}: {source}", program.display())]
    Program {
        /// Which.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No descriptor to be had.
    #[error("cannot reach {program}: {reason}")]
    Control {
        /// Which.
        program: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl Process {
    /// Starts the role's program, which lies beside the launcher's own, with
    /// the descriptors that `start` names (`rings` among them), and sends it `start`.
    ///
    /// Must be called from the launcher's main thread: the signal at the
    /// parent's death comes when the thread that spawned ends.
    ///
    /// # Errors
    /// One line that names the program.
    pub fn spawn(
        start: Start,
        inherited: &[BorrowedFd<'_>],
        rings: Option<Rings>,
    ) -> Result<Process, CannotSpawn> {
        let role = start.role.role();
        let program = program(role);
        let at_control = |reason: String| CannotSpawn::Control { program, reason };
        let (near, far) = UnixStream::pair().map_err(|error| at_control(error.to_string()))?;
        let path = beside_this_program(program).map_err(|error| at_control(error.to_string()))?;
        let mut command = Command::new(&path);
        command
            .arg(CONTROL_FD_FLAG)
            .arg(far.as_raw_fd().to_string())
            .stdin(Stdio::null());
        let inherited: Vec<RawFd> = [far.as_fd()]
            .into_iter()
            .chain(rings.as_ref().map(Rings::fd))
            .chain(inherited.iter().copied())
            .map(|fd| fd.as_raw_fd())
            .collect();
        // SAFETY: between fork and exec only async-signal-safe calls are made,
        // and nothing is allocated: `prepare` says the same.
        unsafe { command.pre_exec(move || prepare(&inherited)) };
        let child = command.spawn().map_err(|source| CannotSpawn::Program {
            program: path,
            source,
        })?;
        // Our copy would keep the socket open after the child's death.
        drop(far);
        let mut control = Connection::from_fd(near.into());
        let control = match control.send(&ToChild::Start(Box::new(start))) {
            Ok(_) => Some(control),
            // It died at once; of what, reaping tells.
            Err(ConnectionError::Closed) => None,
            Err(error) => return Err(at_control(error.to_string())),
        };
        Ok(Process {
            role,
            // A pid fits: the kernel's own type is i32.
            pid: Pid::from_raw(child.id().cast_signed()),
            pulse: Pulse::new(Instant::now()),
            failed: None,
            killed: false,
            is_dead: false,
            rings: rings.map(Arc::new),
            control,
        })
    }

    /// The control socket, for poll.
    pub fn control_fd(&self) -> Option<BorrowedFd<'_>> {
        self.control.as_ref().map(AsFd::as_fd)
    }

    /// Tells it something without waiting. A child that is gone or does not
    /// read cannot be told; its death or silence is seen elsewhere.
    pub fn tell(&mut self, message: &ToChild) {
        if let Some(control) = &mut self.control
            && let Err(error) = control.tell(message, CONTROL_BOUND)
        {
            log::debug!("{}: {error}", self.role);
        }
    }

    /// Takes what it has said. `Pong` and `Failed` are kept here, the rest is returned.
    pub fn hear(&mut self, now: Instant) -> Vec<ToLauncher> {
        let mut said = Vec::new();
        let Some(control) = self.control.as_mut() else {
            return said;
        };
        let filled = control.fill();
        let heard = loop {
            match control.next::<ToLauncher>() {
                Ok(Some(ToLauncher::Pong {
                    number,
                    step_id,
                    busy_since_ns,
                })) => self.pulse.pong(now, number, step_id, busy_since_ns),
                Ok(Some(ToLauncher::Failed(reason))) => self.failed = Some(reason),
                Ok(Some(message)) => said.push(message),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match filled.and(heard) {
            Ok(()) => {}
            Err(ConnectionError::Closed) => self.control = None,
            Err(error) => {
                log::error!("{}: {error}", self.role);
                self.control = None;
            }
        }
        said
    }

    /// Its number, as others name it.
    pub fn number(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Orders it to end; see [`ToChild::Shutdown`]. A stopped process goes on,
    /// so that it can obey.
    pub fn end(&mut self, drain_ms: u64, reason: &str) {
        self.tell(&ToChild::Shutdown {
            drain_ms,
            reason: reason.to_owned(),
        });
        self.signal(Signal::SIGCONT);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        log::warn!("{} did not end in time: killed", self.role);
        self.killed = true;
        self.signal(Signal::SIGKILL);
    }

    /// What it records into, for a dump.
    pub fn recorded(&self) -> Option<Recorded> {
        Some(Recorded {
            pid: self.number(),
            role: self.role.to_string(),
            rings: Arc::clone(self.rings.as_ref()?),
            is_dead: self.is_dead,
        })
    }

    /// Completes the trace files of this process, which must be gone: with what
    /// it had recorded and not yet written when it was killed.
    pub fn salvage_trace(&self, dir: &Path) {
        let Some(rings) = &self.rings else { return };
        for salvaged in rings.salvage(dir) {
            match salvaged {
                Ok(salvaged) => log::info!(
                    "{}: {} last events went into {}",
                    self.role,
                    salvaged.events,
                    salvaged.file.display()
                ),
                Err(error) => log::error!("{}: its trace is incomplete: {error}", self.role),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        // Fails only for a process that is gone, which reaping shows.
        let _ = kill(self.pid, signal);
    }
}

fn program(role: Role) -> &'static str {
    match role {
        Role::Frontend => "nano-frontend",
        Role::Core => "nano-core",
        Role::Worker { .. } => "nano-worker",
    }
}

/// A program that lies in the directory of the running one.
///
/// # Errors
/// When /proc does not tell where that is.
pub fn beside_this_program(name: &str) -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(name))
}

/// What a child does between fork and exec.
fn prepare(inherited: &[RawFd]) -> io::Result<()> {
    // SIGCONT wakes a child that was stopped when the launcher dies; its
    // control thread then sees the end of its socket, answers clients and
    // finishes the trace. SIGKILL here would lose both.
    set_pdeathsig(Signal::SIGCONT)?;
    // A terminal and a service manager signal the whole group; the launcher
    // alone decides what that means.
    for ignored in END_SIGNALS {
        // SAFETY: to ignore a signal is no handler.
        unsafe { signal(ignored, SigHandler::SigIgn)? };
    }
    for &fd in inherited {
        // SAFETY: open in the parent at the fork, hence here.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    Ok(())
}
