//! One phase: requests of a schedule, so many at once, until all have ended.

use crate::client::Client;
use crate::client_trace::RequestTrace;
use crate::clock::Moment;
use crate::config::{Extent, Load};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::record::RequestRecord;
use crate::recorder::Recorder;
use crate::schedule::{Planned, Schedule};
use crate::workload::Workload;
use crate::workload::random::Purpose;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

/// What all phases of a run share.
pub(super) struct Phase {
    pub(super) client: Arc<Client>,
    pub(super) workload: Arc<Workload>,
    pub(super) seed: u64,
    /// The run's word in trace ids.
    pub(super) run: u64,
    /// Requests that have a trace id.
    pub(super) traced: u64,
    pub(super) is_shown: bool,
    pub(super) interrupt: Interrupt,
}

impl Phase {
    /// Runs to the end, or until it is interrupted: then no request is sent any
    /// more, and those that are open end as aborted. How many were sent.
    pub(super) async fn run(
        &mut self,
        name: &str,
        purpose: Purpose,
        load: Load,
        extent: Extent,
        first_index: u64,
        recorder: Option<(&Recorder, usize)>,
    ) -> io::Result<u64> {
        let begin = Moment::now();
        let end = extent.duration.map(|duration| begin + duration);
        let schedule = Schedule {
            workload: Arc::clone(&self.workload),
            purpose,
            load,
            extent,
            first_index,
            seed: self.seed,
        };
        // `None` once the last request is out.
        let mut planned = Some(schedule.start(begin)?);
        let chunks = self.client.chunks();
        let mut progress = Progress::new(name, load, extent, self.is_shown, chunks);
        let mut open: JoinSet<RequestRecord> = JoinSet::new();
        let mut interrupt = self.interrupt.clone();
        let mut sent = 0;
        loop {
            // Requests that are open are bounded by their time-outs.
            if planned.is_none() && open.is_empty() {
                break;
            }
            let may_send = open.len() < load.slots();
            tokio::select! {
                biased;
                () = interrupt.first(), if planned.is_some() => planned = None,
                () = progress.is_due(), if self.is_shown => progress.draw(self.client.chunks()),
                Some(ended) = open.join_next() => {
                    // A task panics only where this program is wrong.
                    let record = ended.map_err(io::Error::other)?;
                    progress.ended(&record);
                    if let Some((recorder, _)) = recorder {
                        recorder.take(record).await;
                    }
                }
                next = next_of(&mut planned), if may_send && planned.is_some() => {
                    let Some(next) = next.filter(|_| end.is_none_or(|end| Moment::now() < end)) else {
                        planned = None;
                        continue;
                    };
                    sent += 1;
                    self.traced += 1;
                    let trace = RequestTrace::begin(self.run, self.traced);
                    let client = Arc::clone(&self.client);
                    let number = recorder.map_or(0, |(_, number)| number);
                    open.spawn(async move { client.perform(next, number, trace).await });
                }
            }
        }
        progress.finish();
        Ok(sent)
    }
}

async fn next_of(planned: &mut Option<Receiver<Planned>>) -> Option<Planned> {
    planned.as_mut()?.recv().await
}
