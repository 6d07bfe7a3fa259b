//! The command line as it is typed. What needs more than one value, a file or
//! the network to be judged is judged in [`settings`](crate::settings).

use crate::{EXIT_USAGE, VERSION};
use clap::builder::{Resettable, StringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, ValueEnum};
use log::LevelFilter;
use nano_ipc::flight::FlightRules;
use nano_ipc::step_bounds::Cycle;
use nano_trace::SampleRate;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

const ABOUT: &str =
    "OpenAI-compatible LLM server made of separate processes that one Perfetto trace shows.";

const AFTER_HELP: &str = "\
Environment:
  NANO_PROFILER_DIR             Like --profiler-dir
  NANO_PROFILER_MODE            Like --profiler-mode
  NANO_PROFILER_SCHEDULE        Like --profiler-schedule
  NANO_PROFILER_MAX_MB          Like --profiler-max-mb
  NANO_PROFILER_FLIGHT_SECONDS  Like --profiler-flight-seconds
  NANO_PROFILER_TRIGGER         Like --profiler-trigger
  NANO_PROFILER_SAMPLE_HZ       Like --profiler-sample-hz
  NANO_ENABLE_MULTIPROCESSING   0: run frontend, core and worker as threads of one process
  HF_HOME, HF_ENDPOINT, HF_TOKEN  Cache, address and key of the model hub

Exit code: 0 after an ordered end, 1 when a process died, 2 when the server could not start as told.";

