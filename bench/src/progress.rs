//! The progress bar, with live rates.

use crate::config::{Extent, Load};
use crate::record::{Outcome, RequestRecord};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// What has come so far in one load, on a terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    redraw: Interval,
    ended: u64,
    failed: u64,
    /// Chunks that came before.
    chunks_before: u64,
    duration: Option<Duration>,
}

/// Time between two looks.
const REDRAW: Duration = Duration::from_millis(200);

impl Progress {
    /// Begins, after so many chunks; `name` stands before the bar.
    pub fn new(name: &str, load: Load, extent: Extent, is_shown: bool, chunks: u64) -> Progress {
        let target = match is_shown {
            // Nothing is drawn where standard error is no terminal.
            true => ProgressDrawTarget::stderr_with_hz(5),
            false => ProgressDrawTarget::hidden(),
        };
        let length = extent.requests.or(extent.duration.map(|d| d.as_secs()));
        let bar = ProgressBar::with_draw_target(length, target);
        let template = "{prefix} [{bar:30}] {pos}/{len} {elapsed} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(format!("{name}, {}", load.label()));
        let mut redraw = interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Progress {
            bar,
            begun: Instant::now(),
            redraw,
            ended: 0,
            failed: 0,
            chunks_before: chunks,
            // The bar shows time where nobody knows the number of requests.
            duration: extent
                .requests
                .is_none()
                .then_some(extent.duration)
                .flatten(),
        }
    }

    /// A request has ended.
    pub fn ended(&mut self, record: &RequestRecord) {
        self.ended += 1;
        self.failed += u64::from(record.outcome != Outcome::Complete);
    }

    /// Waits until it is time to draw.
    pub async fn is_due(&mut self) {
        self.redraw.tick().await;
    }

    /// Draws; so many chunks of output came in the whole run.
    pub fn draw(&self, chunks: u64) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.bar.set_position(match self.duration {
            Some(_) => seconds as u64,
            None => self.ended,
        });
        self.bar.set_message(format!(
            "{:.1} requests/s, {:.0} chunks/s, {} failed",
            self.ended as f64 / seconds,
            (chunks - self.chunks_before) as f64 / seconds,
            self.failed
        ));
    }

    /// It is over; the bar goes.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
