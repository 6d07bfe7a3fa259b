//! The command line, judged: every value here can be used as it is.

use crate::args::{Args, DeviceArg, DtypeArg, ProfilerModeArg};
use crate::endpoints::Inherited;
use crate::model::{self, Model, NoModel};
use crate::profiler::{FlightSettings, Mode, NoProfiler, Profiler};
use crate::system_limits;
use clap::ValueEnum;
use log::LevelFilter;
use nano_ipc::config::{CoreConfig, DeviceKind, Dtype, FrontendConfig, WorkerConfig};
use nano_ipc::flight::FlightRules;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// Connections of clients at once; more wait in the kernel's queue.
const MAX_CONNECTIONS: u32 = 4096;

/// Descriptors that the frontend needs beside its clients' connections.
const OTHER_OPEN_FILES: u64 = 64;

/// Sequences in the engine at once, waiting ones included. The frontend admits
/// no more, with a 429 that says when to come again; the core's own bound is
/// the same, so that it never has to refuse what the frontend admitted.
const MAX_QUEUED_REQUESTS: u32 = 2048;

/// The command line, judged.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is served.
    pub model: Model,
    /// Where to listen: the first that can be bound. Not empty.
    pub addresses: Vec<SocketAddr>,
    /// Present when traces are written.
    pub profiler: Option<Profiler>,
    /// How long open requests may go on after SIGTERM.
    pub shutdown_timeout: Duration,
    /// When a process that does not answer ends the server; `None`: never.
    pub stall_timeout: Option<Duration>,
    /// Most verbose level that is logged.
    pub log_level: LevelFilter,
    chat_template: Option<PathBuf>,
    max_connections: u32,
    /// What the parser has judged already.
    args: Args,
}

/// Why the server cannot start as it was told to.
#[derive(Debug, thiserror::Error)]
pub enum WrongSettings {
    /// The model.
    #[error(transparent)]
    Model(#[from] NoModel),
    /// The traces' directory.
    #[error(transparent)]
    Profiler(#[from] NoProfiler),
    /// What only one mode knows.
    #[error(
        "--profiler-{flag} ({variable}) needs --profiler-mode flight (NANO_PROFILER_MODE) \
         without a schedule: only there the last seconds are kept"
    )]
    NoFlight {
        /// The end of its name.
        flag: &'static str,
        /// Its variable.
        variable: &'static str,
    },
    /// What writes traces.
    #[error(
        "--profiler-{flag} ({variable}) needs --profiler-dir (NANO_PROFILER_DIR), a directory \
         for traces: without one nothing is recorded"
    )]
    NoDirectory {
        /// The end of its name.
        flag: &'static str,
        /// Its variable.
        variable: &'static str,
    },
    /// Two modes at once.
    #[error("--profiler-mode flight and --profiler-schedule exclude each other")]
    FlightWithSchedule,
    /// The address.
    #[error("--host {host}: {source}")]
    Host {
        /// As typed.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// The file of the chat template.
    #[error("--chat-template {}: {source}", path.display())]
    ChatTemplate {
        /// As typed.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No name may be empty.
    #[error("--served-model-name: a name is empty")]
    EmptyName,
    /// An empty shell variable would silently serve another model.
    #[error("--model is empty (leave the flag away for the default model)")]
    EmptyModel,
    /// A key that no `Authorization` header can carry.
    #[error("{0} must be one or more visible ASCII characters, without spaces")]
    Key(&'static str),
    /// What this process inherited.
    #[error("cannot set the limits of the process: {0}")]
    Limits(io::Error),
    /// Not even `/health` could be answered.
    #[error(
        "{open_files} descriptors are too few: {} are needed at least (ulimit -n)",
        OTHER_OPEN_FILES + 1
    )]
    OpenFiles {
        /// What the system allows.
        open_files: u64,
    },
}

