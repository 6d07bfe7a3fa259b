//! The whole run: warm-up, then each load between start and stop of profilers.

mod discovery;
mod phase;

use crate::client::{self, Client, Connector};
use crate::client_trace;
use crate::clock::{Moment, now_iso};
use crate::config::{Config, Extent, Load};
use crate::interrupt::Interrupt;
use crate::profiling::{StopReason, Trigger};
use crate::recorder::Recorder;
use crate::report::{Report, ReportError, Versions};
use crate::summary::Summary;
use crate::workload::random::Purpose;
use crate::workload::{DatasetError, Workload};
use discovery::Discovery;
use phase::Phase;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why there is no benchmark.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The dataset cannot be used.
    #[error("--dataset: {0}")]
    Dataset(#[from] DatasetError),
    /// Nobody is trusted.
    #[error(transparent)]
    Tls(#[from] client::TlsError),
    /// The client's trace cannot be written.
    #[error(transparent)]
    Trace(#[from] client_trace::TraceError),
    /// No model was named, and no server tells.
    #[error("--model: not given, and {0}")]
    Model(String),
    /// Results cannot be written.
    #[error("--output-dir {}: {source}", path.display())]
    OutputDir {
        /// Which directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the results cannot be written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// No thread to be had.
    #[error("threads: {0}")]
    Threads(#[from] io::Error),
}

/// Begin and end of a load.
#[derive(Clone, Copy, Debug)]
struct Span {
    load: Load,
    begun: Moment,
    aborted: bool,
}

/// Does what `config` says, and writes the results into its directory.
///
/// # Errors
/// When it cannot be begun, or its results cannot be written. Whatever servers
/// do is a result.
pub async fn run(config: Config, interrupt: Interrupt, is_shown: bool) -> Result<Report, RunError> {
    let began_at = now_iso();
    let triggered = config
        .profiling
        .iter()
        .flat_map(|profiling| &profiling.urls);
    let servers = config.endpoints.iter().chain(triggered);
    let connector = Connector::new(servers.map(|url| url.origin()))?;
    let authorization = client::authorization(config.api_key.as_deref());
    let discovery = Discovery::new(&connector, authorization.clone());
    let model = match &config.model {
        Some(model) => model.clone(),
        None => discovery
            .model(&config.endpoints)
            .await
            .map_err(RunError::Model)?,
    };
    let versions = Versions {
        nano_bench: env!("CARGO_PKG_VERSION"),
        servers: discovery.versions(&config.endpoints).await,
    };
    let workload = Arc::new(Workload::new(&config, &model)?);
    let dir = config.output_dir.clone();
    let dir_error = |source| RunError::OutputDir {
        path: config.output_dir.clone(),
        source,
    };
    fs::create_dir_all(&dir).map_err(dir_error)?;
    let recorder = Recorder::start(&dir, &config).map_err(dir_error)?;
    let word = client_trace::random_word();
    if let Some(dir) = &config.trace_dir {
        let facts = [("version", versions.nano_bench), ("model", &model)];
        let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned()));
        client_trace::start(dir, word, facts.to_vec())?;
    }
    let mut trigger = config
        .profiling
        .as_ref()
        .map(|profiling| Trigger::new(profiling, connector.clone(), authorization));
    let mut phase = Phase {
        client: Arc::new(Client::new(&config, connector, interrupt.clone())),
        workload,
        seed: config.seed,
        run: word,
        traced: 0,
        is_shown,
        interrupt: interrupt.clone(),
    };

    if config.warmup_requests > 0 {
        let extent = Extent {
            requests: Some(config.warmup_requests),
            duration: None,
        };
        phase
            .run("warm-up", Purpose::WarmUp, config.loads[0], extent, 0, None)
            .await?;
    }
    let mut spans = Vec::new();
    let mut first_index = 0;
    for (number, &load) in config.loads.iter().enumerate() {
        if interrupt.happened() {
            break;
        }
        if let Some(trigger) = &mut trigger {
            trigger.start(&interrupt).await;
        }
        let begun = Moment::now();
        let recorded = Some((&recorder, number));
        let sent = phase
            .run(
                "measuring",
                Purpose::Measured,
                load,
                config.extent,
                first_index,
                recorded,
            )
            .await;
        let aborted = interrupt.happened();
        if let Some(trigger) = &mut trigger {
            let reason = match aborted {
                true => StopReason::Abort,
                false => StopReason::PhaseEnd,
            };
            trigger.stop(reason, &interrupt).await;
        }
        spans.push(Span {
            load,
            begun,
            aborted,
        });
        first_index += sent?;
    }
    nano_trace::finish();

    let measured = recorder.finish()?;
    let loads = spans
        .iter()
        .zip(measured)
        .map(|(span, measured)| {
            Summary::new(
                span.load,
                span.begun,
                span.aborted,
                measured,
                &config.goodput,
            )
        })
        .collect();
    let report = Report {
        versions,
        began_at,
        aborted: interrupt.happened(),
        config,
        model,
        loads,
        profiling: trigger.map(|trigger| trigger.log().clone()),
    };
    report.write(&dir)?;
    Ok(report)
}
