//! Watches the children until the last one is gone.
//!
//! One thread, one loop: signals and control sockets are polled together.
//!
//! Invariants:
//! - Every child that was spawned is in `processes` until it is reaped, and the
//!   loop ends only when none is left, or none can be killed.
//! - A child's unordered end, whatever its exit code, ends the server.
//! - Once `phase` is `Ending` every child was told so, and is killed when the
//!   time is up. `phase` never goes back.

use crate::dumper::{DumpOrder, Dumped, Dumper};
use crate::outcome::{Cause, Outcome};
use crate::process::Process;
use crate::profile_controller::{Action, Now, ProfileController};
use crate::pulse::{PING_EVERY, StallTimeout, Verdict};
use crate::signals::{DUMP_SIGNAL, END_SIGNALS, PROFILE_SIGNAL, Signals};
use nano_ipc::child::GRACE;
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::role::Role;
use nano_ipc::to_child::ToChild;
use nano_ipc::to_launcher::ToLauncher;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// After an order to end at once: when what is left is killed. Children end
/// themselves after [`GRACE`].
const KILL_AFTER: Duration = GRACE.saturating_add(Duration::from_millis(400));

/// After that: when not even killing has helped, which only the kernel can
/// cause. Together less than two seconds.
const GIVE_UP_AFTER: Duration = Duration::from_millis(400);

/// How long, after everybody's end, dumps may take that were ordered before.
const DUMPED_WITHIN: Duration = Duration::from_millis(500);

/// The loop looks at its clocks at least so often.
const TICK: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody was told to end.
    Serving,
    /// The frontend was told to end when its open requests have, and at `until` at the latest.
    Draining { until: Instant },
    /// All were told to end at once.
    Ending { kill_at: Instant },
}

/// Watches the children until the last one is gone.
pub struct Supervisor<'a> {
    processes: Vec<Process>,
    gone: Vec<Process>,
    profile: ProfileController,
    dumps: Dumps,
    signals: Signals,
    stall_timeout: StallTimeout,
    shutdown_timeout: Duration,
    phase: Phase,
    was_ready: bool,
    /// What `/health` was last told.
    unhealthy: Option<String>,
    cause: Option<Cause>,
    on_ready: Box<dyn FnMut(&EngineInfo) + 'a>,
}

