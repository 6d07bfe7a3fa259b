//! Takes the records as they come: a thread of its own writes each to
//! records.jsonl and measures it, so that no disk delays the event loop.

use crate::config::{Config, Load};
use crate::record::RequestRecord;
use crate::summary::Measured;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::thread;
use tokio::sync::mpsc;

/// Records on their way to the disk.
const WAITING: usize = 4096;

/// The thread, and the way to it.
#[derive(Debug)]
pub struct Recorder {
    records: mpsc::Sender<RequestRecord>,
    thread: thread::JoinHandle<Vec<Measured>>,
}

impl Recorder {
    /// Begins to record into `dir`, which exists.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn start(dir: &Path, config: &Config) -> io::Result<Recorder> {
        let mut file = BufWriter::new(File::create(dir.join("records.jsonl"))?);
        let loads: Vec<Load> = config.loads.clone();
        let limits = config.goodput.clone();
        let (records, mut incoming) = mpsc::channel::<RequestRecord>(WAITING);
        let thread = thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || {
                let mut measured: Vec<Measured> =
                    loads.iter().map(|_| Measured::default()).collect();
                // The first error; what comes later is measured all the same.
                let mut outcome = Ok(());
                while let Some(record) = incoming.blocking_recv() {
                    if outcome.is_ok() {
                        outcome = writeln!(file, "{}", record.to_json());
                    }
                    if let Some(measured) = measured.get_mut(record.load) {
                        measured.add(&record, &limits);
                    }
                }
                if let Err(error) = outcome.and_then(|()| file.flush()) {
                    eprintln!("nano-bench: records.jsonl is not whole: {error}");
                }
                measured
            })?;
        Ok(Recorder { records, thread })
    }

    /// Takes a record; waits while thousands wait for the disk.
    pub async fn take(&self, record: RequestRecord) {
        // It listens until `finish`.
        let _ = self.records.send(record).await;
    }

    /// What was measured of each load, when all is written.
    ///
    /// # Errors
    /// When the thread has ended badly.
    pub fn finish(self) -> io::Result<Vec<Measured>> {
        drop(self.records);
        let joined = self.thread.join();
        joined.map_err(|_| io::Error::other("the thread that measures has panicked"))
    }
}
