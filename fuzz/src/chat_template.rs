//! A conversation, by the chat templates of many families of models.

use nano_frontend::text::{ChatOptions, ChatTemplate, TemplateError, TextModel};
use nano_model::ModelSource;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

fn golden(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join("tests/golden").join(name)
}

static TEMPLATES: LazyLock<Vec<ChatTemplate>> = LazyLock::new(|| {
    let json = std::fs::read(golden("templates.json")).expect("golden data");
    let golden: Value = serde_json::from_slice(&json).expect("JSON");
    let families = golden["templates"].as_object().expect("templates");
    let parsed = families.values().map(|family| {
        let token = |name: &str| Some((name.to_owned(), family[name].as_str()?.to_owned()));
        let tokens = ["bos_token", "eos_token"].into_iter().filter_map(token);
        let text = family["template"].as_str().expect("a text");
        ChatTemplate::new(text, &BTreeMap::from_iter(tokens)).expect("it parses")
    });
    parsed.collect()
});

static MODEL: LazyLock<TextModel> = LazyLock::new(|| {
    let source = ModelSource::open(&golden("models/tiny-llama3-rope")).expect("golden model");
    TextModel::load(&source, None).expect("golden model")
});

/// Renders the conversation that these bytes are as JSON: an object with
/// `messages`, and whatever else as variables of the template. More freely
/// than clients can: no message is checked.
pub fn run(bytes: &[u8]) {
    let Ok(Value::Object(mut kwargs)) = serde_json::from_slice(bytes) else {
        return;
    };
    let Some(Value::Array(messages)) = kwargs.remove("messages") else {
        return;
    };
    for continue_final_message in [false, true] {
        let options = ChatOptions {
            add_generation_prompt: !continue_final_message,
            continue_final_message,
            tools: kwargs.get("tools").cloned(),
            kwargs: kwargs.clone(),
        };
        for template in TEMPLATES.iter() {
            check(template.render(&messages, &options));
        }
    }
}

/// A text that can be tokenized, or words that a client can read.
fn check(rendered: Result<String, TemplateError>) {
    match rendered {
        Ok(text) => {
            let ids = MODEL.encode(&text, false);
            assert!(ids.is_ok_and(|ids| ids.len() >= MODEL.fewest_tokens(&text)));
        }
        Err(TemplateError::Absent | TemplateError::Invalid(_)) => {
            panic!("it was parsed before")
        }
        // A template may raise an empty text.
        Err(TemplateError::Raised(_)) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
