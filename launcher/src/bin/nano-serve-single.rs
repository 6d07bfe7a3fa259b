//! `nano-serve-single`: the same roles as threads of one process, for
//! debuggers and profilers that follow one process only.
//!
//! The one program that links all roles. Sockets join them as they join
//! processes; no loop knows the difference. The main thread does what launcher
//! and control threads do elsewhere.

use nano_core::Endpoint;
use nano_ipc::child::GRACE;
use nano_ipc::config::CoreConfig;
use nano_ipc::connection::Connection;
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::lifecycle::{Lifecycle, Shutdown};
use nano_ipc::logging;
use nano_ipc::recorder;
use nano_ipc::role::Role;
use nano_ipc::to_child::ToChild;
use nano_ipc::to_launcher::ToLauncher;
use nano_serve::args::Args;
use nano_serve::dumper::{Dumped, Dumper, Recorded};
use nano_serve::endpoints::{Inherited, bind_http};
use nano_serve::facts::facts;
use nano_serve::outcome::{Cause, Outcome};
use nano_serve::profile_controller::{Action, Now, ProfileController, SINGLE, told_of_dump};
use nano_serve::settings::Settings;
use nano_serve::signals::{DUMP_SIGNAL, END_SIGNALS, PROFILE_SIGNAL, Signals};
use nano_serve::{announce, run_word};
use nano_trace::ProcessTrace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What the main thread waits for.
enum Happening {
    /// The operator wants an end.
    EndSignal,
    /// The operator wants a recording to begin or end.
    ProfileSignal,
    /// The operator wants what was kept.
    DumpSignal,
    /// A dump was written.
    Dumped(Dumped),
    /// A role has said something.
    Said(ToLauncher),
    /// A role's loop has ended.
    Ended(Role, Result<(), String>),
}

fn main() -> ExitCode {
    let started = Instant::now();
    let args = match Args::from_command_line() {
        Ok(args) => args,
        Err(exit_code) => return exit_code,
    };
    let outcome =
        serve(args, started).unwrap_or_else(|error| Outcome::CannotStart(error.to_string()));
    nano_trace::finish();
    outcome.exit_code()
}

fn serve(args: Args, started: Instant) -> Result<Outcome, Box<dyn Error>> {
    logging::init("single", args.log_level());
    let settings = Settings::from_args(args)?;
    let (http, address) = bind_http(&settings.addresses)?;
    let signals = Signals::block()?;
    let run = run_word()?;
    let (happening, happenings) = channel();
    let mut profile = ProfileController::new(settings.profiler.clone(), run);
    let recorded = start_trace(&settings, run, &profile, &happening)?;
    profile.joined(std::process::id(), &ROLES);
    report_panics(&happening);
    let facts = facts(&settings);
    let dumper = Dumper::start(facts.clone(), {
        let happening = happening.clone();
        move |dumped| {
            // The main thread may have ended.
            let _ = happening.send(Happening::Dumped(dumped));
        }
    })?;

    let (frontend_end, core_to_frontend) = UnixStream::pair()?;
    let (worker_end, core_to_worker) = UnixStream::pair()?;
    let core_ends = vec![core_to_frontend.into(), core_to_worker.into()];
    let roles = Roles {
        recorded: recorded.into_iter().collect(),
        frontend: lifecycle(&happening)?,
        engine: [lifecycle(&happening)?, lifecycle(&happening)?],
    };
    let inherited = Inherited::nothing();
    spawn(Role::Core, &happening, {
        // There is one recorder, and the core switches it.
        let config = CoreConfig {
            workers_record: false,
            ..settings.core(&inherited)
        };
        let lifecycle = Arc::clone(&roles.engine[0]);
        move || nano_core::run(&config, Endpoint::Connected(core_ends), run, &lifecycle)
    })?;
    spawn(Role::Worker { rank: 0 }, &happening, {
        let (config, lifecycle) = (settings.worker(&inherited), Arc::clone(&roles.engine[1]));
        let core = Connection::from_fd(worker_end.into());
        move || nano_worker::run(&config, core, run, &lifecycle)
    })?;
    spawn(Role::Frontend, &happening, {
        let (config, lifecycle) = (settings.frontend(&inherited), Arc::clone(&roles.frontend));
        let core = Connection::from_fd(frontend_end.into());
        move || nano_frontend::run(&config, http, core, run, lifecycle)
    })?;
    watch_signals(signals, happening)?;
    let outcome = watch(
        &roles,
        &happenings,
        (&mut profile, &dumper),
        settings.shutdown_timeout,
        |info| {
            announce::ready(&settings, address, info, started.elapsed());
        },
    );
    dumper.finish(DUMPED_WITHIN);
    for happened in happenings.try_iter() {
        if let Happening::Dumped(dumped) = happened {
            profile.dumped(dumped);
        }
    }
    profile.log_rest();
    if let Outcome::Failed(why) = &outcome
        && let Some(dump) = profile.take_dump_of_death(Some(std::process::id()), why)
    {
        let told = told_of_dump(&dump.carry_out(&roles.recorded, &facts));
        log::info!("flight recorder: {} ({why}): {told}", dump.name);
    }
    Ok(outcome)
}

