//! The one file that names the serializer: a message to bytes and back.

use bincode::config::{Configuration, Limit, LittleEndian, Varint, standard};
use serde::{Serialize, de::DeserializeOwned};

/// Largest body of one frame in bytes. A length prefix inside a body cannot
/// make the decoder allocate more than this either.
pub const MAX_BODY_BYTES: usize = 64 << 20;

const CONFIG: Configuration<LittleEndian, Varint, Limit<MAX_BODY_BYTES>> =
    standard().with_limit::<MAX_BODY_BYTES>();

/// A body that is no message of the expected type.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The value cannot be written, for example because it exceeds [`MAX_BODY_BYTES`].
    #[error("message cannot be encoded: {0}")]
    Encode(#[from] bincode::error::EncodeError),
    /// The bytes are cut, or of another type or version.
    #[error("message cannot be decoded: {0}")]
    Decode(#[from] bincode::error::DecodeError),
    /// The message ended before the body did.
    #[error("message is followed by {0} stray bytes")]
    Trailing(usize),
}

/// Appends the message's bytes to `body`.
///
/// # Errors
/// When the serializer refuses the value.
pub fn encode<M: Serialize>(message: &M, mut body: &mut Vec<u8>) -> Result<(), CodecError> {
    bincode::serde::encode_into_std_write(message, &mut body, CONFIG)?;
    Ok(())
}

/// Reads one message that fills the whole of `body`.
///
/// # Errors
/// When the bytes are no such message, or more than one.
pub fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, CodecError> {
    let (message, used) = bincode::serde::decode_from_slice(body, CONFIG)?;
    if used == body.len() {
        Ok(message)
    } else {
        Err(CodecError::Trailing(body.len() - used))
    }
}
