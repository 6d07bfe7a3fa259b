//! `GET /openapi.json`.

use axum::Json;
use serde_json::Value;
use std::sync::LazyLock;

/// Kept by hand, because what may be said of a field is decided while it is
/// read. The tests hold it against the paths that are served and the fields
/// that are read.
pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    // Ours, and tested: an error cannot happen.
    let mut document: Value =
        serde_json::from_str(include_str!("openapi.json")).unwrap_or_default();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document
});

pub(super) async fn openapi() -> Json<&'static Value> {
    Json(&DOCUMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Fields;
    use crate::routes::generate::GenerationRequest;
    use crate::routes::{ChatCompletionRequest, CompletionRequest, profile, tokenize};
    use crate::test_support::served_model;
    use crate::waiter::Waiting;
    use nano_trace::Event;
    use std::collections::BTreeSet;

    /// Fields of a component, with those of the components that it takes in.
    fn fields_of(component: &Value) -> BTreeSet<String> {
        if let Some(path) = component["$ref"].as_str() {
            return fields_of(DOCUMENT.pointer(&path[1..]).expect("a component"));
        }
        let own = component["properties"].as_object().into_iter().flatten();
        let mut all: BTreeSet<String> = own.map(|(name, _)| name.clone()).collect();
        for part in component["allOf"].as_array().into_iter().flatten() {
            all.extend(fields_of(part));
        }
        all
    }

    /// Fields that reading this body looks at. It must be taken.
    fn read<T, E: std::fmt::Debug>(
        body: &str,
        read: impl FnOnce(&Fields<'_>) -> Result<T, E>,
    ) -> BTreeSet<String> {
        let fields = Fields::parse(body.as_bytes()).expect("an object");
        assert!(read(&fields).is_ok(), "{body}");
        fields.asked()
    }

    #[test]
    fn every_field_that_is_read_is_described_and_no_other() {
        let served = served_model();
        let waiting = Waiting::begin();
        let waiter = waiting.waiter();
        let parsing = || nano_trace::slice(Event::HttpParse, [0]);
        let (prompt, chat) = (
            r#"{"prompt": "x", "stop": "a"}"#,
            r#"{"messages": [{"role": "user", "content": "x"}], "stop": "a"}"#,
        );
        let completion = read(prompt, |f| {
            CompletionRequest::from_fields(f, &served, parsing(), &waiter)
        });
        let conversation = read(chat, |f| {
            ChatCompletionRequest::from_fields(f, &served, parsing(), &waiter)
        });
        let mut tokenized = read(prompt, |f| tokenize::tokenize_body(f, &served));
        tokenized.extend(read(chat, |f| tokenize::tokenize_body(f, &served)));
        let detokenized = read(r#"{"tokens": [1]}"#, |f| {
            tokenize::detokenize_body(f, &served)
        });
        let profiled = read("{}", profile::start_profile);
        let dumped = read("{}", profile::dump_body);
        for (component, fields) in [
            ("DumpProfile", dumped),
            ("StartProfile", profiled),
            ("CompletionRequest", completion),
            ("ChatCompletionRequest", conversation),
            ("TokenizeRequest", tokenized),
            ("DetokenizeRequest", detokenized),
        ] {
            let described = fields_of(&DOCUMENT["components"]["schemas"][component]);
            assert_eq!(described, fields, "{component}");
        }
    }

    #[test]
    fn every_path_that_is_served_is_described_and_no_other() {
        let paths = DOCUMENT["paths"].as_object().expect("paths");
        let described: BTreeSet<String> = paths
            .keys()
            .map(|path| path.trim_start_matches("/v1").to_owned())
            .collect();
        let served: BTreeSet<String> = include_str!("mod.rs")
            .split(".route(\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            // A name may have slashes, which OpenAPI cannot say.
            .map(|path| path.replace("{*", "{"))
            .collect();
        assert_eq!(described, served);
    }
}
