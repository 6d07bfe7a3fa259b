//! HTTPS, with a certificate that SSL_CERT_FILE trusts, and with one that nobody does.
//!
//! `tls/` holds a key and a certificate for `localhost` that were made for this
//! test and protect nothing.

use crate::double::{Double, ms, stream};
use crate::{json, turns};
use std::path::{Path, PathBuf};
use std::process::Command;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/bench/tls")
        .join(name)
}

fn summary(double: &Double, trusted: &Path) -> serde_json::Value {
    let dir = tempfile::tempdir().expect("temporary directory");
    Command::new(env!("CARGO_BIN_EXE_nano-bench"))
        .args([
            "--base-url",
            &double.url(),
            "--model",
            "m",
            "--num-requests",
            "3",
        ])
        .args(["--profile", "nano", "--output-dir"])
        .arg(dir.path())
        .env("SSL_CERT_FILE", trusted)
        .env_remove("SSL_CERT_DIR")
        .env_remove("NANO_PROFILER_DIR")
        .output()
        .expect("built");
    let profiling = json(dir.path(), "profiling.json");
    let mut summary = json(dir.path(), "result_summary.json");
    summary["start"] = profiling["starts"][0].clone();
    summary
}

#[test]
fn a_server_is_believed_if_its_certificate_is_trusted() {
    let _turn = turns::with_others();
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let double = Double::start_tls(&certificate, &key, |path, _| match path {
        "/start_profile" | "/stop_profile" => vec![crate::double::Step::Whole(200, "{}")],
        _ => stream([ms(1), ms(1)]),
    });
    let trusting = summary(&double, &certificate);
    assert_eq!(
        trusting["loads"][0]["requests"]["complete"], 3,
        "{trusting}"
    );
    assert_eq!(trusting["start"]["status"], 200);

    // Whoever trusts somebody else.
    let other = file("other.pem");
    let doubting = summary(&double, &other);
    let failure = &doubting["loads"][0]["failures"]["connect"];
    assert_eq!(failure["count"], 3, "{doubting}");
    let why = failure["example"].as_str().expect("a text");
    assert!(why.contains("certificate"), "{why}");
}
