//! However a text is cut into tokens, and tokens into outputs, a client gets
//! the same text.

use crate::support::{CoreDouble, Server, config, model, post};
use nano_ipc::engine_core_output::FinishReason;
use nano_ipc::engine_core_request::RequestId;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const PATH: &str = "/v1/completions";

/// What a client gets of one answer: its text, how it ended, and by what.
#[derive(Debug, PartialEq)]
struct Got {
    text: String,
    finish_reason: String,
    stop_reason: Value,
}

/// The tokens of a vocabulary, by their bytes.
fn pieces() -> Vec<(u32, Vec<u8>)> {
    let model = model();
    (0..model.vocab_size() as u32)
        .map(|id| (id, model.token_text(id).1))
        .filter(|(_, bytes)| !bytes.is_empty())
        .collect()
}

/// The token of each single byte.
fn byte_tokens() -> Vec<u32> {
    let pieces = pieces();
    let of_byte = |byte: u8| {
        let found = pieces.iter().find(|(_, bytes)| **bytes == [byte]);
        found.unwrap_or_else(|| panic!("no token of byte {byte}")).0
    };
    (0..=255).map(of_byte).collect()
}

/// Every way to write these bytes as tokens of the vocabulary.
fn token_splits(bytes: &[u8], pieces: &[(u32, Vec<u8>)]) -> Vec<Vec<u32>> {
    if bytes.is_empty() {
        return vec![Vec::new()];
    }
    let mut splits = Vec::new();
    for (id, piece) in pieces {
        if let Some(rest) = bytes.strip_prefix(piece.as_slice()) {
            for mut split in token_splits(rest, pieces) {
                split.insert(0, *id);
                splits.push(split);
            }
        }
    }
    splits
}

/// Every way to cut a list in pieces.
fn cuts(token_ids: &[u32]) -> impl Iterator<Item = Vec<&[u32]>> {
    let places = token_ids.len().saturating_sub(1) as u32;
    (0..1_u32 << places).map(move |mask| {
        let mut outputs = Vec::new();
        let mut start = 0;
        for at in 1..token_ids.len() {
            if mask & (1 << (at - 1)) != 0 {
                outputs.push(&token_ids[start..at]);
                start = at;
            }
        }
        outputs.push(&token_ids[start..]);
        outputs
    })
}

/// A client that asks the same again and again, each time it is told whether
/// to stream.
struct Client {
    ask: std::sync::mpsc::Sender<bool>,
    got: Receiver<Got>,
}

impl Client {
    fn new(addr: SocketAddr, body: Value) -> Client {
        let (ask, asked) = channel();
        let (answer, got) = channel();
        thread::spawn(move || {
            while let Ok(stream) = asked.recv() {
                let mut body = body.clone();
                body["stream"] = json!(stream);
                let _ = answer.send(Client::once(addr, &body, stream));
            }
        });
        Client { ask, got }
    }

    fn once(addr: SocketAddr, body: &Value, stream: bool) -> Got {
        let mut response = post(addr, PATH, body);
        let choices: Vec<Value> = if stream {
            let events = response.events_to_done();
            events.iter().map(|e| e["choices"][0].clone()).collect()
        } else {
            vec![response.json()["choices"][0].clone()]
        };
        let texts = choices.iter().map(|c| c["text"].as_str().expect("text"));
        let last = choices.last().expect("a choice");
        Got {
            text: texts.collect(),
            finish_reason: last["finish_reason"].as_str().expect("ended").to_owned(),
            stop_reason: last["stop_reason"].clone(),
        }
    }

    /// What it gets when the engine sends these outputs.
    fn get(&self, core: &CoreDouble, stream: bool, outputs: &[&[u32]]) -> Got {
        self.ask.send(stream).expect("the client lives");
        let id = core.next_add_after_aborts().id;
        for output in outputs {
            core.tokens(id, output, None);
        }
        core.tokens(id, &[], Some(FinishReason::Length));
        self.got.recv().expect("an answer")
    }
}

