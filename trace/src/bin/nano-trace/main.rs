//! `nano-trace`: puts trace files together, checks them and tells what is in them.

mod check;
mod choice;
mod flame;
mod info;
mod merge;
mod open;
mod reading;
mod timeline;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Puts trace files together, checks them and tells what is in them.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write several trace files as one, for ui.perfetto.dev
    Merge(merge::Merge),
    /// Serve a merged trace to ui.perfetto.dev on this machine, and print the link
    Open(open::Open),
    /// Check trace files, each alone and all together, against the rules of the format and the catalogue of events
    Check(check::Check),
    /// Tell what is in trace files
    Info(info::Info),
    /// Draw one request's way through the processes, as SVG
    Timeline(timeline::TimelineArgs),
    /// Draw where CPU time went, by stack samples, as a flame graph
    Flame(flame::Flame),
}

/// The files were read, and something is wrong with them.
const FAULTS: u8 = 1;
/// The command could not be carried out.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // Output may go into a pipe whose reader has enough: end silently, as other
    // tools do, and not with a panic of `println!`.
    // SAFETY: no other thread exists, and the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if !e.use_stderr() => {
            // Help or version; nothing to do about a closed pipe.
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) => return refuse(&one_line(&e.render().to_string())),
    };
    let result = match cli.command {
        Command::Merge(merge) => merge.run().map_err(|e| e.to_string()),
        Command::Open(open) => open.run().map_err(|e| e.to_string()),
        Command::Check(check) => check.run().map_err(|e| e.to_string()),
        Command::Info(info) => info.run().map_err(|e| e.to_string()),
        Command::Timeline(timeline) => timeline.run().map_err(|e| e.to_string()),
        Command::Flame(flame) => flame.run().map_err(|e| e.to_string()),
    };
    result.unwrap_or_else(|why| refuse(&why))
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("nano-trace: {why}");
    ExitCode::from(USAGE)
}

/// The part of a message of clap that says what is wrong, on one line.
fn one_line(message: &str) -> String {
    let what = message.split("\n\n").next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(what);
    what.split_whitespace().collect::<Vec<_>>().join(" ")
}
