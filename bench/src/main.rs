//! `nano-bench`, a load generator.

use clap::Parser;
use nano_bench::config::Config;
use nano_bench::options::Flags;
use nano_bench::report::{self, Report};
use nano_bench::{interrupt, run, yaml};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::error::Error;
use std::process::ExitCode;

/// No request was answered.
const NOTHING_MEASURED: u8 = 1;
/// The benchmark could not be done as told.
const REFUSED: u8 = 2;
/// Ended by Ctrl+C, as a shell says it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let flags = Flags::parse();
    match benchmark(flags) {
        Ok(report) => {
            print!("\n{}", report::text(&report));
            println!("\nresults in {}", report.config.output_dir.display());
            let complete = report.loads.iter().map(|load| load.requests.complete);
            match complete.sum::<u64>() {
                _ if report.aborted => ExitCode::from(INTERRUPTED),
                0 => ExitCode::from(NOTHING_MEASURED),
                _ => ExitCode::SUCCESS,
            }
        }
        Err(error) => {
            eprintln!("nano-bench: {error}");
            ExitCode::from(REFUSED)
        }
    }
}

fn benchmark(flags: Flags) -> Result<Report, Box<dyn Error>> {
    let options = match &flags.config {
        Some(path) => flags.options.over(yaml::read(path)?),
        None => flags.options,
    };
    let config = Config::try_from(options)?;
    allow_connections();
    let mut runtime = match config.num_workers {
        // Without threads between which tasks move, a token costs least.
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime
        .worker_threads(config.num_workers)
        .enable_all()
        .build()?;
    let report = runtime.block_on(async {
        let interrupt = interrupt::on_signals()?;
        Ok(run::run(config, interrupt, !flags.no_progress).await?)
    });
    // A name that is still being looked up holds nobody up.
    runtime.shutdown_background();
    report
}

/// Each request at once is a descriptor.
fn allow_connections() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Without, it is the system's word that is reported.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
