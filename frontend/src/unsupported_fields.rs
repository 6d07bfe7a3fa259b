//! Fields that other servers know and this one does not: refused by name where
//! ignoring them would change the answer.

use crate::api_error::{ApiError, shortened};
use crate::fields::Fields;
use serde::Deserialize;

/// A field that is known and not supported, and the values beside `null` that
/// ask for nothing, as JSON.
type Row = (&'static str, &'static [&'static str]);

/// What goes to a chat template, or into a prompt.
const CONVERSATION: &[Row] = &[
    ("chat_template", &[]),
    ("documents", &["[]"]),
    ("media_io_kwargs", &["{}"]),
    ("mm_processor_kwargs", &["{}"]),
    ("tools", &["[]"]),
];

/// What decides how an answer is generated, and what it says.
const GENERATION: &[Row] = &[
    ("allowed_token_ids", &["[]"]),
    ("audio", &[]),
    ("bad_words", &["[]"]),
    // Ignoring a salt would share what the client wants apart.
    ("cache_salt", &["\"\""]),
    ("ec_transfer_params", &["{}"]),
    // Without functions, or tools, `auto` and `none` ask for nothing.
    ("function_call", &["\"none\"", "\"auto\""]),
    ("functions", &["[]"]),
    ("guided_choice", &["[]"]),
    ("guided_grammar", &["\"\""]),
    // `{}` is a schema, which asks for JSON.
    ("guided_json", &["\"\""]),
    ("guided_regex", &["\"\""]),
    ("kv_transfer_params", &["{}"]),
    ("length_penalty", &["1", "1.0"]),
    ("logits_processors", &["[]"]),
    ("logprob_token_ids", &["[]"]),
    ("lora_request", &[]),
    ("modalities", &["[\"text\"]"]),
    ("prompt_embeds", &["[]"]),
    ("repetition_detection", &[]),
    ("return_prompt_text", &["false"]),
    ("structured_outputs", &["{}"]),
    ("suffix", &["\"\""]),
    ("thinking_token_budget", &["-1"]),
    ("tool_choice", &["\"none\"", "\"auto\""]),
    ("truncate_prompt_tokens", &[]),
    ("use_beam_search", &["false"]),
    ("vllm_xargs", &["{}"]),
    ("watermarking", &["false"]),
    ("web_search_options", &[]),
];

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
}

/// Refuses a request to generate that asks for what this server cannot do. It
/// is for `n` answers.
///
/// # Errors
/// Names the field.
pub fn check(fields: &Fields<'_>, n: u32) -> Result<(), ApiError> {
    for (name, neutral) in GENERATION {
        fields.unsupported(name, neutral)?;
    }
    // The best `n` of `n` are all.
    fields.unsupported("best_of", &["1", &n.to_string()])?;
    response_format(fields)?;
    check_conversation(fields)
}

/// Refuses what a chat template, or a prompt, would have to be made with.
///
/// # Errors
/// Names the field.
pub fn check_conversation(fields: &Fields<'_>) -> Result<(), ApiError> {
    for (name, neutral) in CONVERSATION {
        fields.unsupported(name, neutral)?;
    }
    Ok(())
}

/// Only plain text, which is what absent means, too.
fn response_format(fields: &Fields<'_>) -> Result<(), ApiError> {
    const NAME: &str = "response_format";
    match fields.get::<ResponseFormat>(NAME)? {
        Some(format) if format.kind != "text" => Err(ApiError::invalid(
            NAME,
            format!(
                "{NAME} of type {} is not supported by this server, only text is",
                shortened(&format.kind)
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::openapi::DOCUMENT;
    use serde_json::Value;

    /// What is refused, and what is taken, by both endpoints: a test of the whole
    /// server tries every field that the description names.
    #[test]
    fn the_best_of_all_are_all() {
        for (body, taken) in [
            (r#"{"best_of": 1}"#, true),
            (r#"{"best_of": 2}"#, false),
            (r#"{"best_of": 3, "n": 3}"#, true),
            (r#"{"best_of": 1, "n": 3}"#, true),
            (r#"{"best_of": 4, "n": 3}"#, false),
        ] {
            let fields = Fields::parse(body.as_bytes()).expect("an object");
            let n = fields.get("n").expect("a number").unwrap_or(1);
            assert_eq!(check(&fields, n).is_ok(), taken, "{body}");
        }
    }

    #[test]
    fn the_description_names_the_values_that_are_taken() {
        let schemas = &DOCUMENT["components"]["schemas"];
        for (component, rows) in [
            ("Unsupported", GENERATION),
            ("UnsupportedOfPrompts", CONVERSATION),
        ] {
            for (name, neutral) in rows {
                let described = &schemas[component]["properties"][name];
                let neutral: Vec<Value> = neutral
                    .iter()
                    .filter(|json| !json.contains(".0"))
                    .map(|json| serde_json::from_str(json).expect("JSON"))
                    .collect();
                let mut taken = vec![Value::Null];
                taken.extend(neutral);
                assert_eq!(described["enum"], Value::from(taken), "{name}");
            }
        }
    }
}