/// The command line as it is typed.
#[derive(Clone, Debug, Parser)]
#[command(name = "nano-serve", version = VERSION, about = ABOUT, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Args {
    /// A .gguf file, a directory in Hugging Face layout, or a hub id such as `org/name`
    /// [default: SmolLM2-135M-Instruct, if it was fetched]
    #[arg(long, value_name = "PATH|ID", help_heading = "Model")]
    pub model: Option<String>,
    /// Names by which clients ask for the model; the first is answered [default: from --model]
    #[arg(long, value_name = "NAME", num_args = 1.., help_heading = "Model")]
    pub served_model_name: Vec<String>,
    /// Longest sequence in tokens, prompt and output together [default: the model's own]
    #[arg(long, value_name = "TOKENS", value_parser = within(1..=u32::MAX), help_heading = "Model")]
    pub max_model_len: Option<u32>,
    /// File with a chat template that replaces the model's own
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub chat_template: Option<PathBuf>,
    /// `auto`: weights as the files have them, fastest arithmetic. `float32`: exact and slow
    #[arg(long, value_enum, default_value_t = DtypeArg::Auto, help_heading = "Model")]
    pub dtype: DtypeArg,
    /// Where the model computes
    #[arg(long, value_enum, default_value_t = DeviceArg::Cpu, help_heading = "Model")]
    pub device: DeviceArg,
    /// Threads that compute [default: all processors]
    #[arg(long, value_name = "N", value_parser = within(1..=1024_u32), help_heading = "Model")]
    pub threads: Option<u32>,
    /// Makes the tokens of requests that bring no seed repeatable [default: random]
    #[arg(long, value_name = "SEED", help_heading = "Model")]
    pub seed: Option<u64>,

    /// Address to listen on; 0.0.0.0 for all of IPv4
    #[arg(long, default_value = "127.0.0.1", help_heading = "HTTP")]
    pub host: String,
    /// Port to listen on; 0 takes a free one, which is printed
    #[arg(long, default_value_t = 8000, help_heading = "HTTP")]
    pub port: u16,
    /// Key that clients must send to reach /v1
    #[arg(long, value_name = "KEY", help_heading = "HTTP")]
    pub api_key: Option<String>,
    /// Key that clients must send to reach the profiler's paths, under /v1 too [default: none]
    #[arg(long, value_name = "KEY", help_heading = "HTTP")]
    pub profile_api_key: Option<String>,
    /// Larger request bodies are answered by 413
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = within(1..=1024_u64), help_heading = "HTTP")]
    pub max_body_mb: u64,

    /// Sequences in one step at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = within(1..=4096_u32), help_heading = "Scheduler and KV cache")]
    pub max_num_seqs: u32,
    /// Tokens in one step at most; longer prompts are computed in chunks
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = within(1..=1_048_576_u32), help_heading = "Scheduler and KV cache")]
    pub max_num_batched_tokens: u32,
    /// Tokens that a KV block holds, a multiple of 8
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = within(8..=1024_u32).try_map(multiple_of_8), help_heading = "Scheduler and KV cache")]
    pub block_size: u32,
    /// KV blocks [default: as many as --kv-cache-memory-bytes hold]
    #[arg(long, value_name = "N", value_parser = within(1..=u32::MAX), help_heading = "Scheduler and KV cache")]
    pub num_kv_blocks: Option<u32>,
    /// Memory that the KV cache may take
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = within(1..=u64::MAX), help_heading = "Scheduler and KV cache")]
    pub kv_cache_memory_bytes: u64,
    /// Compute every prompt anew, even where its beginning is cached
    #[arg(long, help_heading = "Scheduler and KV cache")]
    pub no_enable_prefix_caching: bool,

    /// Every process can write Perfetto traces, into this directory
    #[arg(
        long,
        value_name = "DIR",
        env = "NANO_PROFILER_DIR",
        hide_env = true,
        help_heading = "Profiling"
    )]
    pub profiler_dir: Option<PathBuf>,
    /// `auto`: record from the start on. `manual`: when POST /start_profile or SIGUSR1 says so.
    /// `flight`: like `manual`, and keep the last seconds for POST /profile/dump or SIGUSR2
    #[arg(long, value_enum, default_value_t = ProfilerModeArg::Auto, env = "NANO_PROFILER_MODE", hide_env = true, value_name = "MODE", help_heading = "Profiling")]
    pub profiler_mode: ProfilerModeArg,
    /// Record these steps, counted from the first one on, and nothing else until a client says so:
    /// wait=1,warmup=1,active=3,repeat=1
    #[arg(
        long,
        value_name = "SCHEDULE",
        env = "NANO_PROFILER_SCHEDULE",
        hide_env = true,
        help_heading = "Profiling"
    )]
    pub profiler_schedule: Option<Cycle>,
    /// Seconds that mode `flight` keeps [default: 10]
    #[arg(long, value_name = "SECONDS", env = "NANO_PROFILER_FLIGHT_SECONDS", hide_env = true, value_parser = within(1..=300_u64), help_heading = "Profiling")]
    pub profiler_flight_seconds: Option<u64>,
    /// What makes mode `flight` write what it kept, at most once a minute:
    /// ttft_ms>500,itl_ms>200,queue_ms>1000,step_ms>100
    #[arg(
        long,
        value_name = "RULES",
        env = "NANO_PROFILER_TRIGGER",
        hide_env = true,
        default_value = "",
        hide_default_value = true,
        help_heading = "Profiling"
    )]
    pub profiler_trigger: FlightRules,
    /// Cap of one session's trace in each process
    #[arg(long, value_name = "MIB", env = "NANO_PROFILER_MAX_MB", hide_env = true, default_value_t = 64, value_parser = within(1..=1_048_576_u64), help_heading = "Profiling")]
    pub profiler_max_mb: u64,
    /// Sessions that no client asked for sample the stack of every thread, so often in each second
    /// of its CPU time, for `nano-trace flame` [default: not at all]
    #[arg(
        long,
        value_name = "HZ",
        env = "NANO_PROFILER_SAMPLE_HZ",
        hide_env = true,
        help_heading = "Profiling"
    )]
    pub profiler_sample_hz: Option<SampleRate>,

    /// Seconds that open requests may go on after SIGTERM; a second SIGTERM ends at once
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = within(0..=86_400_u64), help_heading = "Processes")]
    pub shutdown_timeout: u64,
    /// Ends the server when a process does not answer, or one step takes, so many seconds; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = within(0..=86_400_u64), help_heading = "Processes")]
    pub stall_timeout: u64,
    /// Most verbose lines that are logged
    #[arg(long, value_enum, default_value_t = LogLevelArg::Info, value_name = "LEVEL", help_heading = "Processes")]
    pub log_level: LogLevelArg,
}

/// How weights are kept and computed with.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help says it")]
pub enum DtypeArg {
    Auto,
    Float32,
}

/// Which device backend.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help says it")]
pub enum DeviceArg {
    Cpu,
    Cuda,
}

/// When recording begins.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help says it")]
pub enum ProfilerModeArg {
    Auto,
    Manual,
    Flight,
}

/// Most verbose level that is logged.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
pub enum LogLevelArg {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Args {
    /// Most verbose level that is logged.
    pub fn log_level(&self) -> LevelFilter {
        match self.log_level {
            LogLevelArg::Error => LevelFilter::Error,
            LogLevelArg::Warn => LevelFilter::Warn,
            LogLevelArg::Info => LevelFilter::Info,
            LogLevelArg::Debug => LevelFilter::Debug,
            LogLevelArg::Trace => LevelFilter::Trace,
        }
    }

