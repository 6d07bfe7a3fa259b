//! Ctrl+C: the first ends the load, the second ends all waiting.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often the run was interrupted.
#[derive(Clone, Debug)]
pub struct Interrupt(watch::Receiver<u32>);

/// Interrupts.
#[derive(Debug)]
pub struct Interrupter(watch::Sender<u32>);

impl Interrupter {
    /// Once more.
    pub fn interrupt(&self) {
        self.0.send_modify(|count| *count += 1);
    }
}

/// An interrupt that has not happened, and what causes it.
pub fn interrupt() -> (Interrupter, Interrupt) {
    let (interrupter, interrupt) = watch::channel(0);
    (Interrupter(interrupter), Interrupt(interrupt))
}

/// From now on SIGINT and SIGTERM interrupt, and do nothing else.
///
/// # Errors
/// When the signals cannot be handled.
pub fn on_signals() -> std::io::Result<Interrupt> {
    let (interrupter, interrupt) = interrupt();
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = int.recv() => {}
                _ = term.recv() => {}
            }
            interrupter.interrupt();
        }
    });
    Ok(interrupt)
}

impl Interrupt {
    /// Whether the run was interrupted.
    pub fn happened(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Waits for the first interrupt.
    pub async fn first(&mut self) {
        self.reaches(1).await;
    }

    /// Waits for the second interrupt.
    pub async fn second(&mut self) {
        self.reaches(2).await;
    }

    async fn reaches(&mut self, count: u32) {
        if self.0.wait_for(|&now| now >= count).await.is_err() {
            // Nobody is left who could interrupt.
            std::future::pending().await
        }
    }
}