/// How long dumps may take that were ordered before the end.
const DUMPED_WITHIN: Duration = Duration::from_millis(500);

/// From now on the main thread learns of every panic.
fn report_panics(happening: &Sender<Happening>) {
    let happening = happening.clone();
    std::panic::set_hook(Box::new(move |panic| {
        log::error!("{panic}");
        let text = logging::one_line(&panic.to_string());
        // The main thread may have ended.
        let _ = happening.send(Happening::Said(ToLauncher::Panicked(text)));
    }));
}

/// One recorder, and one file a session, for the whole server.
fn start_trace(
    settings: &Settings,
    run: u64,
    profile: &ProfileController,
    happening: &Sender<Happening>,
) -> Result<Option<Recorded>, Box<dyn Error>> {
    let Some(profiler) = &settings.profiler else {
        return Ok(None);
    };
    let rings = profiler.rings()?;
    nano_trace::start(ProcessTrace {
        dir: profiler.dir.clone(),
        sessions: profile.sessions_at_start(&ROLES),
        role: SINGLE.to_owned(),
        run,
        rings: rings.fd().try_clone_to_owned()?,
        facts: facts(settings),
        keep: profiler.keep(),
    })?;
    let happening = happening.clone();
    nano_trace::on_session_end(move |status| {
        // The main thread may have ended.
        let _ = happening.send(Happening::Said(ToLauncher::ProfileEnded(status)));
    });
    Ok(Some(Recorded {
        pid: std::process::id(),
        role: SINGLE.to_owned(),
        rings: Arc::new(rings),
        is_dead: false,
    }))
}

fn lifecycle(happening: &Sender<Happening>) -> io::Result<Arc<Lifecycle>> {
    let happening = happening.clone();
    let lifecycle = Lifecycle::new(move |message| {
        // The main thread may have ended.
        let _ = happening.send(Happening::Said(message));
    })?;
    Ok(Arc::new(lifecycle))
}

/// Runs a role's loop on a thread of its own.
fn spawn<E: Display>(
    role: Role,
    happening: &Sender<Happening>,
    run: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> io::Result<()> {
    let happening = happening.clone();
    thread::Builder::new()
        .name(role.to_string())
        .spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(run))
                .map(|ended| ended.map_err(|error| error.to_string()))
                .unwrap_or_else(|_| Err("internal error: panic".to_owned()));
            // The main thread may have ended.
            let _ = happening.send(Happening::Ended(role, ended));
        })
        .map(drop)
}

fn watch_signals(signals: Signals, happening: Sender<Happening>) -> io::Result<()> {
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            loop {
                let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut fds, PollTimeout::NONE);
                while let Some(signal) = signals.next() {
                    let happened = match signal {
                        PROFILE_SIGNAL => Happening::ProfileSignal,
                        DUMP_SIGNAL => Happening::DumpSignal,
                        signal if END_SIGNALS.contains(&signal) => Happening::EndSignal,
                        _ => continue,
                    };
                    if happening.send(happened).is_err() {
                        return;
                    }
                }
            }
        })
        .map(drop)
}

/// What runs in this process.
const ROLES: [Role; 3] = [Role::Core, Role::Worker { rank: 0 }, Role::Frontend];

/// The lifecycles of the loops that run.
struct Roles {
    /// What they record into, if they do.
    recorded: Vec<Recorded>,
    frontend: Arc<Lifecycle>,
    engine: [Arc<Lifecycle>; 2],
}

impl Roles {
    fn end_all(&self, reason: &str) {
        for lifecycle in std::iter::once(&self.frontend).chain(&self.engine) {
            lifecycle.request_shutdown(Shutdown {
                drain_until: Instant::now(),
                reason: reason.to_owned(),
            });
        }
    }
}

