//! What the operator reads on standard output once the server is ready.

use crate::settings::Settings;
use nano_ipc::engine_info::EngineInfo;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Prints the model's line, the address and a command to try.
pub fn ready(settings: &Settings, address: SocketAddr, info: &EngineInfo, took: Duration) {
    let url = format!("http://{}", reachable(address));
    let name = settings.model.names.first().map_or("", String::as_str);
    let authorization = if settings.has_api_key() {
        " -H 'Authorization: Bearer KEY'"
    } else {
        ""
    };
    let EngineInfo {
        max_model_len,
        num_kv_blocks,
        block_size,
        model,
        ..
    } = info;
    let text = format!(
        "{name} ({}): {} on {}, {num_kv_blocks} KV blocks of {block_size} tokens, context {max_model_len}, ready in {:.1} s\n\
         listening on {url}\n\
         try: curl {url}/v1/chat/completions -H 'Content-Type: application/json'{authorization} \
         -d '{{\"model\": {}, \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n",
        model.architecture,
        model.dtype,
        model.device,
        took.as_secs_f64(),
        json_in_quotes(name),
    );
    let mut out = std::io::stdout().lock();
    // Nobody may be reading; the server serves on.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The address as a client on this machine reaches it.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// A JSON string that also survives the shell's single quotes.
fn json_in_quotes(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\'' => json.push_str("\\u0027"),
            c if c.is_control() => json.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_try_survives_the_shell() {
        assert_eq!(
            json_in_quotes("it's \"x\" \\ \n é"),
            "\"it\\u0027s \\\"x\\\" \\\\ \\u000a é\""
        );
    }

    #[test]
    fn an_address_of_all_interfaces_is_shown_as_one_to_call() {
        let shown = |address: &str| reachable(address.parse().expect("address")).to_string();
        assert_eq!(shown("0.0.0.0:8000"), "127.0.0.1:8000");
        assert_eq!(shown("[::]:1"), "[::1]:1");
        assert_eq!(shown("10.0.0.1:2"), "10.0.0.1:2");
    }
}