#[test]
fn every_way_to_write_a_text_as_tokens_gives_the_text_up_to_the_stop_string() {
    let (server, core) = Server::start(config());
    let pieces = pieces();
    for (text, stop, shown) in [
        ("so the end. More", "the end", "so "),
        ("aé€😀b", "€", "aé"),
        ("\n\nUser: hi", "\nUser:", "\n"),
        ("the them then", "then", "the them "),
        ("in the in th", "in the i", ""),
    ] {
        let splits = token_splits(text.as_bytes(), &pieces);
        assert!(splits.len() > 1, "{text:?} has one way only");
        let body = json!({"prompt": [1], "max_tokens": 100, "stop": stop});
        let client = Client::new(server.addr, body);
        let expected = Got {
            text: shown.to_owned(),
            finish_reason: "stop".to_owned(),
            stop_reason: json!(stop),
        };
        let step = splits.len().div_ceil(300);
        for split in splits.iter().step_by(step) {
            let outputs: Vec<&[u32]> = split.chunks(1).collect();
            for stream in [false, true] {
                let got = client.get(&core, stream, &outputs);
                assert_eq!(got, expected, "{split:?}, stream {stream}");
            }
        }
    }
}

#[test]
fn nor_does_it_matter_which_tokens_come_together() {
    let (server, core) = Server::start(config());
    let byte = byte_tokens();
    let text = "aéSTOP😀";
    let token_ids: Vec<u32> = text.bytes().map(|b| byte[usize::from(b)]).collect();
    for (stop, shown, finish_reason) in [("STOP", "aé", "stop"), ("STOPx", text, "length")] {
        let body = json!({"prompt": [1], "max_tokens": 100, "stop": [stop, "never"]});
        let client = Client::new(server.addr, body);
        let expected = Got {
            text: shown.to_owned(),
            finish_reason: finish_reason.to_owned(),
            stop_reason: if finish_reason == "stop" {
                json!(stop)
            } else {
                Value::Null
            },
        };
        // All of the 1024 cuts are tried; each is streamed or not.
        for (at, outputs) in cuts(&token_ids).enumerate() {
            let got = client.get(&core, at % 2 == 0, &outputs);
            assert_eq!(got, expected, "{outputs:?}");
        }
    }
}

/// The streamed chunks' texts, when each token is an output of its own.
fn chunks(addr: SocketAddr, core: &CoreDouble, token_ids: &[u32]) -> Vec<String> {
    let body = json!({"prompt": [1], "max_tokens": 100, "stream": true, "ignore_eos": true});
    let client = thread::spawn(move || post(addr, PATH, &body).events_to_done());
    let id: RequestId = core.next_add().id;
    for (at, token_id) in token_ids.iter().enumerate() {
        let last = at + 1 == token_ids.len();
        core.tokens(id, &[*token_id], last.then_some(FinishReason::Length));
    }
    let events = client.join().expect("client");
    let texts = events.iter().map(|e| e["choices"][0]["text"].as_str());
    texts.map(|text| text.expect("text").to_owned()).collect()
}

#[test]
fn every_byte_and_every_cut_of_a_character_is_replaced_only_at_the_real_end() {
    let (server, core) = Server::start(config());
    let byte = byte_tokens();
    let mut texts: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
    // Emoji of several code points, combining characters, right-to-left, CJK.
    for text in [
        "é",
        "€",
        "😀",
        "👩‍👩‍👧‍👦",
        "🇩🇪",
        "e\u{301}\u{327}",
        "שלום",
        "漢字",
        "\u{10ffff}",
    ] {
        texts.extend((1..=text.len()).map(|end| text.as_bytes()[..end].to_vec()));
    }
    for bytes in texts {
        let token_ids: Vec<u32> = bytes.iter().map(|b| byte[usize::from(*b)]).collect();
        let chunks = chunks(server.addr, &core, &token_ids);
        let whole = chunks.concat();
        assert_eq!(whole, String::from_utf8_lossy(&bytes), "{bytes:02x?}");
        let is_valid_so_far = std::str::from_utf8(&bytes).is_err_and(|e| e.error_len().is_none());
        if is_valid_so_far {
            // max_tokens cut a character: its beginning was held back till then.
            let before = &chunks[..chunks.len() - 1];
            assert!(!before.concat().contains('\u{fffd}'), "{chunks:?}");
            assert!(whole.ends_with('\u{fffd}'), "{chunks:?}");
        }
    }
}
