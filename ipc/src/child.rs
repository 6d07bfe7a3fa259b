//! How a child of the launcher begins and ends: what frontend, core and worker
//! share.
//!
//! The child inherits one end of a socketpair, its control socket. The first
//! message there is its set-up. From then on a thread of its own serves the
//! socket, so that control never waits behind data or a step.
//!
//! What keeps orphans away: the end of the control socket means that the
//! launcher is gone, however it went, and is handled like an order to end at
//! once. An order that the loop does not follow in time (it loads weights, or
//! is in a long step) is enforced here, with the trace whole.

use crate::config::{InheritedFd, RoleConfig, Start, WrongRole};
use crate::connection::{Connection, ConnectionError};
use crate::lifecycle::{Lifecycle, Shutdown};
use crate::logging;
use crate::recorder;
use crate::to_child::ToChild;
use crate::to_launcher::ToLauncher;
use log::LevelFilter;
use nano_trace::ProcessTrace;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::any::Any;
use std::cell::Cell;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Flag with the number of the inherited control socket.
pub const CONTROL_FD_FLAG: &str = "--control-fd";

/// How long a loop may take, after its open requests' time is up, to end by itself.
pub const GRACE: Duration = Duration::from_secs(1);

/// Bytes of messages to a launcher that does not read; it is stopped then, and
/// asks nothing either.
const REPORT_BOUND: usize = 1 << 20;

thread_local! {
    /// This thread is about to tell the launcher something.
    static REPORTING: Cell<bool> = const { Cell::new(false) };
}

