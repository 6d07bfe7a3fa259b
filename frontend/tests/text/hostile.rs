//! No conversation, template or text takes more than a bounded time.

use crate::{default_model, load, load_golden};
use nano_frontend::text::{ChatOptions, ChatTemplate, TemplateError};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Far above what any of it takes, far below what unbounded work would.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn endless_templates_run_out_of_fuel() {
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}\
                 {% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}";
    let doubling = "{% set ns = namespace(s='x') %}\
                    {% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}";
    let repeated = "{{ ('x' * 100000000) * 100000000 }}";
    let recursion = "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}";
    let json = "{% set ns = namespace(l=[1]) %}\
                {% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}";
    let deep = "{% set ns = namespace(l=[1]) %}\
                {% for i in range(2000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}";
    for template in [loops, doubling, repeated, recursion, json, deep] {
        let started = Instant::now();
        let template = ChatTemplate::new(template, &BTreeMap::new()).unwrap();
        let result = template.render(&[], &ChatOptions::default());
        assert!(
            matches!(
                result,
                Err(TemplateError::TooExpensive | TemplateError::Failed(_))
            ),
            "{result:?}"
        );
        assert!(started.elapsed() < PATIENCE);
    }
}

#[test]
fn a_long_conversation_is_no_trouble() {
    let text = load(&default_model());
    let messages: Vec<_> = (0..20_000)
        .map(|i| {
            json!({"role": if i % 2 == 0 { "user" } else { "assistant" },
                        "content": "twenty words ".repeat(10)})
        })
        .collect();
    let rendered = text
        .render_chat(&messages, &ChatOptions::default())
        .unwrap();
    assert_eq!(rendered.matches("<|im_start|>").count(), 20_002);
}

#[test]
fn texts_that_are_hard_to_split() {
    let text = load(&default_model());
    let started = Instant::now();
    for unit in [" ", "a", "\n ", "\u{200d}", "<|im_", "1"] {
        let long = unit.repeat((1 << 18) / unit.len());
        let ids = text.encode(&long, false).unwrap();
        assert!(ids.len() >= text.fewest_tokens(&long));
        assert_eq!(text.decode(&ids, false), long);
    }
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

/// Llama 3's pattern gives up on so many spaces, by a panic of the library.
#[test]
fn the_regex_engine_gives_up_without_taking_the_process_along() {
    let text = load_golden("models/tiny-llama3-rope");
    let spaces = " ".repeat(12 << 20);
    let error = text.encode(&spaces, false).unwrap_err().to_string();
    assert!(error.contains("too hard to split"), "{error}");
    assert!(text.encode("and on it goes", false).is_ok());
    // Who compares with the context first does not come that far.
    assert!(text.fewest_tokens(&spaces) > 100_000);
}
