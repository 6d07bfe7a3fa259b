//! Blocks of GGUF tensors as numbers.
//!
//! Every quantized type is read as groups of 32 elements: small integers, one
//! scale for each half, and perhaps a minimum. [`dequantize`] multiplies them
//! out; packing (see [`super::packed`]) keeps them apart.
//! Layouts are those of `ggml-common.h`; results equal those of the PyPI package
//! `gguf` bit for bit.

use half::{bf16, f16};
use nano_model::gguf::GgmlType;

/// Elements of a `Group`.
pub const GROUP: usize = 32;

/// 32 elements: `scale[i / 16] * quants[i] + min`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Group {
    pub quants: [i8; GROUP],
    pub scales: [f32; 2],
    pub min: Option<f32>,
}

/// Bytes and elements do not fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Rows of quantized types are whole blocks.
    #[error("{elements} elements are not whole {dtype} blocks of {}", .dtype.block_size())]
    Blocks {
        /// The type.
        dtype: GgmlType,
        /// Elements of a row.
        elements: usize,
    },
    /// Too few or too many bytes.
    #[error("{elements} elements of {dtype} need {needed} bytes, not {bytes}")]
    Bytes {
        /// The type.
        dtype: GgmlType,
        /// Elements in all.
        elements: usize,
        /// Bytes they need.
        needed: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// Matrices one above another need rows of one length.
    #[error("a matrix of {0} columns cannot be stacked on one of {1}")]
    Columns(usize, usize),
}

/// Checks that `bytes` hold `rows` rows of `cols` elements.
pub(crate) fn check_shape(
    dtype: GgmlType,
    rows: usize,
    cols: usize,
    bytes: &[u8],
) -> Result<(), ShapeError> {
    let block = dtype.block_size() as usize;
    if !cols.is_multiple_of(block) {
        return Err(ShapeError::Blocks {
            dtype,
            elements: cols,
        });
    }
    let elements = rows.saturating_mul(cols);
    let needed = (elements / block).saturating_mul(dtype.block_bytes() as usize);
    if bytes.len() != needed {
        return Err(ShapeError::Bytes {
            dtype,
            elements,
            needed,
            bytes: bytes.len(),
        });
    }
    Ok(())
}

/// Dequantizes `out.len()` elements: whole blocks, for example one row.
///
/// # Errors
/// When bytes and elements do not fit each other.
pub fn dequantize(dtype: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<(), ShapeError> {
    check_shape(dtype, 1, out.len(), bytes)?;
    match dtype {
        GgmlType::F32 => {
            for (to, from) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *to = f32::from_le_bytes(*from);
            }
        }
        GgmlType::F16 => {
            for (to, from) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *to = f16::from_le_bytes(*from).to_f32();
            }
        }
        GgmlType::BF16 => {
            for (to, from) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                // Shifted, not bf16::to_f32, which quiets signalling NaN.
                *to = f32::from_bits(u32::from(bf16::from_le_bytes(*from).to_bits()) << 16);
            }
        }
        _ => {
            let mut groups = out.as_chunks_mut::<GROUP>().0.iter_mut();
            each_group(dtype, bytes, |group| {
                if let Some(to) = groups.next() {
                    group.multiply_out(to);
                }
            });
        }
    }
    Ok(())
}

/// Dequantizes row `row` of a matrix with rows of `out.len()` elements, for
/// example of an embedding.
///
/// # Errors
/// When the row is not whole blocks, or lies outside of the bytes.
pub fn dequantize_row(
    dtype: GgmlType,
    bytes: &[u8],
    row: usize,
    out: &mut [f32],
) -> Result<(), ShapeError> {
    let row_bytes = out.len() / dtype.block_size() as usize * dtype.block_bytes() as usize;
    let start = row.saturating_mul(row_bytes).min(bytes.len());
    let end = start.saturating_add(row_bytes).min(bytes.len());
    dequantize(dtype, &bytes[start..end], out)
}

impl Group {
    fn multiply_out(&self, out: &mut [f32; GROUP]) {
        for (i, (to, &quant)) in out.iter_mut().zip(&self.quants).enumerate() {
            let product = self.scales[i / 16] * f32::from(quant);
            *to = match self.min {
                Some(min) => product + min,
                None => product,
            };
        }
    }
}

/// Calls `f` with the groups of whole blocks of a quantized type, in order.
/// Plain floats have none.
pub(crate) fn each_group(dtype: GgmlType, bytes: &[u8], mut f: impl FnMut(Group)) {
    match dtype {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {}
        GgmlType::Q4_0 => blocks::<18>(bytes, |b| f(q4_0(b))),
        GgmlType::Q4_1 => blocks::<20>(bytes, |b| f(q4_1(b))),
        GgmlType::Q5_0 => blocks::<22>(bytes, |b| f(q5_0(b))),
        GgmlType::Q5_1 => blocks::<24>(bytes, |b| f(q5_1(b))),
        GgmlType::Q8_0 => blocks::<34>(bytes, |b| f(q8_0(b))),
        GgmlType::Q4_K => blocks::<144>(bytes, |b| q4_k(b, &mut f)),
        GgmlType::Q5_K => blocks::<176>(bytes, |b| q5_k(b, &mut f)),
        GgmlType::Q6_K => blocks::<210>(bytes, |b| q6_k(b, &mut f)),
    }
}

fn blocks<const N: usize>(bytes: &[u8], f: impl FnMut(&[u8; N])) {
    bytes.as_chunks::<N>().0.iter().for_each(f);
}

