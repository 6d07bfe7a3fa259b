//! A JSON object whose fields are read one by one, each error naming its field.

use crate::api_error::ApiError;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::ops::RangeInclusive;

/// Fields of a body at most: many times those that any client has.
const MAX_FIELDS: usize = 1024;

/// A request's body: a JSON object whose fields are read one by one. A field
/// that is absent and one that is `null` are the same; fields that nobody
/// reads are ignored, and cost no more than their bytes.
#[derive(Debug)]
pub struct Fields<'a> {
    values: Values<'a>,
    /// Every name that was looked at, so that a test can hold the description
    /// of the interface against it.
    #[cfg(test)]
    asked: std::cell::RefCell<std::collections::BTreeSet<String>>,
}

/// Values by name, the last one where a name comes twice; at most
/// [`MAX_FIELDS`].
#[derive(Debug)]
// Keys are decoded, because an escape in a key is another way to write it.
struct Values<'a>(HashMap<String, Field<'a>>);

#[derive(Debug)]
struct Field<'a> {
    value: &'a RawValue,
    was_read: Cell<bool>,
}

impl<'de> Deserialize<'de> for Values<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ValuesVisitor)
    }
}

struct ValuesVisitor;

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = Values<'de>;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Values<'de>, A::Error> {
        let mut values = HashMap::new();
        while let Some((name, value)) = map.next_entry()? {
            let was_read = Cell::new(false);
            values.insert(name, Field { value, was_read });
            if values.len() > MAX_FIELDS {
                let reason = format!("it has more than {MAX_FIELDS} fields, the limit");
                return Err(Error::custom(reason));
            }
        }
        Ok(Values(values))
    }
}

impl<'a> Fields<'a> {
    /// Takes a body apart.
    ///
    /// # Errors
    /// When it is no UTF-8, no JSON object, or one of too many fields.
    pub fn parse(body: &'a [u8]) -> Result<Fields<'a>, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            ApiError::malformed(format!(
                "the body is not valid UTF-8, from byte {} on",
                error.valid_up_to()
            ))
        })?;
        let values = serde_json::from_str(text)
            .map_err(|error| ApiError::malformed(format!("the body is no JSON object: {error}")))?;
        Ok(Fields {
            values,
            #[cfg(test)]
            asked: std::cell::RefCell::default(),
        })
    }

    /// Every name that was looked at.
    #[cfg(test)]
    pub fn asked(self) -> std::collections::BTreeSet<String> {
        self.asked.into_inner()
    }

    /// The field, whatever it is; `None` when absent or `null`.
    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        #[cfg(test)]
        self.asked.borrow_mut().insert(name.to_owned());
        let field = self.values.0.get(name)?;
        field.was_read.set(true);
        Some(field.value).filter(|value| value.get() != "null")
    }

    /// Names of fields that nobody has looked at, in alphabetical order.
    pub fn unread(&self) -> Vec<&str> {
        let fields = self.values.0.iter();
        let unread = fields.filter(|(_, field)| !field.was_read.get());
        let mut names: Vec<&str> = unread.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// The field as a `T`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn get<T: Deserialize<'a>>(&self, name: &'static str) -> Result<Option<T>, ApiError> {
        self.raw(name)
            .map(|value| serde_json::from_str(value.get()).map_err(|e| wrong(name, &e)))
            .transpose()
    }

    /// The field as a `T` whose parts take much more memory than their bytes
    /// here: it may have so many bytes, which is far more than it needs.
    ///
    /// # Errors
    /// When it is longer, or something else.
    pub fn small<T: Deserialize<'a>>(
        &self,
        name: &'static str,
        bytes: usize,
    ) -> Result<Option<T>, ApiError> {
        match self.raw(name).map(|value| value.get().len()) {
            Some(len) if len > bytes => Err(ApiError::invalid(
                name,
                format!("{name} may have {bytes} bytes, it has {len}"),
            )),
            _ => self.get(name),
        }
    }

    /// The field as a number within a range.
    ///
    /// # Errors
    /// When it is something else.
    pub fn number<T>(
        &self,
        name: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, ApiError>
    where
        T: Deserialize<'a> + PartialOrd + Display,
    {
        let Some(value) = self.raw(name) else {
            return Ok(None);
        };
        // Tells "-3 is below the range" from "no number at all".
        let number: serde_json::Number =
            serde_json::from_str(value.get()).map_err(|error| wrong(name, &error))?;
        match serde_json::from_str::<T>(value.get()) {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            // So large an integer that JSON has it as a float is out of range.
            Err(_) if value.get().contains(['.', 'e', 'E']) => Err(ApiError::invalid(
                name,
                format!("{name} must be an integer, it is {number}"),
            )),
            _ => Err(ApiError::invalid(
                name,
                format!(
                    "{name} must be from {} to {}, it is {number}",
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    /// The field as a boolean, `false` when absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.get(name)?.unwrap_or(false))
    }

    /// Refuses a field that is known but not supported, unless it has one of
    /// the values, as JSON, that ask for nothing.
    ///
    /// # Errors
    /// When it asks for something.
    pub fn unsupported(&self, name: &'static str, neutral: &[&str]) -> Result<(), ApiError> {
        match self.raw(name) {
            Some(value) if !neutral.iter().any(|json| same(json, value.get())) => Err(
                ApiError::invalid(name, format!("{name} is not supported by this server")),
            ),
            _ => Ok(()),
        }
    }
}

/// Whether a client wrote this value. It may have put spaces into it.
fn same(json: &str, written: &str) -> bool {
    /// More than any value has that asks for nothing.
    const MAX_BYTES: usize = 64;
    let value = |json| serde_json::from_str::<serde_json::Value>(json).ok();
    written.len() <= MAX_BYTES && value(json) == value(written)
}

/// A field's error, without the position, which counts within the field.
pub(crate) fn wrong(name: &'static str, error: &serde_json::Error) -> ApiError {
    let message = error.to_string();
    let message = message
        .rsplit_once(" at line ")
        .map_or(message.as_str(), |(message, _)| message);
    ApiError::invalid(name, format!("{name}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(fields: usize) -> String {
        let fields: Vec<String> = (0..fields).map(|at| format!("\"{at}\": {at}")).collect();
        format!("{{{}}}", fields.join(","))
    }

    #[test]
    fn a_body_has_so_many_fields_and_no_more() {
        let most = body(MAX_FIELDS);
        let fields = Fields::parse(most.as_bytes()).expect("not too many");
        assert_eq!(fields.get::<u32>("1023"), Ok(Some(1023)));
        let more = body(MAX_FIELDS + 1);
        let refused = Fields::parse(more.as_bytes()).expect_err("too many");
        let message = refused.message();
        assert!(message.contains("more than 1024 fields"), "{message}");
        // The same name again is the same field; the last value counts.
        let same = format!("{{{}\"a\": 2}}", "\"a\": 1,".repeat(5000));
        let fields = Fields::parse(same.as_bytes()).expect("one field");
        assert_eq!(fields.get::<u32>("a"), Ok(Some(2)));
    }

    #[test]
    fn a_small_field_is_not_read_when_it_is_large() {
        let fields = Fields::parse(br#"{"a": [1,2,3], "c": null}"#).expect("an object");
        assert_eq!(fields.small("a", 7), Ok(Some(vec![1, 2, 3])));
        assert_eq!(fields.small::<Vec<u32>>("c", 3), Ok(None));
        let refused = fields.small::<Vec<u32>>("a", 6).expect_err("too long");
        assert_eq!(refused.message(), "a may have 6 bytes, it has 7");
    }
}
