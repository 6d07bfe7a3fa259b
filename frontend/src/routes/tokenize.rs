//! `POST /tokenize`, `POST /detokenize`.

use super::conversation::Conversation;
use crate::api_error::ApiError;
use crate::app::App;
use crate::fields::Fields;
use crate::prompt::encode;
use crate::served_model::ServedModel;
use crate::unsupported_fields;
use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};
use std::sync::Arc;

/// Ids that become one text at most. Each may stand for some hundred bytes.
const MAX_TOKEN_IDS: usize = 1 << 20;

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    on_body(app, request, tokenize_body).await
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    on_body(app, request, detokenize_body).await
}

type BodyWork = fn(&Fields<'_>, &ServedModel) -> Result<Value, ApiError>;

async fn on_body(app: Arc<App>, request: Request, work: BodyWork) -> Result<Json<Value>, ApiError> {
    let served = app.ready()?;
    let body = app.bodies.read(request.into_body()).await?;
    app.preprocess(body.len(), move |_: &_| {
        work(&Fields::parse(&body)?, &served)
    })
    .await
    .map(Json)
}

/// A prompt, or a conversation. It may be longer than the context, as counting
/// tokens is the point, but not so long that no tokenization of it fits.
pub(crate) fn tokenize_body(fields: &Fields<'_>, served: &ServedModel) -> Result<Value, ApiError> {
    served.names.check_field(fields)?;
    let (model, info) = (&served.text, &served.info);
    let (name, text, add_special_by_default) = match fields.get::<String>("prompt")? {
        Some(prompt) => ("prompt", prompt, true),
        None if fields.raw("messages").is_some() => {
            unsupported_fields::check_conversation(fields)?;
            let text = Conversation::from_fields(fields)?.render(model)?;
            ("messages", text, false)
        }
        None => {
            return Err(ApiError::invalid(
                "prompt",
                "prompt or messages is required",
            ));
        }
    };
    let add_special = fields
        .get("add_special_tokens")?
        .unwrap_or(add_special_by_default);
    let token_ids = encode(name, &text, add_special, model, info)?;
    let texts: Option<Vec<String>> = fields
        .flag("return_token_strs")?
        .then(|| token_ids.iter().map(|id| model.token_text(*id).0).collect());
    Ok(json!({
        "count": token_ids.len(),
        "max_model_len": info.max_model_len,
        "tokens": token_ids,
        "token_strs": texts,
    }))
}

pub(crate) fn detokenize_body(
    fields: &Fields<'_>,
    served: &ServedModel,
) -> Result<Value, ApiError> {
    served.names.check_field(fields)?;
    let (model, info) = (&served.text, &served.info);
    const NAME: &str = "tokens";
    let token_ids: Vec<u32> = fields
        .get(NAME)?
        .ok_or_else(|| ApiError::invalid(NAME, "tokens is required"))?;
    if token_ids.len() > MAX_TOKEN_IDS {
        return Err(ApiError::invalid(
            NAME,
            format!(
                "tokens may be {MAX_TOKEN_IDS} ids, it is {}",
                token_ids.len()
            ),
        ));
    }
    if let Some(id) = token_ids.iter().find(|id| **id >= info.vocab_size) {
        return Err(ApiError::invalid(
            NAME,
            format!(
                "tokens: {id} is no token id of this model, ids are 0 to {}",
                info.vocab_size.saturating_sub(1)
            ),
        ));
    }
    Ok(json!({"prompt": model.decode(&token_ids, false)}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::served_model;

    #[test]
    fn so_many_ids_become_a_text_and_no_more() {
        let served = served_model();
        let answer = |ids: usize| {
            let body = format!("{{\"tokens\": [{}5]}}", "5,".repeat(ids - 1));
            let fields = Fields::parse(body.as_bytes()).expect("an object");
            detokenize_body(&fields, &served)
        };
        assert!(answer(MAX_TOKEN_IDS).is_ok());
        let refused = answer(MAX_TOKEN_IDS + 1).expect_err("too many");
        let message = refused.message();
        assert!(message.contains("tokens may be 1048576 ids"), "{message}");
    }
}
