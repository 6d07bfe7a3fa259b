//! What is read of an answer's JSON: no more than is measured, and nothing is
//! kept of texts but their length.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// One event of a stream, or a whole answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk {
    pub(super) choices: Vec<Choice>,
    pub(super) usage: Option<Usage>,
    pub(super) error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Choice {
    delta: Option<Message>,
    message: Option<Message>,
    text: Size,
    /// With `return_token_ids`.
    token_ids: Size,
    finish_reason: Size,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    content: Size,
    reasoning_content: Size,
    reasoning: Size,
    refusal: Size,
    tool_calls: Size,
}

/// Tokens as the server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
}

impl Chunk {
    /// Whether any part of an answer is in it.
    pub(super) fn has_output(&self) -> bool {
        self.choices.iter().any(Choice::has_output)
    }

    /// Tokens in it, where the server says.
    pub(super) fn token_ids(&self) -> Option<u64> {
        let told = self
            .choices
            .iter()
            .map(|choice| choice.token_ids.0 as u64)
            .sum();
        (told > 0).then_some(told)
    }

    /// Whether a choice ends with it.
    pub(super) fn finishes(&self) -> bool {
        self.choices.iter().any(|choice| choice.finish_reason.0 > 0)
    }
}

impl Choice {
    fn has_output(&self) -> bool {
        let said = |message: &Option<Message>| message.as_ref().is_some_and(Message::says);
        self.text.0 > 0 || self.token_ids.0 > 0 || said(&self.delta) || said(&self.message)
    }
}

impl Message {
    fn says(&self) -> bool {
        let parts = [
            &self.content,
            &self.reasoning_content,
            &self.reasoning,
            &self.refusal,
            &self.tool_calls,
        ];
        parts.iter().any(|part| part.0 > 0)
    }
}

/// Bytes of a text, or elements of a list; 0 for null.
#[derive(Debug, Default)]
struct Size(usize);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Measure;
        impl<'de> Visitor<'de> for Measure {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list, an object or null")
            }

            fn visit_str<E>(self, text: &str) -> Result<Size, E> {
                Ok(Size(text.len()))
            }

            fn visit_unit<E>(self) -> Result<Size, E> {
                Ok(Size(0))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Size, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Size(count))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Size, A::Error> {
                let mut count = 0;
                while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Size(count))
            }
        }
        deserializer.deserialize_any(Measure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> Chunk {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn output_is_what_a_user_gets() {
        for with in [
            r#"{"choices": [{"delta": {"content": "a"}}]}"#,
            r#"{"choices": [{"delta": {"reasoning_content": "\u00e4"}}], "usage": null}"#,
            r#"{"choices": [{"delta": {"tool_calls": [{"id": 1}]}}]}"#,
            r#"{"choices": [{"delta": {}}, {"text": "a"}]}"#,
            r#"{"choices": [{"message": {"content": "a"}}]}"#,
            r#"{"choices": [{"text": "", "token_ids": [5]}]}"#,
        ] {
            assert!(chunk(with).has_output(), "{with}");
        }
        for without in [
            "{}",
            r#"{"choices": []}"#,
            r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#,
            r#"{"choices": [{"text": null, "finish_reason": "stop"}]}"#,
        ] {
            assert!(!chunk(without).has_output(), "{without}");
        }
    }

    #[test]
    fn counts_and_ends_are_read() {
        let chunk = chunk(
            r#"{"id": "x", "choices": [{"token_ids": [1, 2], "finish_reason": "length"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "other": {}}}"#,
        );
        assert_eq!(chunk.token_ids(), Some(2));
        assert!(chunk.finishes());
        let usage = Usage {
            prompt_tokens: 3,
            completion_tokens: 2,
        };
        assert_eq!(chunk.usage, Some(usage));
    }
}
