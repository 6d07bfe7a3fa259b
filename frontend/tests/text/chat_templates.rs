//! Rendered conversations equal those of transformers.

use crate::{default_model, golden, load};
use nano_frontend::text::{ChatOptions, ChatTemplate, TemplateError};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Golden {
    templates: BTreeMap<String, GoldenTemplate>,
}

#[derive(Deserialize)]
struct GoldenTemplate {
    template: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Value>,
    tools: Option<Value>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    extra_kwargs: Map<String, Value>,
    rendered: Option<String>,
    error: Option<String>,
    error_kind: Option<String>,
}

impl GoldenTemplate {
    fn parsed(&self) -> ChatTemplate {
        let tokens = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
        ]
        .into_iter()
        .filter_map(|(name, token)| Some((name.to_owned(), token.clone()?)))
        .collect();
        ChatTemplate::new(&self.template, &tokens).unwrap()
    }
}

impl Case {
    fn options(&self) -> ChatOptions {
        ChatOptions {
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            tools: self.tools.clone(),
            kwargs: self.extra_kwargs.clone(),
        }
    }

    /// What is different from the golden case, if anything.
    fn difference(&self, got: Result<String, TemplateError>) -> Option<String> {
        let raised = self
            .error_kind
            .as_deref()
            .is_some_and(|kind| kind.starts_with("raise_exception"));
        let same = match (&got, &self.rendered) {
            (Ok(got), Some(want)) => got == want,
            (Err(TemplateError::Raised(text)), None) if raised => Some(text) == self.error.as_ref(),
            // Another error's words are Python's; an error is all that counts.
            (Err(TemplateError::Failed(_)), None) => !raised,
            _ => false,
        };
        let wanted = self.rendered.as_ref().or(self.error.as_ref());
        (!same).then(|| format!("{}:\n  got    {got:?}\n  wanted {wanted:?}", self.name))
    }
}

#[test]
fn every_case_of_every_family() {
    let golden: Golden = golden("templates.json");
    assert_eq!(golden.templates.len(), 10);
    let mut differences = Vec::new();
    let mut cases = 0;
    for (family, template) in &golden.templates {
        let parsed = template.parsed();
        for case in &template.cases {
            cases += 1;
            let got = parsed.render(&case.messages, &case.options());
            differences.extend(case.difference(got).map(|text| format!("{family}/{text}")));
        }
    }
    assert_eq!(cases, 243);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn the_default_models_own_template() {
    let golden: Golden = golden("templates.json");
    let template = &golden.templates["smollm2"];
    let text = load(&default_model());
    for case in &template.cases {
        let got = text.render_chat(&case.messages, &case.options());
        assert_eq!(case.difference(got), None);
    }
}

fn render(template: &str, kwargs: Value) -> Result<String, TemplateError> {
    let kwargs = kwargs.as_object().unwrap().clone();
    let options = ChatOptions {
        kwargs,
        ..ChatOptions::default()
    };
    ChatTemplate::new(template, &BTreeMap::new())?.render(&[], &options)
}

#[track_caller]
fn check(template: &str, kwargs: Value, want: &str) {
    assert_eq!(render(template, kwargs).unwrap(), want);
}

/// What Python's Jinja prints for the same template; see "Printing" of its documentation.
#[test]
fn as_jinja_in_python() {
    check(
        "{{ x }} {{ y }} {{ z }} {{ l }} {{ u }}|",
        json!({"x": true, "y": null, "z": 1.0, "l": ["a", null, {"k": 1}]}),
        "True None 1.0 ['a', None, {'k': 1}] |",
    );
    check(
        "{{ m.items()|list|length }}{{ s.upper() }}",
        json!({"m": {"a": 1}, "s": "b"}),
        "1B",
    );
    check(
        "{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        json!({"l": [1, 2, 3]}),
        "1",
    );
    check(
        "{{ m|tojson }}",
        json!({"m": {"z": "<é>", "a": "'"}}),
        r#"{"z": "<é>", "a": "'"}"#,
    );
    check("{{ m|tojson(indent=1) }}", json!({"m": [1]}), "[\n 1\n]");
    check("{{ 'a' ~ 1 }}{{ none is iterable }}", json!({}), "a1False");
    check(
        "a\n{% if true %}\nb\n  {% endif %}\nc\n",
        json!({}),
        "a\nb\nc",
    );
}

#[test]
fn generation_tags_print_their_body() {
    check(
        "a{% generation %}b{% endgeneration %}c{%- generation -%} d {%- endgeneration %}",
        json!({}),
        "abcd",
    );
}

#[test]
fn dates() {
    let year = render("{{ strftime_now('%Y') }}", json!({})).unwrap();
    assert!(year.len() == 4 && year.as_str() >= "2025", "{year}");
    let date = render("{{ strftime_now('%d %b %Y') }}", json!({})).unwrap();
    assert_eq!(date.len(), 11, "{date}");
}

#[test]
fn a_template_that_does_not_parse_is_refused() {
    let Err(error) = ChatTemplate::new("{% if %}", &BTreeMap::new()) else {
        panic!("accepted")
    };
    assert!(
        matches!(&error, TemplateError::Invalid(text) if text.contains("line 1")),
        "{error}"
    );
}