impl Settings {
    /// Judges the command line.
    ///
    /// # Errors
    /// One line that names the flag.
    pub fn from_args(args: Args) -> Result<Settings, WrongSettings> {
        if args.served_model_name.iter().any(String::is_empty) {
            return Err(WrongSettings::EmptyName);
        }
        if args.model.as_ref().is_some_and(String::is_empty) {
            return Err(WrongSettings::EmptyModel);
        }
        let is_key = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        for (flag, key) in [
            ("--api-key", &args.api_key),
            ("--profile-api-key", &args.profile_api_key),
        ] {
            if !key.as_deref().is_none_or(is_key) {
                return Err(WrongSettings::Key(flag));
            }
        }
        system_limits::survive_file_size_limit().map_err(WrongSettings::Limits)?;
        let open_files = system_limits::raise_open_files().map_err(WrongSettings::Limits)?;
        let for_clients = open_files.saturating_sub(OTHER_OPEN_FILES);
        let max_connections = u32::try_from(for_clients)
            .unwrap_or(u32::MAX)
            .min(MAX_CONNECTIONS);
        if max_connections == 0 {
            return Err(WrongSettings::OpenFiles { open_files });
        }
        let addresses = addresses(&args.host, args.port)?;
        let chat_template = args.chat_template.clone().map(readable).transpose()?;
        let model = model::resolve(args.model.as_deref(), &args.served_model_name)?;
        let profiler = match (&args.profiler_dir, needs_directory(&args)) {
            (Some(dir), _) => {
                let max_bytes = args.profiler_max_mb << 20;
                let (mode, sample_rate) = (mode(&args)?, args.profiler_sample_hz);
                Some(Profiler::prepare(dir, max_bytes, mode, sample_rate)?)
            }
            (None, Some((flag, variable))) => {
                return Err(WrongSettings::NoDirectory { flag, variable });
            }
            (None, None) => None,
        };
        Ok(Settings {
            model,
            addresses,
            profiler,
            shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
            stall_timeout: (args.stall_timeout > 0)
                .then(|| Duration::from_secs(args.stall_timeout)),
            log_level: args.log_level(),
            chat_template,
            max_connections,
            args,
        })
    }

    /// Whether clients must send a key.
    pub fn has_api_key(&self) -> bool {
        self.args.api_key.is_some()
    }

    /// The flag's value.
    pub fn dtype_name(&self) -> String {
        name_of(self.args.dtype)
    }

    /// The flag's value.
    pub fn device_name(&self) -> String {
        name_of(self.args.device)
    }

    fn rules(&self) -> FlightRules {
        self.profiler
            .as_ref()
            .map(Profiler::rules)
            .unwrap_or_default()
    }

    /// Set-up of the frontend.
    pub fn frontend(&self, inherited: &Inherited) -> FrontendConfig {
        FrontendConfig {
            model: self.model.path.clone(),
            served_model_names: self.model.names.clone(),
            chat_template: self.chat_template.clone(),
            http_listener_fd: inherited.http_listener_fd,
            engine_socket: inherited.engine_socket.clone(),
            api_key: self.args.api_key.clone(),
            profile_api_key: self.args.profile_api_key.clone(),
            max_body_bytes: self.args.max_body_mb << 20,
            max_connections: self.max_connections,
            max_queued_requests: MAX_QUEUED_REQUESTS,
            seed: self.args.seed,
            rules: self.rules(),
        }
    }

    /// Set-up of the core.
    pub fn core(&self, inherited: &Inherited) -> CoreConfig {
        CoreConfig {
            engine_listener_fd: inherited.engine_listener_fd,
            world_size: 1,
            max_num_seqs: self.args.max_num_seqs,
            max_num_batched_tokens: self.args.max_num_batched_tokens,
            block_size: self.args.block_size,
            enable_prefix_caching: !self.args.no_enable_prefix_caching,
            max_waiting: MAX_QUEUED_REQUESTS,
            workers_record: true,
            rules: self.rules(),
        }
    }

