//! Metadata values of a GGUF header.

/// Type numbers of metadata values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// In the order of their numbers in the file.
    const BY_NUMBER: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    pub fn from_number(number: u32) -> Option<Self> {
        Self::BY_NUMBER.get(number as usize).copied()
    }

    /// Bytes of one value; `None` for strings and arrays, whose length varies.
    pub fn bytes(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }
}

/// A metadata value. Scalars of every width are widened: writers do not agree
/// on the width of, say, a token id.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// Single or double.
    Float(f64),
    /// Boolean.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Values of one type.
    Array(Array),
}

/// An array of one element type, kept as narrow as the file has it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are their element types
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
}

impl Value {
    /// What it is, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Unsigned(_) => "an unsigned integer",
            Value::Signed(_) => "a signed integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a boolean",
            Value::String(_) => "a string",
            Value::Array(Array::String(_)) => "an array of strings",
            Value::Array(Array::F32(_) | Array::F64(_)) => "an array of floats",
            Value::Array(Array::Bool(_)) => "an array of booleans",
            Value::Array(_) => "an array of integers",
        }
    }

    /// An integer of either sign that fits.
    pub fn as_u32(&self) -> Option<u32> {
        match *self {
            Value::Unsigned(value) => value.try_into().ok(),
            Value::Signed(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// A float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Float(value) => Some(value),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(value) => Some(value),
            _ => None,
        }
    }

    /// An array of text.
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            Value::Array(Array::String(values)) => Some(values),
            _ => None,
        }
    }

    /// An array of singles.
    pub fn as_f32s(&self) -> Option<&[f32]> {
        match self {
            Value::Array(Array::F32(values)) => Some(values),
            _ => None,
        }
    }

    /// An array of 32-bit signed integers.
    pub fn as_i32s(&self) -> Option<&[i32]> {
        match self {
            Value::Array(Array::I32(values)) => Some(values),
            _ => None,
        }
    }
}
