//! Element types of GGUF tensors, with the size of their blocks.

/// Element type of a GGUF tensor. Quantized types store blocks of
/// [`block_size`](Self::block_size) elements in
/// [`block_bytes`](Self::block_bytes) bytes.
///
/// Numbers and layouts are those of `ggml.h` and `ggml-common.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the names that users of GGUF know
pub enum GgmlType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// Upper half of an IEEE single.
    BF16,
    /// 32 elements: f16 scale, 4-bit values minus 8.
    Q4_0,
    /// 32 elements: f16 scale, f16 minimum, 4-bit values.
    Q4_1,
    /// 32 elements: f16 scale, 32 fifth bits, 4-bit values; minus 16.
    Q5_0,
    /// 32 elements: f16 scale, f16 minimum, 32 fifth bits, 4-bit values.
    Q5_1,
    /// 32 elements: f16 scale, 8-bit signed values.
    Q8_0,
    /// 256 elements: f16 scale and minimum, 8 x 6-bit scales and minima, 4-bit values.
    Q4_K,
    /// 256 elements: as Q4_K, with fifth bits.
    Q5_K,
    /// 256 elements: 4 low bits, 2 high bits, 16 x 8-bit scales, f16 scale.
    Q6_K,
}

impl GgmlType {
    /// Every type that is supported.
    pub const ALL: [GgmlType; 11] = [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::Q4_K,
        GgmlType::Q5_K,
        GgmlType::Q6_K,
    ];

    /// Number in the file, name, elements of a block, bytes of a block.
    const fn row(self) -> (u32, &'static str, u64, u64) {
        match self {
            GgmlType::F32 => (0, "F32", 1, 4),
            GgmlType::F16 => (1, "F16", 1, 2),
            GgmlType::Q4_0 => (2, "Q4_0", 32, 2 + 16),
            GgmlType::Q4_1 => (3, "Q4_1", 32, 2 + 2 + 16),
            GgmlType::Q5_0 => (6, "Q5_0", 32, 2 + 4 + 16),
            GgmlType::Q5_1 => (7, "Q5_1", 32, 2 + 2 + 4 + 16),
            GgmlType::Q8_0 => (8, "Q8_0", 32, 2 + 32),
            GgmlType::Q4_K => (12, "Q4_K", 256, 2 + 2 + 12 + 128),
            GgmlType::Q5_K => (13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128),
            GgmlType::Q6_K => (14, "Q6_K", 256, 128 + 64 + 16 + 2),
            GgmlType::BF16 => (30, "BF16", 1, 2),
        }
    }

    /// The type with this number in the file, if it is supported.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.row().0 == number)
    }

    /// Its number in the file.
    pub const fn number(self) -> u32 {
        self.row().0
    }

    /// For example `Q4_1`.
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements of a block; 1 for plain floats.
    pub const fn block_size(self) -> u64 {
        self.row().2
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> u64 {
        self.row().3
    }

    /// Whether a block holds more than one element.
    pub const fn is_quantized(self) -> bool {
        self.block_size() > 1
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
