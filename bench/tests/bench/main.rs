//! nano-bench against servers whose every delay and fault is known.

mod double;
mod endpoints;
mod failures;
mod interrupts;
mod latency;
mod load;
mod tls;
mod trigger;
mod turns;

use double::Double;
use nano_bench::config::Config;
use nano_bench::interrupt::interrupt;
use nano_bench::options::Options;
use nano_bench::report::Report;
use nano_bench::run::run;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a run left behind.
pub(crate) struct Results {
    pub(crate) report: Report,
    pub(crate) dir: TempDir,
}

impl Results {
    /// Lines of records.jsonl, in order of their index.
    pub(crate) fn records(&self) -> Vec<Value> {
        records(self.dir.path())
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        json(self.dir.path(), name)
    }
}

pub(crate) fn records(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("records.jsonl")).expect("written");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let mut records: Vec<Value> = lines.collect();
    records.sort_by_key(|record| record["index"].as_u64());
    records
}

pub(crate) fn json(dir: &Path, name: &str) -> Value {
    let text = fs::read_to_string(dir.join(name)).expect("written");
    serde_json::from_str(&text).expect("JSON")
}

/// Options for these servers; the model is named, so that nothing is asked for it.
pub(crate) fn options(doubles: &[&Double]) -> Options {
    Options {
        base_url: Some(doubles.iter().map(|double| double.url()).collect()),
        model: Some("double".to_owned()),
        ..Options::default()
    }
}

/// Runs in this process.
pub(crate) fn bench(options: Options) -> Results {
    let dir = tempfile::tempdir().expect("temporary directory");
    let options = Options {
        output_dir: Some(dir.path().to_owned()),
        ..options
    };
    let config = Config::try_from(options).unwrap_or_else(|error| panic!("{error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (_interrupter, interrupt) = interrupt();
    let report = runtime
        .block_on(run(config, interrupt, false))
        .unwrap_or_else(|error| panic!("{error}"));
    Results { report, dir }
}

/// Asks until it is so.
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
