//! The connections of the core: who they are, and what they said.

mod handshake;

use crate::error::CoreError;
use crate::sequence::ClientId;
use nano_ipc::connection::{Connection, ConnectionError};
use nano_ipc::model_runner_output::ModelRunnerOutput;
use nano_ipc::to_core::{ToCore, WorkerLoaded};
use nano_ipc::to_frontend::ToFrontend;
use nano_ipc::to_worker::ToWorker;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// Bytes that may wait for a frontend that does not read, and for a worker.
const MAX_UNREAD_BYTES: usize = 64 << 20;

/// Connections at once; more are closed at once.
const MAX_CONNECTIONS: usize = 256;

/// After a connection could not be accepted, for want of a descriptor: it goes
/// on waiting, and without a pause the loop would turn without end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How frontends and workers reach the core.
#[derive(Debug)]
pub enum Endpoint {
    /// A bound, listening Unix socket.
    Listener(OwnedFd),
    /// Connected sockets, one for each frontend and worker; nobody else can join.
    Connected(Vec<OwnedFd>),
}

/// What a frontend wants, or that it is there or gone.
#[derive(Debug)]
pub enum FrontendEvent {
    /// It said a valid `Hello`.
    Joined,
    /// It sent `Add` or `Abort`; any other message ends the connection.
    Message(ToCore),
    /// The connection ended.
    Left,
}

/// What a worker said.
#[derive(Debug)]
pub enum WorkerEvent {
    /// Its weights are in memory.
    Loaded(WorkerLoaded),
    /// The result of a step.
    StepDone(ModelRunnerOutput),
}

/// What a peer did.
#[derive(Debug)]
pub enum PeerEvent {
    /// A frontend did something.
    Frontend(ClientId, FrontendEvent),
    /// A worker said something.
    Worker(u32, WorkerEvent),
}

/// Whom to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// Nobody: only see who is ready.
    Nobody,
    /// Anybody.
    Anybody,
    /// A worker's message. Frontends can only be written to meanwhile: what
    /// they send stays in their sockets.
    Workers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    /// No `Hello` yet.
    Unknown,
    Frontend,
    Worker {
        rank: u32,
    },
}

#[derive(Debug)]
struct Peer {
    connection: Connection,
    identity: Identity,
}

/// All connections of the core, served by the thread that also steps: it never
/// waits for a single one of them, only in [`wait`](Self::wait) for all.
///
/// A frontend that breaks the protocol, or does not read, loses its
/// connection, and nobody else anything. A worker that does so ends the core:
/// nothing works without it.
#[derive(Debug)]
pub struct Peers {
    listener: Option<UnixListener>,
    /// When to accept again after it failed.
    accept_after: Option<Instant>,
    run: u64,
    world_size: u32,
    peers: BTreeMap<ClientId, Peer>,
    last_id: u64,
    /// Peers that [`wait`](Self::wait) found readable.
    readable: Vec<ClientId>,
    /// Frontends whose end is not yet told.
    left: Vec<ClientId>,
}

impl Peers {
    /// Nobody has said anything yet.
    ///
    /// # Errors
    /// When the listener is no socket.
    pub fn new(endpoint: Endpoint, run: u64, world_size: u32) -> Result<Peers, CoreError> {
        let mut peers = Peers {
            listener: None,
            accept_after: None,
            run,
            world_size,
            peers: BTreeMap::new(),
            last_id: 0,
            readable: Vec::new(),
            left: Vec::new(),
        };
        match endpoint {
            Endpoint::Listener(fd) => {
                let listener = UnixListener::from(fd);
                listener.set_nonblocking(true).map_err(errno)?;
                peers.listener = Some(listener);
            }
            Endpoint::Connected(fds) => fds.into_iter().for_each(|fd| peers.join(fd)),
        }
        Ok(peers)
    }

    fn join(&mut self, fd: OwnedFd) {
        self.last_id += 1;
        let peer = Peer {
            connection: Connection::from_fd(fd),
            identity: Identity::Unknown,
        };
        self.peers.insert(ClientId(self.last_id), peer);
    }

    /// Waits until a peer can be read (or `interrupt` can), and writes what is
    /// queued meanwhile. Take what came by [`receive`](Self::receive).
    ///
    /// # Errors
    /// When the system cannot wait, or a worker is gone.
    pub fn wait(&mut self, whom: WaitFor, interrupt: BorrowedFd<'_>) -> Result<(), CoreError> {
        loop {
            let timeout = if whom == WaitFor::Nobody || !self.left.is_empty() {
                PollTimeout::ZERO
            } else if whom == WaitFor::Anybody {
                self.accept_pause().map_or(PollTimeout::NONE, |rest| {
                    // One more millisecond: poll rounds down.
                    PollTimeout::try_from(rest + Duration::from_millis(1))
                        .unwrap_or(PollTimeout::MAX)
                })
            } else {
                PollTimeout::NONE
            };
            let (ready, stop) = self.poll(whom, interrupt, timeout)?;
            for (id, flags) in ready {
                if flags.contains(PollFlags::POLLOUT) {
                    self.flush(id)?;
                }
                if flags.intersects(!PollFlags::POLLOUT) {
                    self.readable.push(id);
                }
            }
            let done = !self.readable.is_empty() || !self.left.is_empty();
            if done || stop || whom == WaitFor::Nobody {
                return Ok(());
            }
        }
    }

