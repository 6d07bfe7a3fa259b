//! What a server's `/metrics` says.

use crate::harness::client::get;
use crate::harness::server::{Server, wait_for};
use std::time::Duration;

/// Gauges that are zero when nobody is in the server: what the scheduler and
/// the KV cache hold, and what each process keeps.
const GAUGES: [&str; 4] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "nano:open_sequences",
];

/// One reading of `/metrics`.
pub struct Metrics(String);

impl Metrics {
    /// Reads them.
    pub fn read(server: &Server) -> Metrics {
        let (status, text) = get(&format!("{}/metrics", server.base_url())).expect("answered");
        assert_eq!(status, 200, "{text}");
        Metrics(text)
    }

    /// The values of a metric, one for each set of labels that contains `label`.
    pub fn values(&self, name: &str, label: &str) -> Vec<f64> {
        let lines = self.0.lines().filter_map(|line| line.strip_prefix(name));
        let of_name = lines.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
        of_name
            .map(|rest| {
                let value = rest.rsplit(' ').next().and_then(|text| text.parse().ok());
                value.unwrap_or_else(|| panic!("no number: {name}{rest}"))
            })
            .collect()
    }

    /// The sum of a metric's values.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        self.values(name, label).iter().sum()
    }

    fn tell_of_nobody(&self) -> bool {
        // Frontend, core and worker have told what they keep.
        assert_eq!(
            self.values("nano:open_sequences", "").len(),
            3,
            "{}",
            self.0
        );
        GAUGES.iter().all(|name| self.sum(name, "") == 0.0)
    }
}

/// Waits until nobody is in the server: no process keeps anything of a request.
pub fn wait_for_nobody(server: &Server) {
    wait_for(
        "server in which nobody is left",
        Duration::from_secs(5),
        || Metrics::read(server).tell_of_nobody().then_some(()),
    );
}