    /// Takes the process's own command line; help, version and what is wrong
    /// are printed here, and become the exit code.
    pub fn from_command_line() -> Result<Args, ExitCode> {
        // An empty variable is an unset one.
        let is_empty = |arg: &Arg| {
            let value = arg.get_env().and_then(std::env::var_os);
            value.is_some_and(|value| value.is_empty())
        };
        let command = Args::command().mut_args(|arg| match is_empty(&arg) {
            true => arg.env(Resettable::Reset),
            false => arg,
        });
        let matches = command.try_get_matches();
        let args = matches.and_then(|matches| Args::from_arg_matches(&matches));
        args.map_err(|error| {
            if error.use_stderr() {
                eprintln!("nano-serve: {}", told(&error));
                ExitCode::from(EXIT_USAGE)
            } else {
                // A closed pipe behind `--help` is no failure.
                let _ = error.print();
                ExitCode::SUCCESS
            }
        })
    }
}

/// A number in a range.
fn within<T>(range: RangeInclusive<T>) -> impl TypedValueParser<Value = T>
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    StringValueParser::new().try_map(move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be from {} to {}", range.start(), range.end()))
    })
}

/// Kernels take the slots of a block eight at a time.
fn multiple_of_8(value: u32) -> Result<u32, &'static str> {
    if value.is_multiple_of(8) {
        Ok(value)
    } else {
        Err("must be a multiple of 8")
    }
}

/// What is wrong, on one line. A flag whose value came from the environment is
/// named by its variable too.
fn told(error: &clap::Error) -> String {
    let line = one_line(&error.to_string());
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return line;
    };
    let command = Args::command();
    let long = |arg: &Arg| arg.get_long().map(|long| format!("--{long}"));
    let is_meant = |arg: &&Arg| long(arg).as_deref() == flag.split(' ').next();
    let variable = command
        .get_arguments()
        .find(is_meant)
        .and_then(Arg::get_env);
    match variable.and_then(|name| name.to_str()) {
        Some(name) => line.replacen(&format!("'{flag}'"), &format!("'{flag}' ({name})"), 1),
        None => line,
    }
}

/// What is wrong and the hint, without the usage that follows.
fn one_line(rendered: &str) -> String {
    let sentence = |paragraph: &str| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
        lines.join(" ").replacen("tip: ", "", 1)
    };
    let said: Vec<String> = rendered
        .split("\n\n")
        .map(sentence)
        .filter(|text| {
            !text.is_empty() && !text.starts_with("Usage:") && !text.starts_with("For more")
        })
        .collect();
    let said = said.join("; ");
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    format!("{said} (see --help)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_wrong_flag_ends_with_one_line_that_names_it() {
        for (args, expected) in [
            (&["--modle", "x"][..], "'--modle'"),
            (&["--port", "70000"], "'--port <PORT>'"),
            (&["--dtype", "int3"], "[possible values: auto, float32]"),
            (&["--block-size", "0"], "must be from 8 to 1024"),
            (&["--block-size", "12"], "must be a multiple of 8"),
            (&["stray"], "'stray'"),
            (&["--model"], "'--model <PATH|ID>'"),
            (&["--profiler-mode", "fly"], "'--profiler-mode <MODE>'"),
            (
                &["--profiler-flight-seconds", "abc"],
                "'--profiler-flight-seconds <SECONDS>' (NANO_PROFILER_FLIGHT_SECONDS): must be from 1 to 300",
            ),
            (&["--profiler-trigger", "ttft>5"], "\"ttft>5\" is no rule"),
            (
                &["--profiler-trigger", "step_ms>5,step_ms>6"],
                "step_ms is limited twice",
            ),
            (
                &["--profiler-schedule", "active=0"],
                "active is missing or 0",
            ),
            (
                &["--profiler-sample-hz", "1001"],
                "must be 1 to 1000, in Hz",
            ),
            (
                &["--profiler-schedule", ""],
                "'--profiler-schedule <SCHEDULE>'",
            ),
        ] {
            let args = [&["nano-serve"], args].concat();
            let error = Args::try_parse_from(&args).expect_err("wrong");
            let line = told(&error);
            assert_eq!(line.lines().count(), 1, "{line}");
            assert!(line.contains(expected), "{args:?}: {line}");
        }
    }
}
