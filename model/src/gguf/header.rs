//! The header of a GGUF file: metadata and tensor directory.

use super::ggml_type::GgmlType;
use super::reader::{HeaderError, Reader};
use super::value::Value;
use std::collections::HashMap;

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u32 = 32;
/// ggml tensors have at most this many dimensions.
const MAX_DIMENSIONS: u32 = 4;
/// Smallest metadata entry: length of the key, one byte of key, type, one byte of value.
const MIN_METADATA_BYTES: u64 = 8 + 1 + 4 + 1;
/// Smallest tensor entry: length of the name, one byte of name, number of
/// dimensions, one dimension, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// What the tensor directory says of one tensor.
///
/// Holds: every dimension is at least 1, the first one is a multiple of the
/// type's block size, and `offset..offset + bytes` lies within the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// For example `blk.0.attn_q.weight`.
    pub name: String,
    /// GGUF order: the first dimension is the contiguous one. A weight that
    /// maps `in` features to `out` features is `[in, out]`: `out` rows of `in`
    /// elements, row-major `[out, in]` as other frameworks write it.
    pub dimensions: Vec<u64>,
    /// Element type.
    pub ggml_type: GgmlType,
    /// Of the first byte, from the start of the file.
    pub offset: u64,
    /// Bytes of all blocks.
    pub bytes: u64,
}

impl TensorInfo {
    /// The shape with the slowest dimension first: `[rows, columns]` of a matrix.
    pub fn shape(&self) -> Vec<usize> {
        self.dimensions
            .iter()
            .rev()
            .map(|&dim| dim as usize)
            .collect()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.dimensions.iter().product()
    }
}

/// Metadata and tensor directory of one file.
#[derive(Debug)]
pub(super) struct Header {
    pub metadata: HashMap<String, Value>,
    pub tensors: Vec<TensorInfo>,
}

impl Header {
    /// Reads and validates the header of a whole file.
    pub fn parse(file: &[u8]) -> Result<Self, HeaderError> {
        let reader = &mut Reader::new(file);
        reader.field = "magic".into();
        if reader.array()? != MAGIC {
            return Err(reader.error("not a GGUF file"));
        }
        reader.field = "version".into();
        match reader.u32()? {
            2 | 3 => {}
            version if (1..=3).contains(&version.swap_bytes()) => {
                return Err(reader.error("big-endian GGUF files are not supported"));
            }
            version => {
                return Err(reader.error(format_args!(
                    "GGUF version {version} is not supported (2 and 3 are)"
                )));
            }
        }
        reader.field = "tensor_count".into();
        let tensor_count = reader.count(MIN_TENSOR_BYTES)?;
        reader.field = "metadata_kv_count".into();
        let metadata_count = reader.count(MIN_METADATA_BYTES)?;
        let metadata = read_metadata(reader, metadata_count)?;
        let tensors = read_tensors(reader, tensor_count, alignment(&metadata)?)?;
        Ok(Self { metadata, tensors })
    }
}

fn read_metadata(
    reader: &mut Reader<'_>,
    count: usize,
) -> Result<HashMap<String, Value>, HeaderError> {
    let mut metadata = HashMap::new();
    for index in 0..count {
        reader.field = format!("metadata key {index}");
        let key = reader.name()?;
        reader.field.clone_from(&key);
        let value = reader.value()?;
        if metadata.insert(key, value).is_some() {
            return Err(reader.error("this key appears twice"));
        }
    }
    Ok(metadata)
}

fn alignment(metadata: &HashMap<String, Value>) -> Result<u64, HeaderError> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else {
        return Ok(DEFAULT_ALIGNMENT.into());
    };
    value
        .as_u32()
        .filter(|alignment| alignment.is_power_of_two())
        .map(u64::from)
        .ok_or_else(|| HeaderError {
            field: KEY.into(),
            reason: "must be a power of two".into(),
        })
}

/// Offsets in the file count from the end of the header, rounded up to the
/// alignment; here they are made to count from the start of the file.
fn read_tensors(
    reader: &mut Reader<'_>,
    count: usize,
    alignment: u64,
) -> Result<Vec<TensorInfo>, HeaderError> {
    let mut tensors = Vec::new();
    for index in 0..count {
        reader.field = format!("tensor {index}");
        tensors.push(read_tensor(reader, alignment)?);
    }
    let padding = (reader.position() as u64).wrapping_neg() % alignment;
    let data_start = reader.position() as u64 + padding;
    let file_len = reader.position() as u64 + reader.remaining();
    for tensor in &mut tensors {
        let start = data_start.checked_add(tensor.offset);
        let end = start.and_then(|start| start.checked_add(tensor.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => tensor.offset = start,
            _ => {
                return Err(HeaderError {
                    field: format!("tensor {}", tensor.name),
                    reason: format!(
                        "{} bytes at offset {} of the data, which starts at {data_start}, \
                         reach beyond the file's {file_len} bytes (is it cut?)",
                        tensor.bytes, tensor.offset
                    ),
                });
            }
        }
    }
    Ok(tensors)
}

fn read_tensor(reader: &mut Reader<'_>, alignment: u64) -> Result<TensorInfo, HeaderError> {
    let name = reader.name()?;
    reader.field = format!("tensor {name}");
    let rank = reader.u32()?;
    if !(1..=MAX_DIMENSIONS).contains(&rank) {
        return Err(reader.error(format_args!(
            "has {rank} dimensions; 1 to {MAX_DIMENSIONS} are allowed"
        )));
    }
    let dimensions = (0..rank)
        .map(|_| reader.u64())
        .collect::<Result<Vec<_>, _>>()?;
    let number = reader.u32()?;
    let Some(ggml_type) = GgmlType::from_number(number) else {
        return Err(reader.error(format_args!(
            "element type {number} is not supported (supported: {})",
            GgmlType::ALL.map(GgmlType::name).join(", ")
        )));
    };
    let offset = reader.u64()?;
    if !offset.is_multiple_of(alignment) {
        return Err(reader.error(format_args!(
            "offset {offset} is not a multiple of the alignment {alignment}"
        )));
    }
    let Some(bytes) = tensor_bytes(&dimensions, ggml_type) else {
        return Err(reader.error(format_args!(
            "shape {dimensions:?} does not fit {ggml_type}, whose blocks have {} elements",
            ggml_type.block_size()
        )));
    };
    Ok(TensorInfo {
        name,
        dimensions,
        ggml_type,
        offset,
        bytes,
    })
}

/// `None` where a dimension is 0, rows are no whole blocks, or the product overflows.
fn tensor_bytes(dimensions: &[u64], ggml_type: GgmlType) -> Option<u64> {
    let elements = dimensions.iter().try_fold(1u64, |product, &dimension| {
        product
            .checked_mul(dimension)
            .filter(|&product| product > 0)
    })?;
    let row = dimensions.first()?;
    if !row.is_multiple_of(ggml_type.block_size()) {
        return None;
    }
    (elements / ggml_type.block_size()).checked_mul(ggml_type.block_bytes())
}
