//! `nano-trace merge`.

use nano_trace::{
    merge::{MergeError, merge, trace_files},
    read::Tail,
};
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Merge {
    /// Trace files, or directories that hold them
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Where the merged trace goes; an existing file is replaced
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Of a directory take the traces of all runs, not of the newest one alone
    #[arg(long)]
    all: bool,
}

impl Merge {
    pub(crate) fn run(self) -> Result<ExitCode, MergeError> {
        let inputs = trace_files(&self.paths, self.all)?;
        let merged = merge(&inputs, &self.output)?;
        let mut total = 0;
        for file in &merged {
            let note = match &file.tail {
                Tail::Whole => String::new(),
                Tail::Cut { offset } => format!("; cut packet at byte {offset} left out"),
                Tail::Zeros { offset } => format!("; zeros from byte {offset} on left out"),
                Tail::Broken { offset, why } => {
                    format!("; left out what follows byte {offset}, which is no packet: {why}")
                }
            };
            total += file.bytes;
            println!("{}: {} packets{note}", file.source, file.packets);
        }
        println!(
            "{}: {} files, {total} bytes",
            self.output.display(),
            merged.len()
        );
        Ok(ExitCode::SUCCESS)
    }
}
