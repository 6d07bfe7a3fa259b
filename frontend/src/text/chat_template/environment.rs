//! The Jinja environment that templates of the hub are written for.

use super::json;
use jiff::ZonedDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, State};

/// JSON that a unit of fuel pays for. The engine's own 64 bytes a unit are for
/// copying; this is a hundred times slower.
const BYTES_PER_FUEL: u64 = 4;

/// The text that a template gave to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

/// Whitespace is treated as transformers has it (`trim_blocks`,
/// `lstrip_blocks`), nothing is escaped, strings and mappings have Python's
/// methods, and a rendering may use this much fuel.
pub(super) fn environment(fuel: u64) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_fuel(Some(fuel));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    Ok(environment)
}

fn raise_exception(text: String) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, "raised by the template");
    Err(error.with_source(Raised(text)))
}

/// `none` is empty where it is looped over, but as in Python it is not iterable.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The server's local time, in the words of `strftime`.
fn strftime_now(format: &str) -> String {
    ZonedDateTime::now().strftime(format).to_string()
}

/// As transformers defines it: `json.dumps` without escapes for HTML.
fn tojson(state: &State, value: &Value, args: Kwargs) -> Result<String, Error> {
    let style = json::Style {
        indent: args.get("indent")?,
        ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: separators(&args)?,
    };
    args.assert_all_used()?;
    let (_, fuel) = state.fuel_levels().unwrap_or_default();
    let text = json::dumps(value, &style, fuel.saturating_mul(BYTES_PER_FUEL))?;
    state.consume_fuel(text.len() as u64 / BYTES_PER_FUEL)?;
    Ok(text)
}

fn separators(args: &Kwargs) -> Result<Option<(String, String)>, Error> {
    match args.get::<Option<Vec<String>>>("separators")?.as_deref() {
        None => Ok(None),
        Some([item, key]) => Ok(Some((item.clone(), key.clone()))),
        Some(_) => Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson: separators must be two strings",
        )),
    }
}

/// Jinja at transformers has a block tag `generation`, which marks the
/// assistant's text for training and prints its body as it is. Here it becomes
/// a condition that always holds.
pub(super) fn without_generation_tags(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        text.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let name = tag
            .trim_start_matches(['{', '%', '-', '+'])
            .trim_end_matches(['}', '%', '-', '+'])
            .trim();
        match name {
            "generation" => text.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => text.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => text.push_str(tag),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}