/// The f16 at a fixed place of a block.
fn half_at<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Low nibbles are the first 16 elements, high nibbles the others.
fn nibbles(bytes: &[u8], fifth: impl Fn(usize) -> u8, offset: i8) -> [i8; GROUP] {
    std::array::from_fn(|i| {
        let nibble = bytes[i % 16] >> (4 * (i / 16)) & 15;
        (nibble | fifth(i) << 4) as i8 - offset
    })
}

/// Bit `i` of four bytes.
fn fifth_bits<const N: usize>(block: &[u8; N], at: usize) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    move |i| (bits >> i & 1) as u8
}

fn q4_0(b: &[u8; 18]) -> Group {
    Group {
        quants: nibbles(&b[2..], |_| 0, 8),
        scales: [half_at(b, 0); 2],
        min: None,
    }
}

fn q4_1(b: &[u8; 20]) -> Group {
    Group {
        quants: nibbles(&b[4..], |_| 0, 0),
        scales: [half_at(b, 0); 2],
        min: Some(half_at(b, 2)),
    }
}

fn q5_0(b: &[u8; 22]) -> Group {
    Group {
        quants: nibbles(&b[6..], fifth_bits(b, 2), 16),
        scales: [half_at(b, 0); 2],
        min: None,
    }
}

fn q5_1(b: &[u8; 24]) -> Group {
    Group {
        quants: nibbles(&b[8..], fifth_bits(b, 4), 0),
        scales: [half_at(b, 0); 2],
        min: Some(half_at(b, 2)),
    }
}

fn q8_0(b: &[u8; 34]) -> Group {
    Group {
        quants: std::array::from_fn(|i| b[2 + i] as i8),
        scales: [half_at(b, 0); 2],
        min: None,
    }
}

/// Scale and minimum of group `g` out of 12 bytes of 6-bit numbers: bytes 0..4 and
/// 4..8 hold those of groups 0..4, and in their upper bits the upper bits of
/// groups 4..8, whose lower bits are the nibbles of bytes 8..12.
fn k_scale_min(bytes: &[u8; 12], g: usize) -> (f32, f32) {
    let (scale, min) = if g < 4 {
        (bytes[g] & 63, bytes[g + 4] & 63)
    } else {
        let low = bytes[g + 4];
        (
            (low & 15) | (bytes[g - 4] >> 2 & 0x30),
            (low >> 4) | (bytes[g] >> 2 & 0x30),
        )
    };
    (f32::from(scale), f32::from(min))
}

/// Group `g` of a Q4_K or Q5_K block whose header is `d`, `dmin` and 12 bytes.
fn k_group<const N: usize>(b: &[u8; N], g: usize, quants: [i8; GROUP]) -> Group {
    let packed = std::array::from_fn(|i| b[4 + i]);
    let (scale, min) = k_scale_min(&packed, g);
    Group {
        quants,
        scales: [half_at(b, 0) * scale; 2],
        min: Some(-(half_at(b, 2) * min)),
    }
}

fn q4_k(b: &[u8; 144], f: &mut impl FnMut(Group)) {
    for g in 0..8 {
        // 32 bytes hold two groups: low nibbles, high nibbles.
        let bytes = &b[16 + g / 2 * 32..][..32];
        let quants = std::array::from_fn(|i| (bytes[i] >> (4 * (g % 2)) & 15) as i8);
        f(k_group(b, g, quants));
    }
}

fn q5_k(b: &[u8; 176], f: &mut impl FnMut(Group)) {
    for g in 0..8 {
        let bytes = &b[48 + g / 2 * 32..][..32];
        let quants = std::array::from_fn(|i| {
            let nibble = bytes[i] >> (4 * (g % 2)) & 15;
            let fifth = b[16 + i] >> g & 1;
            (nibble | fifth << 4) as i8
        });
        f(k_group(b, g, quants));
    }
}

fn q6_k(b: &[u8; 210], f: &mut impl FnMut(Group)) {
    let d = half_at(b, 208);
    for g in 0..8 {
        // Half a block is 64 bytes of low nibbles and 32 bytes of upper pairs:
        // low nibbles of bytes 0..32, of 32..64, then the high nibbles alike.
        let (half, part) = (g / 4, g % 4);
        let low = &b[half * 64 + part % 2 * 32..][..32];
        let high = &b[128 + half * 32..][..32];
        let quants = std::array::from_fn(|i| {
            let nibble = low[i] >> (4 * (part / 2)) & 15;
            let pair = high[i] >> (2 * part) & 3;
            (nibble | pair << 4) as i8 - 32
        });
        let scale = |i: usize| d * f32::from(b[192 + 2 * g + i] as i8);
        f(Group {
            quants,
            scales: [scale(0), scale(1)],
            min: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Golden data: scripts/golden-dequant.py.
    #[test]
    fn every_type_equals_the_gguf_package_bit_for_bit() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/dequant");
        for dtype in GgmlType::ALL {
            if dtype == GgmlType::F32 {
                continue;
            }
            let read = |ending: &str| {
                let path = golden.join(format!("{dtype}.{ending}"));
                std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            };
            let (blocks, expected) = (read("blocks"), read("f32"));
            let mut out = vec![f32::NAN; expected.len() / 4];
            dequantize(dtype, &blocks, &mut out).expect("fits");
            for (i, (x, expected)) in out.iter().zip(expected.as_chunks::<4>().0).enumerate() {
                let expected = u32::from_le_bytes(*expected);
                assert_eq!(x.to_bits(), expected, "{dtype} element {i}: {x}");
            }
        }
    }
}
