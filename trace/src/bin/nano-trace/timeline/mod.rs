//! `nano-trace timeline`: one request's way, or a whole session, as a picture.

mod axis;
mod draw;
mod rows;
mod svg;

use crate::{choice::Choice, reading};
use nano_trace::{
    Event,
    merge::MergeError,
    selection::Wanted,
    timeline::{ArgValue, Timeline, TimelineSlice},
};
use std::{fs, path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct TimelineArgs {
    #[command(flatten)]
    choice: Choice,
    /// The request's id, or a part of it; if absent, the one that a rule fired for, or else the first answered one
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// All requests and threads of the session, instead of one request
    #[arg(long, conflicts_with = "request")]
    whole: bool,
    /// Where the picture goes, as SVG; an existing file is replaced
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TimelineError {
    #[error(transparent)]
    Read(#[from] MergeError),
    #[error("no request was answered in these traces; --request ID draws another one, --whole all")]
    NoRequest,
    #[error("no request whose id has {wanted:?} in it; there are {there}")]
    UnknownRequest { wanted: String, there: String },
    #[error("{path}: {error}")]
    Write { path: String, error: std::io::Error },
}

impl TimelineArgs {
    pub(crate) fn run(self) -> Result<ExitCode, TimelineError> {
        let sources = self.choice.sources(Wanted::Newest)?;
        let timeline = reading::timeline(&sources)?;
        let picture = match self.whole {
            true => draw::whole(&timeline),
            false => {
                let request = find_request(&timeline, self.request.as_deref())?;
                draw::picture(&timeline, request)
            }
        };
        fs::write(&self.output, picture).map_err(|error| TimelineError::Write {
            path: self.output.display().to_string(),
            error,
        })?;
        println!("{}", self.output.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// The place of the wanted request's slice.
fn find_request(timeline: &Timeline, wanted: Option<&str>) -> Result<usize, TimelineError> {
    let mut requests = timeline.slices_of(Event::Request);
    let found = match wanted {
        Some(wanted) => requests.find(|(_, request)| request_id(request).contains(wanted)),
        None => requests.find(|(_, request)| match fired_for(timeline) {
            Some(id) => request_id(request) == id,
            None => {
                let reason = request.arg("finish_reason").and_then(ArgValue::text);
                matches!(reason, Some("stop" | "length"))
            }
        }),
    };
    match (found, wanted) {
        (Some((place, _)), _) => Ok(place),
        (None, None) => Err(TimelineError::NoRequest),
        (None, Some(wanted)) => {
            let ids = timeline.slices_of(Event::Request);
            let ids = ids.map(|(_, request)| request_id(request));
            let mut there = ids.take(8).collect::<Vec<_>>().join(", ");
            if there.is_empty() {
                there = "none at all".to_owned();
            }
            Err(TimelineError::UnknownRequest {
                wanted: wanted.to_owned(),
                there,
            })
        }
    }
}

/// The request whose slowness a dump of the flight recorder is about.
fn fired_for(timeline: &Timeline) -> Option<&str> {
    let mut facts = timeline.facts.iter();
    let fact = facts.find(|(key, _)| key == "request_id")?;
    Some(&fact.1)
}

fn request_id(request: &TimelineSlice) -> &str {
    let id = request.arg("request_id").and_then(ArgValue::text);
    id.unwrap_or("a request without an id")
}
