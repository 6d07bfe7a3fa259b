//! How messages lie in a byte stream: a header of eight bytes (body length and
//! kind, both u32 little-endian), then the body.

use crate::codec::{self, CodecError, MAX_BODY_BYTES};
use serde::{Serialize, de::DeserializeOwned};

const HEADER_BYTES: usize = 8;

/// Memory that an empty buffer keeps.
pub(crate) const KEPT_BYTES: usize = 1 << 20;

/// The body is an encoded message. The only kind so far; the field lets raw
/// byte frames join without a new protocol.
const KIND_MESSAGE: u32 = 1;

/// A byte stream that is not made of our frames.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The header's length is beyond the limit.
    #[error("frame of {0} bytes, the limit is {MAX_BODY_BYTES}")]
    TooLong(usize),
    /// The header's kind is none of ours.
    #[error("frame of unknown kind {0}")]
    UnknownKind(u32),
    /// The body is no message of the expected type.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Appends one frame to `bytes`; on error `bytes` is as before.
///
/// # Errors
/// When the message is longer than a frame may be.
pub fn write<M: Serialize>(message: &M, bytes: &mut Vec<u8>) -> Result<usize, FrameError> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; HEADER_BYTES]);
    let written = codec::encode(message, bytes)
        .map_err(FrameError::from)
        .and_then(|()| {
            let body = bytes.len() - start - HEADER_BYTES;
            if body > MAX_BODY_BYTES {
                Err(FrameError::TooLong(body))
            } else {
                Ok(body)
            }
        });
    match written {
        Ok(body) => {
            // `body` fits u32: it is at most MAX_BODY_BYTES.
            bytes[start..start + 4].copy_from_slice(&(body as u32).to_le_bytes());
            bytes[start + 4..start + 8].copy_from_slice(&KIND_MESSAGE.to_le_bytes());
            Ok(HEADER_BYTES + body)
        }
        Err(error) => {
            bytes.truncate(start);
            Err(error)
        }
    }
}

/// Bytes that arrived and are not yet taken as messages.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    /// Adds bytes as they came from the stream.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start == self.bytes.len() {
            self.bytes.clear();
            // One long message must not hold its memory for ever.
            self.bytes.shrink_to(KEPT_BYTES);
            self.start = 0;
        } else if self.start >= 1 << 20 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes held that belong to no message taken yet.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether the stream stands between two frames.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next whole message, or `None` until more bytes came.
    ///
    /// # Errors
    /// When the stream is not made of frames of this message type; it is
    /// unusable from then on.
    #[expect(clippy::should_implement_trait, reason = "the caller names the type")]
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, FrameError> {
        let held = &self.bytes[self.start..];
        let Some((header, rest)) = held.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [l0, l1, l2, l3, k0, k1, k2, k3] = *header;
        let body = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let kind = u32::from_le_bytes([k0, k1, k2, k3]);
        if body > MAX_BODY_BYTES {
            return Err(FrameError::TooLong(body));
        }
        if kind != KIND_MESSAGE {
            return Err(FrameError::UnknownKind(kind));
        }
        let Some(body) = rest.get(..body) else {
            return Ok(None);
        };
        let message = codec::decode(body)?;
        self.start += HEADER_BYTES + body.len();
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_core_request::RequestId;
    use crate::to_core::ToCore;

    fn frames(ids: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for id in ids {
            write(&ToCore::Abort(RequestId(*id)), &mut bytes).expect("small");
        }
        bytes
    }

    #[test]
    fn messages_survive_any_split_of_the_stream() {
        let bytes = frames(&[1, 2, 300, u64::MAX]);
        for step in 1..bytes.len() {
            let mut buffer = FrameBuffer::default();
            let mut ids = Vec::new();
            for piece in bytes.chunks(step) {
                buffer.extend(piece);
                while let Some(message) = buffer.next::<ToCore>().expect("whole frames") {
                    let ToCore::Abort(RequestId(id)) = message else {
                        panic!("{message:?}")
                    };
                    ids.push(id);
                }
            }
            assert_eq!(ids, [1, 2, 300, u64::MAX], "pieces of {step} bytes");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn malformed_streams_are_errors() {
        let good = frames(&[7]);
        for (at, value) in [(3, 0xff), (4, 9), (8, 0xf0), (0, good[0] - 8 + 12)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes.extend_from_slice(&[0; 16]);
            let mut buffer = FrameBuffer::default();
            buffer.extend(&bytes);
            assert!(buffer.next::<ToCore>().is_err(), "byte {at} = {value}");
        }
    }

    fn message() -> Vec<u8> {
        let mut bytes = Vec::new();
        let sampled = crate::model_runner_output::ModelRunnerOutput {
            failed: vec![(
                crate::scheduler_output::SequenceId(3),
                "NaN in logits".into(),
            )],
            ..Default::default()
        };
        write(&ToCore::StepDone(sampled), &mut bytes).expect("small");
        bytes
    }

    #[test]
    fn a_length_inside_a_body_allocates_nothing_before_its_bytes_are_there() {
        // `Fatal`'s text claims to be as long as a 64-bit number allows.
        let body = [5, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend(KIND_MESSAGE.to_le_bytes());
        bytes.extend(body);
        let mut buffer = FrameBuffer::default();
        buffer.extend(&bytes);
        let refused = buffer.next::<ToCore>();
        assert!(matches!(refused, Err(FrameError::Codec(_))), "{refused:?}");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_at_all_make_it_panic(bytes: Vec<u8>) {
            let mut buffer = FrameBuffer::default();
            buffer.extend(&bytes);
            while let Ok(Some(_)) = buffer.next::<ToCore>() {}
        }

        #[test]
        fn no_damage_to_a_message_makes_it_panic(at: proptest::sample::Index, value: u8, cut: proptest::sample::Index) {
            let mut bytes = message();
            let at = at.index(bytes.len());
            bytes[at] = value;
            bytes.truncate(cut.index(bytes.len()) + 1);
            let mut buffer = FrameBuffer::default();
            buffer.extend(&bytes);
            while let Ok(Some(_)) = buffer.next::<ToCore>() {}
        }
    }
}
