//! Messages of a chat, and how they become a prompt's text.

use crate::api_error::{ApiError, shortened};
use crate::fields::Fields;
use crate::text::{ChatOptions, TextModel};
use nano_trace::Event;
use serde_json::{Map, Value};

/// Messages of a chat at most.
const MAX_MESSAGES: usize = 16384;
/// Further variables of the chat template, as JSON.
const MAX_KWARGS_BYTES: usize = 1 << 20;

/// Messages of a chat, and how they become a prompt's text.
///
/// Holds: at least one message; each is an object with a `role`, and its
/// `content` is absent, `null` or a text. Parts that are all text have become
/// one text, a line each, because templates of text models know no parts.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Value>,
    options: ChatOptions,
}

impl Conversation {
    /// Reads `messages` and what goes to the template with them.
    ///
    /// # Errors
    /// Names the message and what is wrong with it.
    pub fn from_fields(fields: &Fields<'_>) -> Result<Conversation, ApiError> {
        const NAME: &str = "messages";
        let mut messages: Vec<Value> = fields
            .get(NAME)?
            .ok_or_else(|| ApiError::invalid(NAME, "messages is required"))?;
        if messages.is_empty() || messages.len() > MAX_MESSAGES {
            return Err(ApiError::invalid(
                NAME,
                format!(
                    "messages must be 1 to {MAX_MESSAGES} messages, it is {}",
                    messages.len()
                ),
            ));
        }
        for (at, message) in messages.iter_mut().enumerate() {
            check_message(message).map_err(|(field, reason)| {
                let place = format!("messages[{at}]{field}");
                ApiError::invalid(place.clone(), format!("{place}: {reason}"))
            })?;
        }
        let continue_final_message = fields.flag("continue_final_message")?;
        let add_generation_prompt: Option<bool> = fields.get("add_generation_prompt")?;
        if continue_final_message && add_generation_prompt == Some(true) {
            return Err(ApiError::invalid(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other",
            ));
        }
        let kwargs: Map<String, Value> = fields
            .small("chat_template_kwargs", MAX_KWARGS_BYTES)?
            .unwrap_or_default();
        Ok(Conversation {
            messages,
            options: ChatOptions {
                add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
                continue_final_message,
                tools: None,
                kwargs,
            },
        })
    }

    /// The prompt's text.
    ///
    /// # Errors
    /// The template's own words, when it refuses the conversation.
    pub fn render(&self, model: &TextModel) -> Result<String, ApiError> {
        let slice = nano_trace::slice(Event::ChatTemplate, [self.messages.len() as u64]);
        let text = model.render_chat(&self.messages, &self.options)?;
        slice.end([text.len() as u64]);
        Ok(text)
    }

    /// What an answer begins with that echoes: the last message's text, if the
    /// same role goes on.
    pub fn text_to_echo(&self) -> String {
        let Some(last) = self.messages.last() else {
            return String::new();
        };
        if last["role"] != self.answers_role() {
            return String::new();
        }
        last["content"].as_str().unwrap_or_default().to_owned()
    }

    /// The role that speaks next: the last message's own where it is continued.
    pub fn answers_role(&self) -> String {
        let role = self.messages.last().and_then(|m| m["role"].as_str());
        match role {
            Some(role) if !self.options.add_generation_prompt => role.to_owned(),
            _ => "assistant".to_owned(),
        }
    }
}

/// The field within the message that is wrong, and why.
type MessageError = (String, String);

fn check_message(message: &mut Value) -> Result<(), MessageError> {
    let Value::Object(message) = message else {
        return Err((String::new(), "a message must be an object".to_owned()));
    };
    match message.get("role") {
        Some(Value::String(role)) if !role.is_empty() => {}
        _ => {
            return Err((
                ".role".to_owned(),
                "must be a text that is not empty".to_owned(),
            ));
        }
    }
    match message.get_mut("content") {
        None | Some(Value::Null | Value::String(_)) => Ok(()),
        Some(content) => {
            let Value::Array(parts) = content else {
                return Err((
                    ".content".to_owned(),
                    "must be a text or a list of parts".to_owned(),
                ));
            };
            let texts: Vec<&str> = parts
                .iter()
                .enumerate()
                .map(|(at, part)| part_text(part, at))
                .collect::<Result<_, _>>()?;
            *content = texts.join("\n").into();
            Ok(())
        }
    }
}

fn part_text(part: &Value, at: usize) -> Result<&str, MessageError> {
    let place = |field: &str| format!(".content[{at}]{field}");
    match part["type"].as_str() {
        Some("text") => part["text"]
            .as_str()
            .ok_or_else(|| (place(".text"), "must be a text".to_owned())),
        Some(kind) => Err((
            place(".type"),
            format!(
                "parts of type {} are not supported by this model, only text is",
                shortened(kind)
            ),
        )),
        None => Err((place(".type"), "must be a text".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_template_are_not_read_when_they_are_far_too_long() {
        let read = |bytes: usize| {
            let spaces = " ".repeat(bytes - 2);
            let body = format!(
                r#"{{"messages": [{{"role": "x"}}], "chat_template_kwargs": {{{spaces}}}}}"#
            );
            Conversation::from_fields(&Fields::parse(body.as_bytes())?).map(drop)
        };
        assert_eq!(read(MAX_KWARGS_BYTES), Ok(()));
        let refused = read(MAX_KWARGS_BYTES + 1).expect_err("too long");
        assert!(refused.message().contains("may have 1048576 bytes"));
    }
}
