//! JSON as Python's `json.dumps` writes it.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};
use std::io::{self, Write};

/// Arguments of `json.dumps`.
#[derive(Debug, Default)]
pub(super) struct Style {
    /// Spaces a level; all on one line when absent.
    pub indent: Option<usize>,
    /// Write what is not ASCII as escapes.
    pub ascii: bool,
    /// Order of keys: by name, or as they are.
    pub sort_keys: bool,
    /// Between items, and between key and value.
    pub separators: Option<(String, String)>,
}

/// Deeper indentation than anybody wants, against a size that explodes.
const MAX_INDENT: usize = 32;

/// Deeper nesting than clients can send, against a stack that overflows.
const MAX_DEPTH: usize = 256;

/// `limit`: longer results, in bytes, are an error. Values share their parts,
/// so a small one can be written out to any length.
pub(super) fn dumps(value: &Value, style: &Style, limit: u64) -> Result<String, Error> {
    let text = write(value, style, limit)?;
    if !style.sort_keys {
        return Ok(text);
    }
    let mut json: serde_json::Value = serde_json::from_str(&text).map_err(failed)?;
    json.sort_all_objects();
    write(&json, style, limit)
}

fn failed(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, "tojson").with_source(error)
}

fn write(value: &impl Serialize, style: &Style, limit: u64) -> Result<String, Error> {
    let mut out = Limited {
        bytes: Vec::new(),
        left: limit,
    };
    let result = value.serialize(&mut Serializer::with_formatter(
        &mut out,
        Python::new(style),
    ));
    match result {
        Err(error) if error.is_io() => Err(Error::new(ErrorKind::OutOfFuel, "tojson")),
        Err(error) => Err(failed(error)),
        Ok(()) => String::from_utf8(out.bytes)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string())),
    }
}

/// Bytes, up to a limit.
struct Limited {
    bytes: Vec<u8>,
    left: u64,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self
            .left
            .checked_sub(bytes.len() as u64)
            .ok_or(io::ErrorKind::WriteZero)?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Python's layout: `, ` and `: ` on one line, items on lines of their own
/// when indented, empty containers closed at once.
struct Python<'a> {
    indent: Option<usize>,
    ascii: bool,
    item: &'a str,
    key: &'a str,
    level: usize,
    has_items: bool,
}

impl<'a> Python<'a> {
    fn new(style: &'a Style) -> Self {
        let (item, key) = match (&style.separators, style.indent) {
            (Some((item, key)), _) => (item.as_str(), key.as_str()),
            (None, Some(_)) => (",", ": "),
            (None, None) => (", ", ": "),
        };
        Self {
            indent: style.indent.map(|indent| indent.min(MAX_INDENT)),
            ascii: style.ascii,
            item,
            key,
            level: 0,
            has_items: false,
        }
    }

    fn new_line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(out, "\n{:width$}", "", width = indent * self.level),
            None => Ok(()),
        }
    }

    fn begin<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &str) -> io::Result<()> {
        self.level += 1;
        if self.level > MAX_DEPTH {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.has_items = false;
        out.write_all(bracket.as_bytes())
    }

    fn end<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &str) -> io::Result<()> {
        self.level -= 1;
        if std::mem::replace(&mut self.has_items, true) {
            self.new_line(out)?;
        }
        out.write_all(bracket.as_bytes())
    }

    fn begin_item<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.new_line(out)
    }

    fn end_item(&mut self) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }
}

impl Formatter for Python<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, "[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, "]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.end_item()
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, "{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, "}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.end_item()
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if c.is_ascii() {
                write!(out, "{c}")?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let short = match escape {
            CharEscape::Quote => "\\\"",
            CharEscape::ReverseSolidus | CharEscape::Solidus => "\\\\",
            CharEscape::Backspace => "\\b",
            CharEscape::FormFeed => "\\f",
            CharEscape::LineFeed => "\\n",
            CharEscape::CarriageReturn => "\\r",
            CharEscape::Tab => "\\t",
            CharEscape::AsciiControl(byte) => return write!(out, "\\u{byte:04x}"),
        };
        out.write_all(short.as_bytes())
    }
}

/// Python's `repr` of a float: the shortest digits that read back the same, as
/// a plain number from 1e-4 up to 1e16.
fn float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;
    use serde_json::json;

    fn check(style: Style, value: serde_json::Value, want: &str) {
        let value = Value::from(Serde(value));
        assert_eq!(dumps(&value, &style, 1000).unwrap(), want);
        let too_little = want.len() as u64 - 1;
        assert!(dumps(&value, &style, too_little).is_err());
    }

    #[test]
    fn as_python_does() {
        let value = json!({"b": [1, -1500.0, {}], "a": "é\n\"<&\u{7f}\u{1}", "c": []});
        check(
            Style::default(),
            value.clone(),
            "{\"b\": [1, -1500.0, {}], \"a\": \"é\\n\\\"<&\u{7f}\\u0001\", \"c\": []}",
        );
        let ascii = Style {
            ascii: true,
            sort_keys: true,
            separators: Some((",".into(), ":".into())),
            indent: None,
        };
        check(
            ascii,
            json!({"b": "é😀", "a": null}),
            r#"{"a":null,"b":"\u00e9\ud83d\ude00"}"#,
        );
        let indented = Style {
            indent: Some(2),
            ..Style::default()
        };
        check(
            indented,
            json!({"a": [1, true, {}], "b": {"c": [[]]}}),
            "{\n  \"a\": [\n    1,\n    true,\n    {}\n  ],\n  \"b\": {\n    \"c\": [\n      []\n    ]\n  }\n}",
        );
    }

    #[test]
    fn floats() {
        for (value, want) in [
            (0.0, "0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (1e300, "1e+300"),
            (0.1 + 0.2, "0.30000000000000004"),
        ] {
            assert_eq!(float(value), want);
        }
    }
}
