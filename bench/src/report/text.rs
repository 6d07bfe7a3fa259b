//! report.txt: the numbers, for people.

use super::Report;
use crate::summary::Summary;
use crate::summary::stats::Distribution;
use std::fmt::Write;

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut out = format!(
        "nano-bench {}: {}, {}, seed {}\n",
        report.versions.nano_bench, report.model, report.began_at, report.config.seed
    );
    for (url, version) in report.config.endpoints.iter().zip(&report.versions.servers) {
        let version = version.as_deref().unwrap_or("version unknown");
        let _ = writeln!(out, "  {url} ({version})");
    }
    if report.aborted {
        out.push_str("  INTERRUPTED: what was measured until then\n");
    }
    for summary in &report.loads {
        out.push('\n');
        section(&mut out, summary);
    }
    if let Some(log) = &report.profiling {
        let _ = write!(out, "\n{}", log.section());
    }
    out
}

fn section(out: &mut String, summary: &Summary) {
    let (requests, throughput) = (summary.requests, summary.throughput);
    let _ = writeln!(out, "{}, {:.2} s", summary.load.label(), summary.duration_s);
    let _ = writeln!(
        out,
        "  requests           {} sent, {} complete, {} failed, {} aborted",
        requests.sent, requests.complete, requests.failed, requests.aborted
    );
    let _ = writeln!(
        out,
        "  throughput         {:.2} requests/s, {:.1} output tokens/s, {:.1} total tokens/s",
        throughput.requests_per_s, throughput.output_tokens_per_s, throughput.total_tokens_per_s
    );
    let _ = writeln!(
        out,
        "  tokens             {} prompt, {} output",
        summary.tokens.prompt, summary.tokens.output
    );
    let without = summary.tokens.requests_without_usage;
    if without > 0 {
        let _ = writeln!(
            out,
            "                     ({without} requests without usage: chunks counted as tokens)"
        );
    }
    if let Some(goodput) = &summary.goodput {
        let _ = writeln!(
            out,
            "  goodput            {:.2} requests/s, {:.1} % of those sent",
            goodput.requests_per_s,
            goodput.share * 100.0
        );
    }
    let rows = [
        ("TTFT", &summary.ttft_ms),
        ("ITL", &summary.itl_ms),
        ("TPOT", &summary.tpot_ms),
        ("E2E", &summary.e2e_ms),
        ("send lag", &summary.send_lag_ms),
    ];
    if rows.iter().any(|(_, latency)| latency.mean.is_some()) {
        let _ = writeln!(
            out,
            "  {:<16}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "latency in ms", "mean", "p50", "p90", "p99", "p99.9", "max"
        );
    }
    for (name, latency) in rows {
        row(out, name, latency);
    }
    for (name, failure) in &summary.failures {
        let example = failure.example.lines().next().unwrap_or_default();
        let _ = writeln!(out, "  failed: {:<10} {name}: {example}", failure.count);
    }
}

/// Nothing where nothing was measured.
fn row(out: &mut String, name: &str, latency: &Distribution) {
    let Some(mean) = latency.mean else { return };
    let _ = write!(out, "    {name:<14}{mean:>10.2}");
    for value in [
        latency.p50,
        latency.p90,
        latency.p99,
        latency.p99_9,
        latency.max,
    ] {
        let _ = write!(out, "{:>10.2}", value.unwrap_or_default());
    }
    out.push('\n');
}
