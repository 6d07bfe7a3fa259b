//! A cursor over a GGUF header that cannot leave the file.

use super::value::{Array, Value, ValueType};

/// Why a header could not be read: the field that was being read, and what was
/// wrong. The file's name is added by the caller.
#[derive(Debug)]
pub(super) struct HeaderError {
    pub field: String,
    pub reason: String,
}

/// The specification bounds keys at 65535 bytes; tensor names are far shorter.
const MAX_NAME_BYTES: u64 = 65_535;

/// Reads little-endian values. Every length is compared with the bytes that
/// are left before anything is allocated for it, so that memory stays
/// proportional to the file whatever a header claims.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// What is being read now, for errors.
    pub field: String,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            position: 0,
            field: "header".into(),
        }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    pub fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    pub fn error(&self, reason: impl ToString) -> HeaderError {
        HeaderError {
            field: self.field.clone(),
            reason: reason.to_string(),
        }
    }

    pub fn take(&mut self, len: u64) -> Result<&'a [u8], HeaderError> {
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| self.position.checked_add(len))
            .filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(self.error(format_args!(
                "the file ends here: {len} bytes are needed at offset {}, {} are left",
                self.position,
                self.remaining()
            )));
        };
        let taken = &self.bytes[self.position..end];
        self.position = end;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        let taken = self.take(N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    pub fn u32(&mut self) -> Result<u32, HeaderError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, HeaderError> {
        self.array().map(u64::from_le_bytes)
    }

    /// How many items follow, each of which takes at least `min_bytes`.
    pub fn count(&mut self, min_bytes: u64) -> Result<usize, HeaderError> {
        let count = self.u64()?;
        let most = self.remaining() / min_bytes;
        if count > most {
            return Err(self.error(format_args!(
                "claims {count} items, but the file has room for at most {most}"
            )));
        }
        Ok(count as usize)
    }

    pub fn string(&mut self) -> Result<String, HeaderError> {
        let len = self.u64()?;
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(self.error(format_args!("is not valid UTF-8: {error}"))),
        }
    }

    pub fn name(&mut self) -> Result<String, HeaderError> {
        let name = self.string()?;
        if name.is_empty() || name.len() as u64 > MAX_NAME_BYTES {
            return Err(self.error(format_args!(
                "a name of {} bytes; 1 to {MAX_NAME_BYTES} are allowed",
                name.len()
            )));
        }
        Ok(name)
    }

    fn value_type(&mut self) -> Result<ValueType, HeaderError> {
        let number = self.u32()?;
        ValueType::from_number(number)
            .ok_or_else(|| self.error(format_args!("unknown value type {number}")))
    }

    fn bool(&mut self) -> Result<bool, HeaderError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.error(format_args!("{other} is no boolean"))),
        }
    }

    pub fn value(&mut self) -> Result<Value, HeaderError> {
        Ok(match self.value_type()? {
            ValueType::U8 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            ValueType::U16 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            ValueType::U32 => Value::Unsigned(self.u32()?.into()),
            ValueType::U64 => Value::Unsigned(self.u64()?),
            ValueType::I8 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            ValueType::I16 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            ValueType::I32 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            ValueType::I64 => Value::Signed(i64::from_le_bytes(self.array()?)),
            ValueType::F32 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            ValueType::F64 => Value::Float(f64::from_le_bytes(self.array()?)),
            ValueType::Bool => Value::Bool(self.bool()?),
            ValueType::String => Value::String(self.string()?),
            ValueType::Array => Value::Array(self.value_array()?),
        })
    }

    fn value_array(&mut self) -> Result<Array, HeaderError> {
        let element = self.value_type()?;
        // A string takes at least its length.
        let count = self.count(element.bytes().unwrap_or(8))?;
        Ok(match element {
            ValueType::U8 => Array::U8(self.plain(count, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.plain(count, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.plain(count, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.plain(count, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.plain(count, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.plain(count, i32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.plain(count, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.plain(count, i64::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.plain(count, f32::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.plain(count, f64::from_le_bytes)?),
            ValueType::Bool => Array::Bool(collect(count, || self.bool())?),
            ValueType::String => Array::String(collect(count, || self.string())?),
            // Nobody writes them, and refusing them bounds the recursion.
            ValueType::Array => return Err(self.error("arrays of arrays are not supported")),
        })
    }

    fn plain<T, const N: usize>(
        &mut self,
        count: usize,
        from: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, HeaderError> {
        collect(count, || self.array().map(from))
    }
}

fn collect<T>(
    count: usize,
    mut next: impl FnMut() -> Result<T, HeaderError>,
) -> Result<Vec<T>, HeaderError> {
    (0..count).map(|_| next()).collect()
}