    /// Which peers are ready for what, and whether `interrupt` is readable.
    /// Accepts those who knock.
    fn poll(
        &mut self,
        whom: WaitFor,
        interrupt: BorrowedFd<'_>,
        timeout: PollTimeout,
    ) -> Result<(Vec<(ClientId, PollFlags)>, bool), CoreError> {
        let mut ids = Vec::with_capacity(self.peers.len());
        let mut fds = Vec::with_capacity(self.peers.len() + 2);
        fds.push(PollFd::new(interrupt, PollFlags::POLLIN));
        for (id, peer) in &self.peers {
            let mut flags = PollFlags::empty();
            let is_worker = matches!(peer.identity, Identity::Worker { .. });
            flags.set(PollFlags::POLLIN, is_worker || whom != WaitFor::Workers);
            flags.set(PollFlags::POLLOUT, peer.connection.wants_write());
            if !flags.is_empty() {
                ids.push(*id);
                fds.push(PollFd::new(peer.connection.as_fd(), flags));
            }
        }
        let accepts = whom != WaitFor::Workers && self.accept_pause().is_none();
        if let Some(listener) = self.listener.as_ref().filter(|_| accepts) {
            fds.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok((Vec::new(), false)),
            Err(error) => return Err(error.into()),
        }

        let revents = |fd: &PollFd| fd.revents().unwrap_or(PollFlags::POLLERR);
        let stop = !revents(&fds[0]).is_empty();
        let flags = fds[1..=ids.len()].iter().map(revents);
        let ready = ids.iter().copied().zip(flags);
        let ready: Vec<_> = ready.filter(|(_, flags)| !flags.is_empty()).collect();
        let knocked = fds
            .get(ids.len() + 1)
            .is_some_and(|fd| !revents(fd).is_empty());
        if knocked {
            self.accept();
        }
        Ok((ready, stop))
    }

    fn accept(&mut self) {
        while let Some(accepted) = self.listener.as_ref().map(UnixListener::accept) {
            match accepted {
                Ok(_) if self.peers.len() >= MAX_CONNECTIONS => {
                    log::error!("a connection is refused: {MAX_CONNECTIONS} are open");
                }
                Ok((stream, _)) => {
                    self.accept_after = None;
                    self.join(stream.into());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let until = Instant::now() + ACCEPT_PAUSE;
                    if self.accept_after.replace(until).is_none() {
                        log::error!("a connection has to wait: {error}");
                    }
                    return;
                }
            }
        }
    }