/// Why a child could not begin.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("the launcher's first message is not the set-up: {0}")]
    Receive(#[from] ConnectionError),
    #[error("the launcher's first message is not the set-up")]
    NotStart,
    #[error(transparent)]
    Trace(#[from] nano_trace::StartError),
    #[error(transparent)]
    Role(#[from] WrongRole),
    #[error("cannot set up the process: {0}")]
    System(#[from] std::io::Error),
}

/// The whole of a child's `main`: takes its set-up from the launcher, runs
/// `run(config, run word, lifecycle)` to its end, and reports how it ended.
///
/// Without a control socket it says who starts it, and exits with 2.
pub fn main<C, E>(run: impl FnOnce(C, u64, Arc<Lifecycle>) -> Result<(), E>) -> ExitCode
where
    C: TryFrom<RoleConfig, Error = WrongRole>,
    E: Display,
{
    let Some(control) = control_socket() else {
        let name = std::env::args().next().unwrap_or_default();
        let name = name.rsplit('/').next().unwrap_or_default();
        eprintln!("{name}: started by nano-serve, not by hand; see `nano-serve --help`");
        return ExitCode::from(2);
    };
    let mut control = Connection::from_fd(control);
    let (config, run_word, lifecycle) = match begin::<C>(&mut control) {
        Ok(begun) => begun,
        Err(error) => {
            nano_trace::finish();
            // A launcher that does not listen has no operator to tell either.
            let _ = control.send(&ToLauncher::Failed(logging::one_line(&error.to_string())));
            return ExitCode::FAILURE;
        }
    };
    spawn_control_thread(control, &lifecycle);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        run(config, run_word, Arc::clone(&lifecycle)).map_err(|error| error.to_string())
    }))
    .unwrap_or_else(|panic| Err(format!("internal error: {}", panic_text(&*panic))));
    nano_trace::finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The launcher prints it: it knows whether it is cause or consequence.
            lifecycle.report(ToLauncher::Failed(logging::one_line(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The inherited socket that the command line names.
fn control_socket() -> Option<OwnedFd> {
    let mut args = std::env::args().skip(1);
    match (args.next()?, args.next()?.parse().ok()?, args.next()) {
        (flag, fd, None) if flag == CONTROL_FD_FLAG => take_inherited(fd).ok(),
        _ => None,
    }
}

/// Takes over a descriptor that the launcher passed by number, and keeps it
/// from this process's own children. To be called once for each number.
///
/// # Errors
/// When it is not open, or one of the standard three.
pub fn take_inherited(fd: InheritedFd) -> Result<OwnedFd, Errno> {
    if fd <= 2 {
        return Err(Errno::EBADF);
    }
    // SAFETY: only asks about the number, which may be closed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: it is open, the launcher passed it for this purpose alone, and
    // by the function's contract nothing else of this process refers to it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes the set-up, and begins log and trace.
fn begin<C>(control: &mut Connection) -> Result<(C, u64, Arc<Lifecycle>), StartError>
where
    C: TryFrom<RoleConfig, Error = WrongRole>,
{
    let ToChild::Start(start) = control.receive()? else {
        return Err(StartError::NotStart);
    };
    let Start {
        run,
        log_level,
        trace,
        role,
    } = *start;
    logging::init(role.role(), log_level.parse().unwrap_or(LevelFilter::Info));
    std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
    if let Some(trace) = trace {
        nano_trace::start(ProcessTrace {
            dir: trace.dir,
            role: role.role().to_string(),
            run,
            rings: take_inherited(trace.rings_fd).map_err(std::io::Error::from)?,
            facts: trace.facts,
            keep: trace.keep,
            sessions: trace.sessions,
        })?;
    }
    let config = C::try_from(role)?;
    let outgoing = control.as_fd().try_clone_to_owned()?;
    let outgoing = Mutex::new(Connection::from_fd(outgoing));
    let lifecycle = Lifecycle::new(move |message| {
        // A panic in here could not be reported: `outgoing` is taken.
        if REPORTING.replace(true) {
            return;
        }
        let mut outgoing = outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        // A launcher that is gone or stopped cannot be told.
        let _ = outgoing.tell(&message, REPORT_BOUND);
        drop(outgoing);
        REPORTING.set(false);
    })?;
    let lifecycle = Arc::new(lifecycle);
    report_panics(&lifecycle);
    let of_recorder = Arc::clone(&lifecycle);
    nano_trace::on_session_end(move |status| of_recorder.report(ToLauncher::ProfileEnded(status)));
    Ok((config, run, lifecycle))
}

/// From now on the launcher learns of every panic, whatever becomes of its thread.
fn report_panics(lifecycle: &Arc<Lifecycle>) {
    let lifecycle = Arc::clone(lifecycle);
    std::panic::set_hook(Box::new(move |panic| {
        log::error!("{panic}");
        let text = logging::one_line(&panic.to_string());
        lifecycle.report(ToLauncher::Panicked(text));
    }));
}

/// # Panics
/// When the system has no thread left: the process has just begun and can do nothing.
fn spawn_control_thread(control: Connection, lifecycle: &Arc<Lifecycle>) {
    let lifecycle = Arc::clone(lifecycle);
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            control_loop(control, &lifecycle);
            end_process()
        })
        .expect("a thread for control");
}

/// Serves the control socket while the process lives; returns when an ordered
/// end has not come in time.
fn control_loop(mut incoming: Connection, lifecycle: &Lifecycle) {
    let mut open = true;
    // What came together with the set-up is read already, and wakes no poll: a ping
    // of a launcher that had to wait for this process, and sends no other.
    let mut has_read = true;
    loop {
        let end_by = lifecycle
            .shutdown()
            .map(|shutdown| shutdown.drain_until + GRACE);
        if end_by.is_some_and(|end_by| Instant::now() >= end_by) {
            log::warn!("not ended in time: ending now");
            return;
        }
        if !std::mem::take(&mut has_read) && !wait_readable(&incoming, open, end_by) {
            continue;
        }
        if let Err(error) = serve(&mut incoming, lifecycle) {
            open = false;
            if lifecycle.shutdown().is_none() {
                log::error!("the launcher is gone ({error}): ending");
            }
            lifecycle.request_shutdown(Shutdown {
                drain_until: Instant::now(),
                reason: "the server was killed".to_owned(),
            });
        }
    }
}

/// Waits until the socket, if still open, has something, or the time is up.
fn wait_readable(incoming: &Connection, open: bool, until: Option<Instant>) -> bool {
    let timeout = until.map_or(PollTimeout::NONE, |until| {
        // One more millisecond: poll rounds down, and would spin at the end.
        let rest = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX)
    });
    let mut socket = [PollFd::new(incoming.as_fd(), PollFlags::POLLIN)];
    match poll(if open { &mut socket } else { &mut [] }, timeout) {
        Ok(ready) => ready > 0,
        Err(Errno::EINTR) => false,
        // Nothing else can be wrong with one valid descriptor; read tells.
        Err(_) => open,
    }
}

/// Takes what has come.
fn serve(incoming: &mut Connection, lifecycle: &Lifecycle) -> Result<(), ConnectionError> {
    let filled = incoming.fill();
    while let Some(message) = incoming.next::<ToChild>()? {
        match message {
            ToChild::Ping(number) => {
                let (step_id, busy_since_ns) = lifecycle.progress();
                lifecycle.report(ToLauncher::Pong {
                    number,
                    step_id,
                    busy_since_ns,
                });
            }
            ToChild::Shutdown { drain_ms, reason } => lifecycle.request_shutdown(Shutdown {
                drain_until: Instant::now() + Duration::from_millis(drain_ms),
                reason,
            }),
            ToChild::Health(reason) => lifecycle.set_unhealthy(reason),
            ToChild::Profile { number, order } => {
                let report = recorder::obey(order);
                lifecycle.report(ToLauncher::ProfileReport { number, report });
            }
            ToChild::ProfileSwitch(switch) => recorder::switch(&switch),
            ToChild::CountSteps(steps) => lifecycle.profile().count_steps(steps),
            ToChild::FlightCounts(counts) => lifecycle.profile().set_flight_counts(counts),
            ToChild::ProfileAnswer { id, answer } => lifecycle.profile().answer(id, *answer),
            ToChild::Start(_) => log::warn!("a second set-up was ignored"),
        }
    }
    filled
}

/// Ends the process from a thread that is not its main one, trace whole.
/// Destructors and exit handlers do not run: they may wait for the loop.
fn end_process() -> ! {
    nano_trace::finish();
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { nix::libc::_exit(1) }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    /// A control thread as in a child, with its launcher's end of the socket;
    /// the receiver fires when the thread would end the process.
    fn child() -> (Connection, Arc<Lifecycle>, mpsc::Receiver<Instant>) {
        child_after(|_, _| ())
    }

    /// As above, after something happened to both ends.
    fn child_after(
        first: impl FnOnce(&mut Connection, &mut Connection),
    ) -> (Connection, Arc<Lifecycle>, mpsc::Receiver<Instant>) {
        let (near, far) = UnixStream::pair().expect("socketpair");
        let outgoing = far.try_clone().expect("descriptor");
        let outgoing = Mutex::new(Connection::from_fd(outgoing.into()));
        let lifecycle = Lifecycle::new(move |message| {
            let _ = outgoing.lock().expect("not poisoned").send(&message);
        });
        let lifecycle = Arc::new(lifecycle.expect("eventfd"));
        let of_control = Arc::clone(&lifecycle);
        let (ended, end) = mpsc::channel();
        let mut near = Connection::from_fd(near.into());
        let mut far = Connection::from_fd(far.into());
        first(&mut near, &mut far);
        thread::spawn(move || {
            control_loop(far, &of_control);
            let _ = ended.send(Instant::now());
        });
        (near, lifecycle, end)
    }

    #[test]
    fn a_ping_that_came_with_the_set_up_is_answered() {
        let (mut launcher, _lifecycle, _end) = child_after(|launcher, child| {
            // Read at once, as when a process begins late; the first as its set-up.
            launcher.send(&ToChild::Ping(1)).expect("sent");
            launcher.send(&ToChild::Ping(2)).expect("sent");
            let first = child.receive::<ToChild>().expect("the first");
            assert!(matches!(first, ToChild::Ping(1)), "{first:?}");
            assert!(child.buffered() > 0);
        });
        let answer: ToLauncher = launcher.receive().expect("an answer");
        assert!(
            matches!(answer, ToLauncher::Pong { number: 2, .. }),
            "{answer:?}"
        );
    }

    fn wait_for_order(lifecycle: &Lifecycle) -> Shutdown {
        let mut fds = [PollFd::new(lifecycle.shutdown_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(5000u16)).expect("poll");
        lifecycle.shutdown().expect("ordered within five seconds")
    }

    #[test]
    fn pings_are_answered_with_the_loop_s_progress() {
        let (mut launcher, lifecycle, _end) = child();
        lifecycle.busy(7);
        let (_, since) = lifecycle.progress();
        launcher.send(&ToChild::Ping(3)).expect("child is there");
        assert_eq!(
            launcher.receive::<ToLauncher>().expect("answer"),
            ToLauncher::Pong {
                number: 3,
                step_id: 7,
                busy_since_ns: since
            }
        );
    }

    #[test]
    fn the_launcher_s_end_is_an_order_to_end_at_once_and_is_enforced() {
        let (launcher, lifecycle, end) = child();
        let gone = Instant::now();
        drop(launcher);
        let order = wait_for_order(&lifecycle);
        assert!(order.drain_until <= Instant::now(), "no draining");
        let ended = end.recv_timeout(GRACE * 5).expect("enforced");
        assert!(ended - gone >= GRACE, "the loop had its time to end itself");
    }

    #[test]
    fn an_order_is_enforced_only_after_its_drain_and_a_shorter_one_replaces_it() {
        let (mut launcher, lifecycle, end) = child();
        let mut order = |drain_ms, reason: &str| {
            let reason = reason.to_owned();
            let order = ToChild::Shutdown { drain_ms, reason };
            launcher.send(&order).expect("child is there");
        };
        order(600_000, "drain");
        assert_eq!(wait_for_order(&lifecycle).reason, "drain");
        order(900_000, "later");
        order(0, "now");
        end.recv_timeout(GRACE * 5).expect("enforced");
        assert_eq!(lifecycle.shutdown().expect("ordered").reason, "now");
    }
}
