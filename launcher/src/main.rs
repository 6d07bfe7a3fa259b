//! `nano-serve`: starts the processes of a server, watches them, and ends them.

use nano_ipc::config::{RoleConfig, Start, TraceConfig};
use nano_ipc::logging;
use nano_serve::args::Args;
use nano_serve::dumper::Recorded;
use nano_serve::endpoints::Endpoints;
use nano_serve::facts::facts;
use nano_serve::outcome::Outcome;
use nano_serve::process::{Process, beside_this_program};
use nano_serve::profile_controller::{ProfileController, told_of_dump};
use nano_serve::profiler::Profiler;
use nano_serve::settings::Settings;
use nano_serve::signals::Signals;
use nano_serve::supervisor::{Dumps, Ended, Supervisor};
use nano_serve::{announce, run_word};
use std::error::Error;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// `0` or `false` makes one process of the whole server.
const MULTIPROCESSING: &str = "NANO_ENABLE_MULTIPROCESSING";

fn main() -> ExitCode {
    let started = Instant::now();
    let args = match Args::from_command_line() {
        Ok(args) => args,
        Err(exit_code) => return exit_code,
    };
    let outcome = match wants_single_process() {
        Ok(true) => {
            let error = become_single_process();
            Outcome::CannotStart(format!("nano-serve-single: {error}"))
        }
        Ok(false) => {
            serve(args, started).unwrap_or_else(|error| Outcome::CannotStart(error.to_string()))
        }
        Err(error) => Outcome::CannotStart(error),
    };
    outcome.exit_code()
}

fn wants_single_process() -> Result<bool, String> {
    let value = std::env::var_os(MULTIPROCESSING).unwrap_or_default();
    match value.to_str() {
        Some("" | "1" | "true") => Ok(false),
        Some("0" | "false") => Ok(true),
        _ => Err(format!("{MULTIPROCESSING}={value:?}: must be 0 or 1")),
    }
}

/// Runs the program that links all roles instead of this one; returns only on failure.
fn become_single_process() -> std::io::Error {
    match beside_this_program("nano-serve-single") {
        Ok(single) => Command::new(single)
            .args(std::env::args_os().skip(1))
            .exec(),
        Err(error) => error,
    }
}

fn serve(args: Args, started: Instant) -> Result<Outcome, Box<dyn Error>> {
    logging::init("launcher", args.log_level());
    let settings = Settings::from_args(args)?;
    let endpoints = Endpoints::bind(&settings.addresses)?;
    let address = endpoints.address;
    // From here on an operator's signal is an order to children as well.
    let signals = Signals::block()?;
    let run = run_word()?;
    let profile = ProfileController::new(settings.profiler.clone(), run);
    let processes = spawn_all(&settings, run, &profile, &endpoints)?;
    let mut run_dir = Some(endpoints.close());
    let Ended {
        outcome,
        gone,
        dump,
    } = Supervisor::new(
        processes,
        profile,
        Dumps::start(facts(&settings))?,
        signals,
        settings.stall_timeout,
        settings.shutdown_timeout,
        |info| {
            // Everybody has connected: a launcher that is killed later leaves
            // nothing behind.
            drop(run_dir.take());
            announce::ready(&settings, address, info, started.elapsed());
        },
    )
    .run();
    drop(run_dir);
    if let (Some(dump), Outcome::Failed(why)) = (dump, &outcome) {
        let recorded: Vec<Recorded> = gone.iter().filter_map(Process::recorded).collect();
        let dumped = dump.carry_out(&recorded, &facts(&settings));
        let told = told_of_dump(&dumped);
        log::info!("flight recorder: {} ({why}): {told}", dump.name);
    }
    if let Some(profiler) = &settings.profiler {
        for process in &gone {
            process.salvage_trace(&profiler.dir);
        }
    }
    Ok(outcome)
}

/// Starts core, worker and frontend. When one cannot be started, those that
/// were see the end of their control sockets, and end.
fn spawn_all(
    settings: &Settings,
    run: u64,
    profile: &ProfileController,
    endpoints: &Endpoints,
) -> Result<Vec<Process>, Box<dyn Error>> {
    let facts = facts(settings);
    let inherited = endpoints.inherited();
    let spawn =
        |role: RoleConfig, inherited: &[BorrowedFd<'_>]| -> Result<Process, Box<dyn Error>> {
            let rings = settings
                .profiler
                .as_ref()
                .map(Profiler::rings)
                .transpose()?;
            let trace = settings.profiler.as_ref().zip(rings.as_ref());
            let start = Start {
                run,
                log_level: settings.log_level.to_string(),
                trace: trace.map(|(profiler, rings)| TraceConfig {
                    dir: profiler.dir.clone(),
                    sessions: profile.sessions_at_start(&[role.role()]),
                    rings_fd: rings.fd().as_raw_fd(),
                    facts: facts.clone(),
                    keep: profiler.keep(),
                }),
                role,
            };
            Ok(Process::spawn(start, inherited, rings)?)
        };
    Ok(vec![
        spawn(
            RoleConfig::Core(settings.core(&inherited)),
            &[endpoints.engine_as_fd()],
        )?,
        spawn(RoleConfig::Worker(settings.worker(&inherited)), &[])?,
        spawn(
            RoleConfig::Frontend(settings.frontend(&inherited)),
            &[endpoints.http_as_fd()],
        )?,
    ])
}