    /// Set-up of the worker.
    pub fn worker(&self, inherited: &Inherited) -> WorkerConfig {
        WorkerConfig {
            model: self.model.path.clone(),
            rank: 0,
            world_size: 1,
            engine_socket: inherited.engine_socket.clone(),
            dtype: match self.args.dtype {
                DtypeArg::Auto => Dtype::Auto,
                DtypeArg::Float32 => Dtype::Float32,
            },
            device: match self.args.device {
                DeviceArg::Cpu => DeviceKind::Cpu,
                DeviceArg::Cuda => DeviceKind::Cuda,
            },
            block_size: self.args.block_size,
            num_kv_blocks: self.args.num_kv_blocks,
            kv_cache_memory_bytes: self.args.kv_cache_memory_bytes,
            max_model_len: self.args.max_model_len,
            max_num_seqs: self.args.max_num_seqs,
            max_num_batched_tokens: self.args.max_num_batched_tokens,
            threads: self.args.threads,
        }
    }
}

/// Seconds that are kept where nobody said how many.
const FLIGHT_SECONDS: u64 = 10;

/// A flag that asks for what only the flight recorder does, and its variable.
fn needs_flight(args: &Args) -> Option<(&'static str, &'static str)> {
    let has_rules = args.profiler_trigger.iter().next().is_some();
    let has_seconds = args.profiler_flight_seconds.is_some();
    let trigger = has_rules.then_some(("trigger", "NANO_PROFILER_TRIGGER"));
    trigger.or(has_seconds.then_some(("flight-seconds", "NANO_PROFILER_FLIGHT_SECONDS")))
}

/// A flag that asks for a recording, and its variable. The modes `auto` and
/// `manual` do not: they say when, if there is a directory.
fn needs_directory(args: &Args) -> Option<(&'static str, &'static str)> {
    let is_flight = matches!(args.profiler_mode, ProfilerModeArg::Flight);
    let flight = is_flight.then_some(("mode", "NANO_PROFILER_MODE"));
    let schedule = args
        .profiler_schedule
        .map(|_| ("schedule", "NANO_PROFILER_SCHEDULE"));
    let samples = args
        .profiler_sample_hz
        .map(|_| ("sample-hz", "NANO_PROFILER_SAMPLE_HZ"));
    flight.or(schedule).or(samples).or(needs_flight(args))
}

/// When recording begins.
fn mode(args: &Args) -> Result<Mode, WrongSettings> {
    let only_flight = match needs_flight(args) {
        Some((flag, variable)) => Err(WrongSettings::NoFlight { flag, variable }),
        None => Ok(()),
    };
    match (args.profiler_schedule, args.profiler_mode) {
        (None, ProfilerModeArg::Flight) => Ok(Mode::Flight(FlightSettings {
            keep: Duration::from_secs(args.profiler_flight_seconds.unwrap_or(FLIGHT_SECONDS)),
            rules: args.profiler_trigger.clone(),
        })),
        (Some(_), ProfilerModeArg::Flight) => Err(WrongSettings::FlightWithSchedule),
        (Some(cycle), _) => only_flight.map(|()| Mode::Schedule(cycle)),
        (None, ProfilerModeArg::Auto) => only_flight.map(|()| Mode::Auto),
        (None, ProfilerModeArg::Manual) => only_flight.map(|()| Mode::Manual),
    }
}

/// As it is typed.
fn name_of(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |name| name.get_name().to_owned())
}

fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, WrongSettings> {
    let error = |source| WrongSettings::Host {
        host: host.to_owned(),
        source,
    };
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(error)?.collect();
    if found.is_empty() {
        return Err(error(io::Error::other("the name has no address")));
    }
    Ok(found)
}

/// The file's absolute path, if it can be read.
fn readable(path: PathBuf) -> Result<PathBuf, WrongSettings> {
    std::fs::File::open(&path)
        .and_then(|file| file.metadata())
        .and_then(|metadata| {
            if metadata.is_file() {
                std::path::absolute(&path)
            } else {
                Err(io::Error::other("is no file"))
            }
        })
        .map_err(|source| WrongSettings::ChatTemplate { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_core_lets_wait_all_that_the_frontend_admits() {
        let model = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/golden/models/tiny-llama"
        );
        let args = Args::try_parse_from(["nano-serve", "--model", model]).expect("flags");
        let settings = Settings::from_args(args).expect("a model");
        let nothing = Inherited::nothing();
        let admitted = settings.frontend(&nothing).max_queued_requests;
        assert!(settings.core(&nothing).max_waiting >= admitted);
    }
}
