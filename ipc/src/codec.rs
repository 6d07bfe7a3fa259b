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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler_output::{
        BlockId, NewSequence, ScheduledSequence, SchedulerOutput, SequenceId, StepId,
    };
    use crate::to_worker::ToWorker;

    #[test]
    fn a_message_comes_back_as_it_was_and_only_whole() {
        let message = ToWorker::Step(SchedulerOutput {
            step_id: StepId(u64::MAX),
            finished: vec![SequenceId(1), SequenceId(300)],
            new: vec![NewSequence {
                id: SequenceId(7),
                trace_key: 9,
                token_ids: vec![0, 250, 251, 65_536, u32::MAX],
                num_prompt_tokens: 5,
                num_computed_tokens: 4,
                block_ids: vec![BlockId(0), BlockId(u32::MAX)],
                sampling: crate::sampling_params::SamplingParams {
                    temperature: 0.1,
                    top_p: 1.0,
                    top_k: 0,
                    min_p: 0.0,
                    seed: 1 << 63,
                    presence_penalty: -2.0,
                    frequency_penalty: 0.0,
                    repetition_penalty: 1.0,
                    logit_bias: vec![(3, -100.0)],
                    logprobs: Some(0),
                    prompt_logprobs: None,
                    min_tokens: 0,
                    stop_token_ids: vec![2],
                },
            }],
            scheduled: vec![ScheduledSequence {
                id: SequenceId(7),
                num_tokens: 1,
                new_block_ids: vec![],
            }],
        });
        let mut body = Vec::new();
        encode(&message, &mut body).expect("small");
        assert_eq!(decode::<ToWorker>(&body).expect("whole"), message);
        for length in 0..body.len() {
            let cut = decode::<ToWorker>(&body[..length]);
            assert!(
                matches!(cut, Err(CodecError::Decode(_))),
                "{length} bytes: {cut:?}"
            );
        }
        body.push(0);
        let longer = decode::<ToWorker>(&body);
        assert!(matches!(longer, Err(CodecError::Trailing(1))), "{longer:?}");
    }
}
