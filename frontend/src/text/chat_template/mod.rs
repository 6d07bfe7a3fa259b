//! Chat templates: Jinja as Hugging Face's `apply_chat_template` runs it.

mod environment;
mod json;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Work that one rendering may do, in the engine's units: about one an
/// instruction or 64 bytes of data, so that 320 MB are the most a rendering can
/// hold. Twenty thousand messages pass with it.
///
/// What it does not bound is a template that nests a list in itself again and
/// again and then prints or compares it; no conversation can bring that about.
const FUEL: u64 = 5_000_000;

const NAME: &str = "chat_template";

/// Why a conversation could not be rendered. All but [`Absent`](Self::Absent)
/// and [`Invalid`](Self::Invalid) are the conversation's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template's own words, from `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// The template cannot be used on this conversation.
    #[error("the chat template does not fit the conversation: {0}")]
    Failed(String),
    /// Rendering took more than it may.
    #[error("the conversation is too long for the chat template")]
    TooExpensive,
    /// `continue_final_message` without a final text that can be found in the prompt.
    #[error("continue_final_message: {0}")]
    NothingToContinue(&'static str),
    /// The model has no chat template.
    #[error("this model has no chat template; start the server with --chat-template FILE")]
    Absent,
    /// The template itself cannot be parsed.
    #[error("{0}")]
    Invalid(String),
}

/// What a conversation is rendered with.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// Open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model goes on with it.
    /// Together with `add_generation_prompt` it makes no sense.
    pub continue_final_message: bool,
    /// Tool definitions.
    pub tools: Option<Value>,
    /// Further variables of the template.
    pub kwargs: Map<String, Value>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            continue_final_message: false,
            tools: None,
            kwargs: Map::new(),
        }
    }
}

/// A model's chat template, parsed.
pub struct ChatTemplate {
    environment: Environment<'static>,
    text: String,
    /// `bos_token`, `eos_token` and their like.
    special_tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Parses a template. `special_tokens`: variables that every rendering has.
    pub fn new(
        text: &str,
        special_tokens: &BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let invalid = |error: minijinja::Error| TemplateError::Invalid(describe(&error));
        let mut environment = environment::environment(FUEL).map_err(invalid)?;
        environment
            .add_template_owned(NAME, environment::without_generation_tags(text))
            .map_err(invalid)?;
        Ok(Self {
            environment,
            text: text.to_owned(),
            special_tokens: special_tokens.clone(),
        })
    }

    /// The template as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The prompt of a conversation.
    pub fn render(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<String, TemplateError> {
        let mut context = Map::new();
        let tokens = self.special_tokens.iter();
        context.extend(tokens.map(|(name, token)| (name.clone(), token.as_str().into())));
        context.extend(options.kwargs.clone());
        context.insert("messages".into(), messages.into());
        context.insert("tools".into(), options.tools.clone().into());
        context.insert(
            "add_generation_prompt".into(),
            options.add_generation_prompt.into(),
        );
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render(Serde(context)))
            .map_err(|error| template_error(&error))?;
        match options.continue_final_message {
            true => cut_after_final_message(rendered, messages),
            false => Ok(rendered),
        }
    }
}

fn template_error(error: &minijinja::Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(environment::Raised(text)) = current.downcast_ref() {
            return TemplateError::Raised(text.clone());
        }
        cause = current.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooExpensive,
        _ => TemplateError::Failed(describe(error)),
    }
}

/// Kind, detail and line, without the template's source.
fn describe(error: &minijinja::Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text = format!("{text}: {detail}");
    }
    if let Some(line) = error.line() {
        text = format!("{text} (line {line} of the template)");
    }
    text
}

/// Ends the prompt right behind the last message's text. A template may have
/// trimmed that text, so trailing space is kept only where it kept it.
fn cut_after_final_message(
    mut rendered: String,
    messages: &[Value],
) -> Result<String, TemplateError> {
    let content = messages.last().and_then(final_text);
    let content = content.ok_or(TemplateError::NothingToContinue(
        "the last message has no text",
    ))?;
    let start = rendered.rfind(content.trim());
    let start = start.ok_or(TemplateError::NothingToContinue(
        "the chat template leaves the last message out or changes it",
    ))?;
    let whole = content.trim_start();
    let end = match rendered[start..].starts_with(whole) {
        true => start + whole.len(),
        false => start + content.trim().len(),
    };
    rendered.truncate(end);
    Ok(rendered)
}

/// A message's text, or the last text part of a list of parts.
fn final_text(message: &Value) -> Option<&str> {
    match message.get("content")? {
        Value::Array(parts) => parts
            .iter()
            .rev()
            .find_map(|part| part.get("text").and_then(Value::as_str)),
        content => content.as_str(),
    }
}
