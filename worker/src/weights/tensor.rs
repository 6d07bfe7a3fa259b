//! One tensor of a model's files.

use super::MappedFile;
use nano_model::gguf::GgmlType;
use std::ops::Range;
use std::sync::Arc;

/// Where a tensor's bytes lie.
#[derive(Clone)]
enum Bytes {
    /// Within a mapped file's bounds.
    Mapped(Arc<MappedFile>, Range<usize>),
    /// In memory of their own, after their rows were reordered.
    Owned(Arc<[u8]>),
}

/// One tensor of a model's files, packed as the file has it. Cheap to clone.
///
/// Invariant: it has `row bytes x rows` bytes, where rows are all dimensions but
/// the last, and a row is a whole number of blocks.
#[derive(Clone)]
pub struct WeightTensor {
    name: String,
    dtype: GgmlType,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl WeightTensor {
    /// A tensor at `range` of a file.
    ///
    /// # Errors
    /// When the range leaves the file or does not have the shape's size.
    pub fn mapped(
        name: String,
        dtype: GgmlType,
        shape: Vec<usize>,
        file: &Arc<MappedFile>,
        range: Range<usize>,
    ) -> Result<WeightTensor, String> {
        if range.start > range.end || range.end > file.bytes().len() {
            return Err(format!(
                "lies at bytes {range:?} of a file of {} bytes",
                file.bytes().len()
            ));
        }
        let expected = packed_bytes(dtype, &shape)?;
        if range.len() != expected {
            return Err(format!(
                "has {} bytes, but {dtype} of shape {shape:?} takes {expected}",
                range.len()
            ));
        }
        Ok(WeightTensor {
            name,
            dtype,
            shape,
            bytes: Bytes::Mapped(Arc::clone(file), range),
        })
    }

    /// A tensor in memory of its own.
    ///
    /// # Errors
    /// When the bytes do not have the shape's size.
    pub fn owned(
        name: String,
        dtype: GgmlType,
        shape: Vec<usize>,
        bytes: Vec<u8>,
    ) -> Result<WeightTensor, String> {
        let expected = packed_bytes(dtype, &shape)?;
        if bytes.len() != expected {
            return Err(format!(
                "has {} bytes, but {dtype} of shape {shape:?} takes {expected}",
                bytes.len()
            ));
        }
        Ok(WeightTensor {
            name,
            dtype,
            shape,
            bytes: Bytes::Owned(bytes.into()),
        })
    }

    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type of its elements.
    pub fn dtype(&self) -> GgmlType {
        self.dtype
    }

    /// Dimensions, the slowest first; a matrix is `[out features, in features]`.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape
            .split_last()
            .map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Packed bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.columns() / self.dtype.block_size() as usize * self.dtype.block_bytes() as usize
    }

    /// Its packed bytes, row by row.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(file, range) => &file.bytes()[range.clone()],
            Bytes::Owned(bytes) => bytes,
        }
    }

    /// The rows of rotary heads in half-split order. llama.cpp writes the q and
    /// k rows of Llama models so that rotated pairs are neighbours: row `2 i + j`
    /// of a head there is row `j head_dim / 2 + i` in the order that the models
    /// were trained in. Reordering whole rows leaves blocks as they are.
    pub fn with_half_split_heads(&self, num_heads: usize) -> WeightTensor {
        let row_bytes = self.row_bytes();
        let head_dim = self.rows() / num_heads;
        let source = self.bytes();
        let mut bytes = Vec::with_capacity(source.len());
        for head in 0..num_heads {
            for row in 0..head_dim {
                let (j, i) = (row / (head_dim / 2), row % (head_dim / 2));
                let from = (head * head_dim + 2 * i + j) * row_bytes;
                bytes.extend_from_slice(&source[from..from + row_bytes]);
            }
        }
        WeightTensor {
            bytes: Bytes::Owned(bytes.into()),
            ..self.clone()
        }
    }
}

/// Bytes of a packed tensor.
fn packed_bytes(dtype: GgmlType, shape: &[usize]) -> Result<usize, String> {
    let columns = shape.last().copied().unwrap_or(1);
    let block = dtype.block_size() as usize;
    if columns % block != 0 {
        return Err(format!(
            "has rows of {columns} elements, which are no whole {dtype} blocks of {block}"
        ));
    }
    shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim))
        .and_then(|elements| (elements / block).checked_mul(dtype.block_bytes() as usize))
        .ok_or_else(|| format!("has the impossible shape {shape:?}"))
}

impl std::fmt::Debug for WeightTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} {:?}", self.name, self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn rows_of_rotary_heads_go_back_to_half_split_order() {
        // Two heads of four rows; the value says head and trained row.
        let interleaved = [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0];
        let tensor =
            WeightTensor::owned("q".into(), GgmlType::F32, vec![8, 1], bytes(&interleaved))
                .expect("sizes agree");
        let trained = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
        assert_eq!(tensor.with_half_split_heads(2).bytes(), bytes(&trained));
    }

    #[test]
    fn sizes_that_disagree_are_refused() {
        let refused = |dtype, shape: &[usize], len| {
            WeightTensor::owned("w".into(), dtype, shape.to_vec(), vec![0; len]).is_err()
        };
        assert!(!refused(GgmlType::Q4_1, &[3, 64], 3 * 2 * 20));
        assert!(refused(GgmlType::Q4_1, &[3, 64], 3 * 2 * 20 - 1));
        assert!(refused(GgmlType::Q4_1, &[64, 3], 3 * 2 * 20));
        assert!(refused(GgmlType::F32, &[usize::MAX, 8], 32));
    }
}