impl<'a> Supervisor<'a> {
    /// Of children that run; the signals were blocked before they were started.
    pub fn new(
        processes: Vec<Process>,
        profile: ProfileController,
        dumps: Dumps,
        signals: Signals,
        stall_timeout: StallTimeout,
        shutdown_timeout: Duration,
        on_ready: impl FnMut(&EngineInfo) + 'a,
    ) -> Supervisor<'a> {
        Supervisor {
            processes,
            gone: Vec::new(),
            profile,
            dumps,
            signals,
            stall_timeout,
            shutdown_timeout,
            phase: Phase::Serving,
            was_ready: false,
            unhealthy: None,
            cause: None,
            on_ready: Box::new(on_ready),
        }
    }

    /// Watches until nobody is left.
    pub fn run(mut self) -> Ended {
        for process in &self.processes {
            self.profile.joined(process.number(), &[process.role]);
        }
        while !self.processes.is_empty() && !self.given_up() {
            self.wait();
            self.hear();
            self.obey_signals();
            self.reap();
            self.hear_of_dumps();
            self.control_profile();
            self.judge();
            self.enforce();
        }
        let Dumps { dumper, made, .. } = self.dumps;
        dumper.finish(DUMPED_WITHIN);
        made.try_iter()
            .for_each(|dumped| self.profile.dumped(dumped));
        self.profile.log_rest();
        let pid = self.cause.as_ref().and_then(Cause::pid);
        let outcome = Outcome::of(self.cause, self.was_ready);
        // A server that could not begin has nothing to explain but its last line.
        let dump = match &outcome {
            Outcome::Failed(why) => self.profile.take_dump_of_death(pid, why),
            Outcome::Ordered | Outcome::CannotStart(_) => None,
        };
        Ended {
            outcome,
            gone: self.gone,
            dump,
        }
    }

    fn given_up(&self) -> bool {
        matches!(self.phase, Phase::Ending { kill_at } if Instant::now() >= kill_at + GIVE_UP_AFTER)
    }

    /// Waits for a signal, a message, or the next look at the clocks.
    fn wait(&self) {
        let until = match self.phase {
            Phase::Serving => TICK,
            Phase::Draining { until: at } | Phase::Ending { kill_at: at } => {
                at.saturating_duration_since(Instant::now()).min(TICK)
            }
        };
        let until = match self.profile.next_tick() {
            Some(tick) => until.min(tick.saturating_duration_since(Instant::now())),
            None => until,
        };
        let controls = self.processes.iter().filter_map(Process::control_fd);
        let mut fds: Vec<PollFd> = [self.signals.as_fd(), self.dumps.event.as_fd()]
            .into_iter()
            .chain(controls)
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        // One more millisecond: poll rounds down. An error means a signal, and
        // the next round looks at everything anyway.
        let timeout = PollTimeout::try_from(until + Duration::from_millis(1));
        let _ = poll(&mut fds, timeout.unwrap_or(PollTimeout::ZERO));
    }

    /// Takes what children have said.
    fn hear(&mut self) {
        let now = Instant::now();
        for process in &mut self.processes {
            let pid = process.number();
            for message in process.hear(now) {
                if let ToLauncher::Ready(info) = message {
                    self.was_ready = true;
                    (self.on_ready)(&info);
                } else {
                    self.profile.heard(Now::read(), pid, message);
                }
            }
        }
    }

    fn hear_of_dumps(&mut self) {
        // Fails when there is nothing, and then nothing has come.
        let _ = self.dumps.event.read();
        while let Ok(dumped) = self.dumps.made.try_recv() {
            self.profile.dumped(dumped);
        }
    }

    /// Does what the profile controller wants done.
    fn control_profile(&mut self) {
        self.profile.ticked(Now::read());
        for action in self.profile.take_actions() {
            match action {
                Action::Log(line) => log::info!("{line}"),
                Action::Dump(order) => {
                    let processes = self.processes.iter().chain(&self.gone);
                    let recorded = processes.filter_map(Process::recorded).collect();
                    self.dumps.dumper.order(order, recorded);
                }
                Action::Tell { pid, message } => {
                    let mut processes = self.processes.iter_mut();
                    // One that is gone cannot be told.
                    if let Some(process) = processes.find(|process| process.number() == pid) {
                        process.tell(&message);
                    }
                }
            }
        }
    }

    fn obey_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if END_SIGNALS.contains(&signal) {
                self.order_to_end(signal);
            } else if signal == PROFILE_SIGNAL {
                self.profile.toggled(Now::read());
            } else if signal == DUMP_SIGNAL {
                self.profile.dump_signalled(Now::read());
            }
        }
    }

    /// The first order drains, the second does not.
    fn order_to_end(&mut self, signal: Signal) {
        match self.phase {
            Phase::Serving => {
                log::info!(
                    "{signal}: open requests may go on for {:?}",
                    self.shutdown_timeout
                );
                self.phase = Phase::Draining {
                    until: Instant::now() + self.shutdown_timeout + KILL_AFTER,
                };
                let drain_ms = u64::try_from(self.shutdown_timeout.as_millis()).unwrap_or(u64::MAX);
                for process in self
                    .processes
                    .iter_mut()
                    .filter(|p| p.role == Role::Frontend)
                {
                    process.end(drain_ms, "the server shuts down");
                }
            }
            Phase::Draining { .. } => {
                log::info!("{signal} again: ending at once");
                self.end_all("the server was told to end at once");
            }
            Phase::Ending { .. } => {}
        }
    }

    /// Tells all to end at once. Does nothing when they were told before.
    fn end_all(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Ending { .. }) {
            return;
        }
        self.phase = Phase::Ending {
            kill_at: Instant::now() + KILL_AFTER,
        };
        // The frontend first: its clients wait.
        self.processes
            .sort_by_key(|process| process.role != Role::Frontend);
        for process in &mut self.processes {
            process.end(0, reason);
        }
    }

    /// Takes in every child that has ended, and whatever else is a child of
    /// ours: as process 1 we inherit strangers.
    fn reap(&mut self) {
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            let Some(pid) = status.pid() else { break };
            let died = match status {
                WaitStatus::Exited(_, code) => Death::Exit(code),
                WaitStatus::Signaled(_, signal, _) => Death::Signal(signal),
                _ => continue,
            };
            let Some(index) = self.processes.iter().position(|p| p.pid == pid) else {
                continue;
            };
            let mut process = self.processes.remove(index);
            process.is_dead = matches!(died, Death::Signal(_)) && !process.killed;
            // Its last words may have come after the last look.
            let _ = process.hear(Instant::now());
            self.profile.gone(Now::read(), process.number());
            self.mourn(&process, died);
            self.gone.push(process);
        }
    }

    /// What a child's end means.
    fn mourn(&mut self, process: &Process, death: Death) {
        log::debug!("{} ended: {death:?}", process.role);
        let drained = process.role == Role::Frontend
            && matches!(self.phase, Phase::Draining { .. })
            && matches!(death, Death::Exit(0));
        if drained {
            self.end_all("the server shuts down");
            return;
        }
        let ending = matches!(self.phase, Phase::Ending { .. });
        let ordered = ending && (process.killed || matches!(death, Death::Exit(_)));
        let cause = if let Some(reason) = &process.failed {
            Cause::failure(process.role, reason)
        } else if ordered {
            return;
        } else if matches!(death, Death::Exit(0)) {
            Cause::desertion(process.role)
        } else {
            Cause::death(format!("{} {death}", process.role))
        };
        self.blame(cause.in_process(process.number()));
    }

    /// Keeps the root of what goes wrong, and ends the server. What fails while
    /// an ordered end is under way is its consequence.
    fn blame(&mut self, cause: Cause) {
        let ordered = self.cause.is_none() && matches!(self.phase, Phase::Ending { .. });
        if ordered {
            log::debug!("{}", cause.text());
            return;
        }
        self.profile.died(Now::read());
        self.end_all(&format!("the engine stopped: {}", cause.text()));
        self.cause = Some(cause.root(self.cause.take()));
    }

    /// Pings who is due, and judges who does not answer or move.
    fn judge(&mut self) {
        if matches!(self.phase, Phase::Ending { .. }) {
            return;
        }
        let now = Instant::now();
        // Others wait for one that does not answer: it is at fault, not they.
        let silent = self
            .processes
            .iter()
            .map(|process| (process.pulse.silence(now), process.role))
            .filter(|(silence, _)| *silence > 2 * PING_EVERY)
            .max_by_key(|(silence, _)| *silence)
            .map(|(_, role)| role);
        let name = |role: Role, what: &str| match silent {
            Some(other) if other != role => format!("{other} does not answer, {role} {what}"),
            _ => format!("{role} {what}"),
        };
        let mut unhealthy = None;
        let mut stalled = None;
        for process in &mut self.processes {
            if let Some(number) = process.pulse.ping(now) {
                process.tell(&ToChild::Ping(number));
            }
            match process.pulse.verdict(now, self.stall_timeout) {
                Verdict::Well => {}
                Verdict::Unhealthy(what) => unhealthy = Some(name(process.role, &what)),
                Verdict::Stalled(what) => {
                    let text = name(process.role, &what) + " (--stall-timeout)";
                    stalled = Some(Cause::death(text).in_process(process.number()));
                }
            }
        }
        if let Some(cause) = stalled {
            self.blame(cause);
        } else if unhealthy != self.unhealthy {
            self.tell_health(unhealthy);
        }
    }

    fn tell_health(&mut self, unhealthy: Option<String>) {
        match (&self.unhealthy, &unhealthy) {
            (None, Some(reason)) => log::warn!("unhealthy: {reason}"),
            (Some(_), None) => log::info!("healthy again"),
            _ => {}
        }
        for process in self
            .processes
            .iter_mut()
            .filter(|p| p.role == Role::Frontend)
        {
            process.tell(&ToChild::Health(unhealthy.clone()));
        }
        self.unhealthy = unhealthy;
    }

    /// Ends what has had its time.
    fn enforce(&mut self) {
        let now = Instant::now();
        match self.phase {
            Phase::Draining { until } if now >= until => {
                self.end_all("the server shuts down");
            }
            Phase::Ending { kill_at } if now >= kill_at => {
                for process in self.processes.iter_mut().filter(|p| !p.killed) {
                    process.kill();
                }
            }
            _ => {}
        }
    }
}

