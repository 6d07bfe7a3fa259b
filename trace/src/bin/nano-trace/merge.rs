//! `nano-trace merge`.

use crate::choice::{Choice, merged_name};
use nano_trace::{
    merge::{MergeError, MergedFile, merge, merge_into},
    selection::Wanted,
};
use std::{
    fmt::Display,
    fs::{self, File},
    io::{self, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Merge {
    #[command(flatten)]
    choice: Choice,
    /// Where the merged trace goes, if not to SESSION.perfetto-trace: an existing
    /// file is replaced, `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Merge {
    pub(crate) fn run(self) -> Result<ExitCode, MergeError> {
        let selection = self.choice.select(Wanted::Newest)?;
        let output = self
            .output
            .unwrap_or_else(|| merged_name(&selection).into());
        let inputs = selection.files;
        if output == Path::new("-") {
            let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            let merged = merge_into(&inputs, stdout)?;
            tell(&merged, "standard output", io::stderr())?;
        } else {
            let merged = merge(&inputs, &output)?;
            let is_file = fs::metadata(&output)?.is_file();
            // A pipe may be our own output under another name.
            let to: Box<dyn Write> = match is_file {
                true => Box::new(io::stdout()),
                false => Box::new(io::stderr()),
            };
            tell(&merged, output.display(), to)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn tell(merged: &[MergedFile], output: impl Display, mut to: impl Write) -> io::Result<()> {
    for file in merged {
        let loss = file.tail.loss();
        let note = loss.map_or_else(String::new, |loss| format!("; {loss}"));
        writeln!(to, "{}: {} packets{note}", file.source, file.packets)?;
    }
    let total: u64 = merged.iter().map(|file| file.bytes).sum();
    writeln!(to, "{output}: {} files, {total} bytes", merged.len())
}