impl Roles {
    /// Does what the profile controller wants done. The recorder is obeyed for
    /// all roles at once.
    fn control_profile(&self, profile: &mut ProfileController, dumper: &Dumper) {
        profile.ticked(Now::read());
        loop {
            let actions = profile.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Log(line) => log::info!("{line}"),
                    Action::Dump(order) => dumper.order(order, self.recorded.clone()),
                    Action::Tell { pid, message } => self.tell(profile, pid, message),
                }
            }
        }
    }

    fn tell(&self, profile: &mut ProfileController, pid: u32, message: ToChild) {
        match message {
            ToChild::Profile { number, order } => {
                let report = recorder::obey(order);
                let message = ToLauncher::ProfileReport { number, report };
                profile.heard(Now::read(), pid, message);
            }
            ToChild::ProfileSwitch(switch) => recorder::switch(&switch),
            ToChild::CountSteps(steps) => self.engine[0].profile().count_steps(steps),
            ToChild::FlightCounts(counts) => self.frontend.profile().set_flight_counts(counts),
            ToChild::ProfileAnswer { id, answer } => {
                self.frontend.profile().answer(id, *answer);
            }
            // The controller sends none of these.
            ToChild::Start(_)
            | ToChild::Ping(_)
            | ToChild::Shutdown { .. }
            | ToChild::Health(_) => {}
        }
    }
}

#[derive(Clone, Copy)]
enum Phase {
    /// Nobody was told to end.
    Serving,
    /// The frontend was told to end when its open requests have.
    Draining { until: Instant },
    /// All were told to end at once.
    Ending { until: Instant },
}

/// Watches until all three loops have ended, or have had their time: the first
/// signal lets the frontend drain, its end ends the others, and so does any end
/// that was not ordered.
fn watch(
    roles: &Roles,
    happenings: &Receiver<Happening>,
    (profile, dumper): (&mut ProfileController, &Dumper),
    shutdown_timeout: Duration,
    on_ready: impl Fn(&EngineInfo),
) -> Outcome {
    let mut left = 3;
    let mut was_ready = false;
    let mut phase = Phase::Serving;
    let mut cause: Option<Cause> = None;
    let end_all = |reason: &str| {
        roles.end_all(reason);
        Phase::Ending {
            until: Instant::now() + GRACE,
        }
    };
    while left > 0 {
        roles.control_profile(profile, dumper);
        let end = match phase {
            Phase::Serving => None,
            Phase::Draining { until } | Phase::Ending { until } => Some(until),
        };
        let happened = match end.into_iter().chain(profile.next_tick()).min() {
            None => happenings.recv().ok(),
            Some(at) => happenings
                .recv_timeout(at.saturating_duration_since(Instant::now()))
                .ok(),
        };
        phase = match (happened, phase) {
            (Some(Happening::Said(ToLauncher::Ready(info))), _) => {
                was_ready = true;
                on_ready(&info);
                phase
            }
            (Some(Happening::Said(message)), _) => {
                profile.heard(Now::read(), std::process::id(), message);
                phase
            }
            (Some(Happening::ProfileSignal), _) => {
                profile.toggled(Now::read());
                phase
            }
            (Some(Happening::DumpSignal), _) => {
                profile.dump_signalled(Now::read());
                phase
            }
            (Some(Happening::Dumped(dumped)), _) => {
                profile.dumped(dumped);
                phase
            }
            (Some(Happening::EndSignal), Phase::Serving) => {
                let drain_until = Instant::now() + shutdown_timeout;
                roles.frontend.request_shutdown(Shutdown {
                    drain_until,
                    reason: "the server shuts down".to_owned(),
                });
                Phase::Draining {
                    until: drain_until + GRACE,
                }
            }
            (Some(Happening::EndSignal), Phase::Draining { .. }) => {
                end_all("the server was told to end at once")
            }
            (Some(Happening::EndSignal), Phase::Ending { .. }) => phase,
            (Some(Happening::Ended(role, ended)), _) => {
                left -= 1;
                let ordered = matches!(phase, Phase::Ending { .. }) && cause.is_none();
                let drained = matches!(phase, Phase::Draining { .. }) && role == Role::Frontend;
                match ended {
                    Ok(()) if ordered || cause.is_some() => phase,
                    Ok(()) if drained => end_all("the server shuts down"),
                    Err(error) if ordered => {
                        log::warn!("{role}: {error}");
                        phase
                    }
                    other => {
                        let reason = other.err().unwrap_or_else(|| "it ended".to_owned());
                        let found = Cause::failure(role, &reason).root(cause.take());
                        profile.died(Now::read());
                        let phase = end_all(&format!("the engine stopped: {}", found.text()));
                        cause = Some(found);
                        phase
                    }
                }
            }
            // The profile controller's time, not the phase's.
            (None, _) if end.is_none_or(|end| Instant::now() < end) => phase,
            (None, Phase::Draining { .. }) => end_all("the server shuts down"),
            // Time is up; the process ends with its threads.
            (None, Phase::Ending { .. } | Phase::Serving) => break,
        };
    }
    Outcome::of(cause, was_ready)
}