/// What is left of a server.
pub struct Ended {
    /// How it ended.
    pub outcome: Outcome,
    /// Its processes, which are gone.
    pub gone: Vec<Process>,
    /// What is to be written of what they kept.
    pub dump: Option<DumpOrder>,
}

/// Who writes dumps, and what has been written.
pub struct Dumps {
    dumper: Dumper,
    made: Receiver<Dumped>,
    /// Readable when something has been.
    event: Arc<EventFd>,
}

impl Dumps {
    /// `facts`: of the run.
    ///
    /// # Errors
    /// When there is no thread or descriptor to be had.
    pub fn start(facts: Vec<(String, String)>) -> io::Result<Dumps> {
        let (tell, made) = channel();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = Arc::new(EventFd::from_flags(flags)?);
        let of_thread = Arc::clone(&event);
        let dumper = Dumper::start(facts, move |dumped| {
            // The supervisor may be at its end.
            let _ = tell.send(dumped);
            // Fails only at the counter's maximum, when it is readable anyway.
            let _ = of_thread.write(1);
        })?;
        Ok(Dumps {
            dumper,
            made,
            event,
        })
    }
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
enum Death {
    Exit(i32),
    Signal(Signal),
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Death::Exit(code) => write!(f, "ended with exit code {code}"),
            Death::Signal(signal) => write!(f, "was killed by {signal}"),
        }
    }
}
