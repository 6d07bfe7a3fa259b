//! Images of requests. Files become data URLs when the dataset is read, so that
//! no disk is in the way of a measurement.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Replaces paths in a message's image parts by the images.
pub(super) fn embed(message: &mut Value, dir: &Path) -> Result<(), String> {
    let Some(Value::Array(parts)) = message.get_mut("content") else {
        return Ok(());
    };
    for part in parts {
        if let Some(Value::String(url)) = part.pointer_mut("/image_url/url") {
            *url = as_url(url, dir)?;
        }
    }
    Ok(())
}

/// Puts images before the text of the last user message.
pub(super) fn attach(messages: &mut [Value], images: &[String], dir: &Path) -> Result<(), String> {
    if images.is_empty() {
        return Ok(());
    }
    let mut users = messages
        .iter_mut()
        .rev()
        .filter(|message| message["role"] == "user");
    let user = users.next().ok_or("images, and no user message for them")?;
    let mut parts = Vec::with_capacity(images.len() + 1);
    for image in images {
        parts.push(json!({"type": "image_url", "image_url": {"url": as_url(image, dir)?}}));
    }
    match user["content"].take() {
        Value::String(text) => parts.push(json!({"type": "text", "text": text})),
        Value::Array(own) => parts.extend(own),
        other => return Err(format!("a user message whose content is {other}")),
    }
    user["content"] = Value::Array(parts);
    Ok(())
}

/// A URL as it is; a file's content as one.
fn as_url(image: &str, dir: &Path) -> Result<String, String> {
    let is_url = ["data:", "http://", "https://"]
        .iter()
        .any(|scheme| image.starts_with(scheme));
    if is_url {
        return Ok(image.to_owned());
    }
    let path = dir.join(image);
    let extension = path.extension().and_then(|extension| extension.to_str());
    let kind = match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("png") => "png",
        Some("jpg" | "jpeg") => "jpeg",
        Some("webp") => "webp",
        Some("gif") => "gif",
        Some("bmp") => "bmp",
        _ => return Err(format!("image {image:?}: not png, jpg, webp, gif or bmp")),
    };
    let bytes = fs::read(&path).map_err(|error| format!("image {}: {error}", path.display()))?;
    Ok(format!(
        "data:image/{kind};base64,{}",
        STANDARD.encode(bytes)
    ))
}
