//! Writes what processes kept of their last seconds, on a thread of its own:
//! whoever serves waits for no disk.
//!
//! It reads the memory that processes record into, so that none of them need
//! do anything for it, nor be alive.

use nano_trace::{DumpSpec, Rings, SessionName, SessionStatus};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// What is to be written of every process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpOrder {
    /// From 1; no two of a server's run are alike.
    pub number: u32,
    /// Of its files.
    pub name: SessionName,
    /// Where they go.
    pub dir: PathBuf,
    /// Cap of one process's file.
    pub max_bytes: u64,
    /// Interval of `CLOCK_BOOTTIME`, the same for all.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// What was behind it, key and value.
    pub facts: Vec<(String, String)>,
}

/// A process that keeps what it recorded, or did until it died.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its number.
    pub pid: u32,
    /// As its files call it.
    pub role: String,
    /// What it records into.
    pub rings: Arc<Rings>,
    /// It was killed.
    pub is_dead: bool,
}

/// What was written of each process, by number; `None`: it had not begun.
#[derive(Clone, Debug)]
pub struct Dumped {
    /// Of the order.
    pub number: u32,
    /// How each process's part went.
    pub parts: Vec<(u32, Option<SessionStatus>)>,
}

impl DumpOrder {
    /// Writes everything, and returns when that is done; `facts` are the run's.
    pub fn carry_out(&self, recorded: &[Recorded], facts: &[(String, String)]) -> Dumped {
        let dump = |process: &Recorded| {
            let spec = DumpSpec {
                dir: self.dir.clone(),
                name: self.name.clone(),
                number: self.number,
                role: process.role.clone(),
                max_bytes: self.max_bytes,
                from_ns: self.from_ns,
                to_ns: self.to_ns,
                facts: facts.iter().chain(&self.facts).cloned().collect(),
                is_dead: process.is_dead,
            };
            (process.pid, process.rings.dump(&spec))
        };
        Dumped {
            number: self.number,
            parts: recorded.iter().map(dump).collect(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Dumper {
    orders: Sender<(DumpOrder, Vec<Recorded>)>,
    /// Nothing is ever sent: it breaks off when the thread ends.
    end: Receiver<()>,
}

impl Dumper {
    /// `report` is called, on the thread, with what was written for each order;
    /// `facts` are those of the run. How many orders wait is bounded by who
    /// gives them.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(
        facts: Vec<(String, String)>,
        report: impl Fn(Dumped) + Send + 'static,
    ) -> io::Result<Dumper> {
        let (orders, incoming) = channel::<(DumpOrder, Vec<Recorded>)>();
        let (alive, end) = channel();
        thread::Builder::new()
            .name("dumper".to_owned())
            .spawn(move || {
                let _alive: Sender<()> = alive;
                for (order, recorded) in incoming {
                    report(order.carry_out(&recorded, &facts));
                }
            })?;
        Ok(Dumper { orders, end })
    }

    /// Writes it when those before are written.
    pub fn order(&self, order: DumpOrder, recorded: Vec<Recorded>) {
        // Fails only if the thread panicked; then nobody can be answered.
        let _ = self.orders.send((order, recorded));
    }

    /// Waits, not longer than that, until everything ordered is written.
    pub fn finish(self, patience: Duration) {
        drop(self.orders);
        if let Err(RecvTimeoutError::Timeout) = self.end.recv_timeout(patience) {
            log::error!("a dump could not be written within {patience:?}");
        }
    }
}