    /// What is left of the pause after a connection could not be accepted.
    fn accept_pause(&self) -> Option<Duration> {
        let until = self.accept_after?;
        let rest = until.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    /// What the peers that [`wait`](Self::wait) found have sent, in order for
    /// each, and who left.
    ///
    /// # Errors
    /// When a worker is gone, failed, or broke the protocol.
    pub fn receive(&mut self) -> Result<Vec<PeerEvent>, CoreError> {
        let mut events = Vec::new();
        for id in std::mem::take(&mut self.readable) {
            self.read(id, &mut events)?;
        }
        let left = self.left.drain(..);
        events.extend(left.map(|id| PeerEvent::Frontend(id, FrontendEvent::Left)));
        Ok(events)
    }

    fn read(&mut self, id: ClientId, events: &mut Vec<PeerEvent>) -> Result<(), CoreError> {
        let Some(peer) = self.peers.get_mut(&id) else {
            return Ok(());
        };
        // Messages sent before the end are taken before it.
        let filled = peer.connection.fill();
        while let Some(peer) = self.peers.get_mut(&id) {
            match peer.connection.next::<ToCore>() {
                Ok(Some(message)) => {
                    events.extend(self.interpret(id, message)?);
                }
                Ok(None) => break,
                Err(error) => return self.lose(id, error),
            }
        }
        filled.or_else(|error| self.lose(id, error))
    }

    /// What a message means, given who sent it.
    fn interpret(&mut self, id: ClientId, message: ToCore) -> Result<Option<PeerEvent>, CoreError> {
        let Some(peer) = self.peers.get(&id) else {
            return Ok(None);
        };
        let event = match (peer.identity, message) {
            (Identity::Unknown, ToCore::Hello(hello)) => return self.greet(id, hello),
            (Identity::Frontend, message @ (ToCore::Add(_) | ToCore::Abort(_))) => {
                PeerEvent::Frontend(id, FrontendEvent::Message(message))
            }
            (Identity::Worker { rank }, ToCore::Loaded(loaded)) => {
                PeerEvent::Worker(rank, WorkerEvent::Loaded(loaded))
            }
            (Identity::Worker { rank }, ToCore::StepDone(result)) => {
                PeerEvent::Worker(rank, WorkerEvent::StepDone(result))
            }
            (Identity::Worker { rank }, ToCore::Fatal(reason)) => {
                return Err(CoreError::WorkerFailed { rank, reason });
            }
            (Identity::Worker { rank }, message) => {
                let what = format!("it sent {}", kind(&message));
                return Err(CoreError::WorkerProtocol { rank, what });
            }
            (Identity::Unknown | Identity::Frontend, message) => {
                self.dismiss(id, &format!("it sent {}", kind(&message)));
                return Ok(None);
            }
        };
        Ok(Some(event))
    }

    /// Ends a connection that is no worker's.
    pub fn dismiss(&mut self, id: ClientId, why: &str) {
        if let Some(peer) = self.peers.remove(&id) {
            log::error!("connection {} is closed: {why}", id.0);
            if peer.identity == Identity::Frontend {
                self.left.push(id);
            }
        }
    }

    /// A connection can no longer be used.
    fn lose(&mut self, id: ClientId, source: ConnectionError) -> Result<(), CoreError> {
        let Some(peer) = self.peers.get(&id) else {
            return Ok(());
        };
        match (peer.identity, source) {
            (Identity::Worker { rank }, source) => Err(CoreError::WorkerGone { rank, source }),
            (_, ConnectionError::Closed) => {
                log::debug!("connection {} was closed by its peer", id.0);
                if self
                    .peers
                    .remove(&id)
                    .is_some_and(|peer| peer.identity == Identity::Frontend)
                {
                    self.left.push(id);
                }
                Ok(())
            }
            (_, source) => {
                self.dismiss(id, &source.to_string());
                Ok(())
            }
        }
    }

    fn flush(&mut self, id: ClientId) -> Result<(), CoreError> {
        match self.peers.get_mut(&id).map(|peer| peer.connection.flush()) {
            // That a peer has gone is learnt by reading, after what it said
            // last: a worker's own reason tells more than its absence.
            None | Some(Ok(_) | Err(ConnectionError::Closed)) => Ok(()),
            Some(Err(error)) => self.lose(id, error),
        }
    }

    /// Sends to a frontend, without waiting for it. One that does not read for
    /// too long, or has gone, is lost.
    pub fn send_to_frontend(&mut self, id: ClientId, message: &ToFrontend) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let connection = &mut peer.connection;
        let queued = connection.queue(message, MAX_UNREAD_BYTES);
        if let Err(error) = queued.and_then(|_| connection.flush()) {
            // A frontend's loss is no error of the core.
            let _ = self.lose(id, error);
        }
    }

    /// Sends to every worker, without waiting for any; returns the bytes sent.
    /// That one is gone is learnt by reading.
    ///
    /// # Errors
    /// When one does not read.
    pub fn send_to_workers(&mut self, message: &ToWorker) -> Result<usize, CoreError> {
        let mut bytes = 0;
        for peer in self.peers.values_mut() {
            if let Identity::Worker { rank } = peer.identity {
                let connection = &mut peer.connection;
                let queued = connection.queue(message, MAX_UNREAD_BYTES);
                match queued.and_then(|length| connection.flush().map(|_| length)) {
                    Ok(length) => bytes += length,
                    Err(ConnectionError::Closed) => {}
                    Err(source) => return Err(CoreError::WorkerGone { rank, source }),
                }
            }
        }
        Ok(bytes)
    }

    /// Frontends that are connected.
    pub fn frontends(&self) -> Vec<ClientId> {
        let frontends = self.peers.iter();
        let frontends = frontends.filter(|(_, peer)| peer.identity == Identity::Frontend);
        frontends.map(|(id, _)| *id).collect()
    }

    /// Tells every frontend why the core ends, and gives them `patience` to
    /// take everything that is queued for them.
    pub fn say_goodbye(&mut self, reason: &str, patience: Duration) {
        let until = Instant::now() + patience;
        self.peers
            .retain(|_, peer| peer.identity == Identity::Frontend);
        for id in self.frontends() {
            self.send_to_frontend(id, &ToFrontend::Fatal(reason.to_owned()));
        }
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            self.peers.retain(|_, peer| peer.connection.wants_write());
            if self.peers.is_empty() || rest.is_zero() {
                return;
            }
            let connections = self.peers.values().map(|peer| peer.connection.as_fd());
            let writable = connections.map(|fd| PollFd::new(fd, PollFlags::POLLOUT));
            let timeout = PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX);
            match poll(&mut writable.collect::<Vec<_>>(), timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
            self.peers.retain(|_, peer| peer.connection.flush().is_ok());
        }
    }
}

/// A message's name, without its content: that may be long and is the client's.
fn kind(message: &ToCore) -> &'static str {
    match message {
        ToCore::Hello(_) => "a second Hello",
        ToCore::Add(_) => "Add, which only frontends may",
        ToCore::Abort(_) => "Abort, which only frontends may",
        ToCore::Loaded(_) => "Loaded, which only workers may",
        ToCore::StepDone(_) => "StepDone, which only workers may",
        ToCore::Fatal(_) => "Fatal, which only workers may",
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests;
