//! What a client may say about how its answer is generated, on every endpoint.

use crate::api_error::{ApiError, shortened};
use crate::fields::Fields;
use crate::prompt::{Prompt, longest_sequence};
use crate::text::StopStrings;
use crate::unsupported_fields;
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::sampling_params::SamplingParams;
use nano_model::SamplingDefaults;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Alternatives that logprobs may name.
pub(crate) const MAX_LOGPROBS: u32 = 20;
const MAX_N: u32 = 128;
const MAX_STOP_STRINGS: usize = 64;
const MAX_STOP_BYTES: usize = 1024;
const MAX_STOP_TOKEN_IDS: usize = 1024;
const MAX_LOGIT_BIAS: usize = 1024;
/// Of a list or an object: more than what they may hold needs.
const MAX_FIELD_BYTES: usize = 1 << 20;
/// Below it, sampling is greedy: dividing by less would overflow.
const GREEDY_BELOW: f32 = 1e-5;

/// What holds for the model that is served.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// Context, vocabulary and KV cache.
    pub info: &'a EngineInfo,
    /// Where the client says nothing.
    pub defaults: &'a SamplingDefaults,
    /// Tokens that end an answer on this endpoint.
    pub eos_token_ids: &'a [u32],
}

/// How the answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// A last chunk says how many tokens there were.
    pub include_usage: bool,
}

/// What a client may say about how its answer is generated. Every range that
/// [`SamplingParams`] names holds.
#[derive(Clone, Debug)]
pub struct GenerationOptions {
    /// Of every sequence; its `seed` is the client's, if `seed_given`.
    pub sampling: SamplingParams,
    /// Whether the client brought a seed.
    pub seed_given: bool,
    /// Sequences a prompt, at least 1.
    pub n: u32,
    /// Fewest tokens before a stop string counts, and most tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Texts that end the answer.
    pub stop: StopStrings,
    /// The client's own part of `sampling.stop_token_ids`.
    pub client_stop_token_ids: Vec<u32>,
    /// Special tokens leave no text.
    pub skip_special_tokens: bool,
    /// `None`: in one piece.
    pub streaming: Option<Streaming>,
    /// Answers carry the token ids.
    pub return_token_ids: bool,
    /// Logprobs name tokens by id.
    pub tokens_as_ids: bool,
    /// Answers say how long what took.
    pub timings: bool,
    /// Lower is served first.
    pub priority: i32,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum StopField {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

impl GenerationOptions {
    /// Reads and checks the fields. `max_tokens` is the value of whatever field
    /// says so on this endpoint, `logprobs` likewise.
    ///
    /// # Errors
    /// Names the field and its range.
    pub fn from_fields(
        fields: &Fields<'_>,
        max_tokens: Option<u32>,
        logprobs: Option<u32>,
        limits: Limits<'_>,
    ) -> Result<GenerationOptions, ApiError> {
        let n = fields.number("n", 1..=MAX_N)?.unwrap_or(1);
        unsupported_fields::check(fields, n)?;
        let stream = fields.flag("stream")?;
        let stream_options: Option<StreamOptions> = fields.get("stream_options")?;
        if stream_options.is_some() && !stream {
            return Err(ApiError::invalid(
                "stream_options",
                "stream_options is only allowed when stream is true",
            ));
        }
        let (sampling, client_stop_token_ids) = sampling(fields, logprobs, limits)?;
        let seed = seed(fields)?;
        if let Some(max_tokens) = max_tokens
            && sampling.min_tokens > max_tokens
        {
            return Err(ApiError::invalid(
                "min_tokens",
                format!(
                    "min_tokens must be at most max_tokens ({max_tokens}), it is {}",
                    sampling.min_tokens
                ),
            ));
        }
        if sampling.prompt_logprobs.is_some() && stream {
            return Err(ApiError::invalid(
                "prompt_logprobs",
                "prompt_logprobs is not available when stream is true",
            ));
        }
        Ok(GenerationOptions {
            sampling: SamplingParams {
                seed: seed.unwrap_or(0),
                ..sampling
            },
            seed_given: seed.is_some(),
            n,
            max_tokens,
            stop: stop(fields)?,
            client_stop_token_ids,
            skip_special_tokens: fields.get("skip_special_tokens")?.unwrap_or(true),
            streaming: stream.then(|| Streaming {
                include_usage: stream_options
                    .and_then(|options| options.include_usage)
                    .unwrap_or(false),
            }),
            return_token_ids: fields.flag("return_token_ids")?,
            tokens_as_ids: fields.flag("return_tokens_as_token_ids")?,
            timings: fields.flag("timings")?,
            priority: fields.number("priority", i32::MIN..=i32::MAX)?.unwrap_or(0),
        })
    }

    /// Most tokens of the answer to this prompt: what the client says,
    /// `default` where it says nothing (`None`: whatever fits).
    ///
    /// # Errors
    /// When prompt and answer together exceed the context.
    pub fn max_tokens_for(
        &self,
        prompt: &Prompt,
        default: Option<u32>,
        info: &EngineInfo,
    ) -> Result<u32, ApiError> {
        let limit = longest_sequence(info);
        let rest = limit - prompt.len();
        let max_tokens = match self.max_tokens {
            Some(asked) if asked > rest => {
                return Err(ApiError::context_length(
                    "max_tokens",
                    format!(
                        "the context has {limit} tokens, but {} were asked for: {} in the prompt, \
                         {asked} in the answer (max_tokens)",
                        u64::from(prompt.len()) + u64::from(asked),
                        prompt.len()
                    ),
                ));
            }
            Some(asked) => asked,
            None => default.map_or(rest, |default| default.min(rest)),
        };
        if self.sampling.min_tokens > max_tokens {
            return Err(ApiError::invalid(
                "min_tokens",
                format!(
                    "min_tokens must be at most max_tokens ({max_tokens} here), it is {}",
                    self.sampling.min_tokens
                ),
            ));
        }
        Ok(max_tokens)
    }
}

/// All but the seed, and the client's own stop tokens.
fn sampling(
    fields: &Fields<'_>,
    logprobs: Option<u32>,
    limits: Limits<'_>,
) -> Result<(SamplingParams, Vec<u32>), ApiError> {
    let defaults = limits.defaults;
    let temperature = fields
        .number("temperature", 0.0..=2.0)?
        .or(defaults.temperature)
        .unwrap_or(1.0);
    let top_p = above_zero(fields, "top_p", 1.0)?
        .or(defaults.top_p)
        .unwrap_or(1.0);
    // -1 is another way to say "all".
    let top_k = fields
        .number("top_k", -1..=i64::from(u32::MAX))?
        .map(|k| k.max(0) as u32)
        .or(defaults.top_k)
        .unwrap_or(0);
    let repetition_penalty = above_zero(fields, "repetition_penalty", 2.0)?
        .or(defaults.repetition_penalty)
        .unwrap_or(1.0);
    let client_stop_token_ids = stop_token_ids(fields, limits.info)?;
    let mut stop_token_ids = client_stop_token_ids.clone();
    if !fields.flag("ignore_eos")? {
        stop_token_ids.extend(limits.eos_token_ids);
    }
    stop_token_ids.sort_unstable();
    stop_token_ids.dedup();
    let sampling = SamplingParams {
        temperature: if temperature < GREEDY_BELOW {
            0.0
        } else {
            temperature
        },
        top_p,
        top_k,
        min_p: fields
            .number("min_p", 0.0..=1.0)?
            .or(defaults.min_p)
            .unwrap_or(0.0),
        seed: 0,
        presence_penalty: fields
            .number("presence_penalty", -2.0..=2.0)?
            .unwrap_or(0.0),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0..=2.0)?
            .unwrap_or(0.0),
        repetition_penalty,
        logit_bias: logit_bias(fields, limits.info)?,
        logprobs,
        prompt_logprobs: fields.number("prompt_logprobs", 0..=MAX_LOGPROBS)?,
        min_tokens: fields.number("min_tokens", 0..=u32::MAX)?.unwrap_or(0),
        stop_token_ids,
    };
    Ok((sampling, client_stop_token_ids))
}

/// A number in `(0, most]`.
fn above_zero(fields: &Fields<'_>, name: &'static str, most: f32) -> Result<Option<f32>, ApiError> {
    match fields.number(name, 0.0..=most)? {
        Some(0.0) => Err(ApiError::invalid(
            name,
            format!("{name} must be greater than 0 and at most {most}, it is 0"),
        )),
        number => Ok(number),
    }
}

/// Any 64-bit integer, signed or not.
fn seed(fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    match fields.get::<u64>("seed") {
        Ok(seed) => Ok(seed),
        Err(_) => Ok(fields.get::<i64>("seed")?.map(i64::cast_unsigned)),
    }
}

fn stop(fields: &Fields<'_>) -> Result<StopStrings, ApiError> {
    const NAME: &str = "stop";
    let stop = match fields.small(NAME, MAX_FIELD_BYTES)? {
        None => Vec::new(),
        Some(StopField::One(stop)) => vec![stop],
        Some(StopField::Many(stop)) => stop,
    };
    if stop.len() > MAX_STOP_STRINGS {
        return Err(ApiError::invalid(
            NAME,
            format!(
                "stop may have {MAX_STOP_STRINGS} strings, it has {}",
                stop.len()
            ),
        ));
    }
    for text in &stop {
        if text.is_empty() || text.len() > MAX_STOP_BYTES {
            return Err(ApiError::invalid(
                NAME,
                format!(
                    "a stop string must have 1 to {MAX_STOP_BYTES} bytes, one has {}",
                    text.len()
                ),
            ));
        }
    }
    Ok(StopStrings::new(
        &stop,
        fields.flag("include_stop_str_in_output")?,
    ))
}

fn stop_token_ids(fields: &Fields<'_>, info: &EngineInfo) -> Result<Vec<u32>, ApiError> {
    const NAME: &str = "stop_token_ids";
    let ids: Vec<u32> = fields.small(NAME, MAX_FIELD_BYTES)?.unwrap_or_default();
    if ids.len() > MAX_STOP_TOKEN_IDS {
        return Err(ApiError::invalid(
            NAME,
            format!(
                "{NAME} may have {MAX_STOP_TOKEN_IDS} ids, it has {}",
                ids.len()
            ),
        ));
    }
    match ids.iter().find(|id| **id >= info.vocab_size) {
        Some(id) => Err(out_of_vocabulary(NAME, &id.to_string(), info)),
        None => Ok(ids),
    }
}

fn logit_bias(fields: &Fields<'_>, info: &EngineInfo) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let biases: BTreeMap<String, f32> = fields.small(NAME, MAX_FIELD_BYTES)?.unwrap_or_default();
    if biases.len() > MAX_LOGIT_BIAS {
        return Err(ApiError::invalid(
            NAME,
            format!(
                "{NAME} may have {MAX_LOGIT_BIAS} entries, it has {}",
                biases.len()
            ),
        ));
    }
    biases
        .into_iter()
        .map(|(key, bias)| {
            let id = key
                .parse()
                .ok()
                .filter(|id| *id < info.vocab_size)
                .ok_or_else(|| out_of_vocabulary(NAME, &key, info))?;
            if !(-100.0..=100.0).contains(&bias) {
                return Err(ApiError::invalid(
                    NAME,
                    format!("{NAME} values must be from -100 to 100, that of {id} is {bias}"),
                ));
            }
            Ok((id, bias))
        })
        .collect()
}

fn out_of_vocabulary(name: &'static str, id: &str, info: &EngineInfo) -> ApiError {
    ApiError::invalid(
        name,
        format!(
            "{name}: {} is no token id of this model, ids are 0 to {}",
            shortened(id),
            info.vocab_size.saturating_sub(1)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::engine_info;
    use proptest::prelude::*;

    const VOCAB_SIZE: u32 = 100;

    fn parse(body: &str, defaults: &SamplingDefaults) -> Result<GenerationOptions, ApiError> {
        let limits = Limits {
            info: &engine_info(VOCAB_SIZE),
            defaults,
            eos_token_ids: &[2, 9],
        };
        let fields = Fields::parse(body.as_bytes())?;
        GenerationOptions::from_fields(&fields, None, None, limits)
    }

    #[test]
    fn the_models_makers_decide_what_the_client_does_not() {
        let defaults = SamplingDefaults {
            temperature: Some(0.5),
            top_p: Some(0.25),
            top_k: Some(7),
            min_p: Some(0.125),
            repetition_penalty: Some(1.5),
        };
        let said = parse("{}", &defaults).expect("legal").sampling;
        let makers = (said.temperature, said.top_p, said.top_k, said.min_p);
        assert_eq!(makers, (0.5, 0.25, 7, 0.125));
        assert_eq!(said.repetition_penalty, 1.5);
        assert_eq!(said.stop_token_ids, [2, 9]);
        let body = r#"{"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "ignore_eos": true,
            "repetition_penalty": 1, "stop_token_ids": [5]}"#;
        let said = parse(body, &defaults).expect("legal").sampling;
        let clients = (said.temperature, said.top_p, said.top_k, said.min_p);
        assert_eq!(clients, (1.0, 1.0, 0, 0.0));
        assert_eq!(said.repetition_penalty, 1.0);
        assert_eq!(said.stop_token_ids, [5]);
        let none = SamplingDefaults::default();
        let said = parse("{}", &none).expect("legal").sampling;
        assert_eq!((said.temperature, said.top_p, said.top_k), (1.0, 1.0, 0));
    }

    #[test]
    fn lists_and_objects_are_not_read_when_they_are_far_too_long() {
        let spaces = " ".repeat(MAX_FIELD_BYTES - 2);
        for (name, open, close) in [
            ("stop", '[', ']'),
            ("stop_token_ids", '[', ']'),
            ("logit_bias", '{', '}'),
        ] {
            let taken = |spaces: &str| {
                let body = format!("{{\"{name}\": {open}{spaces}{close}}}");
                parse(&body, &SamplingDefaults::default()).is_ok()
            };
            assert!(taken(&spaces), "{name}");
            assert!(!taken(&format!("{spaces} ")), "{name}");
        }
    }

    /// A JSON value of any kind, most of them near a bound of something.
    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            (-3.0f64..3.0).prop_map(|number| number.to_string()),
            (-3i64..200).prop_map(|number| number.to_string()),
            any::<i64>().prop_map(|number| number.to_string()),
            any::<f64>().prop_map(|number| format!("{number:e}")),
            prop::sample::select(vec![
                "null",
                "true",
                "false",
                "\"\"",
                "\"x\"",
                "[]",
                "{}",
                "[1, 99]",
                "[100]",
                "[-1]",
                "{\"3\": -100.0}",
                "{\"3\": 1e39}",
                "{\"100\": 1}",
                "[\"a\", \"b\"]",
                "[[\"a\"]]",
                "{\"type\": \"text\"}",
                "{\"include_usage\": true}",
                "1e400",
                "-0.0",
                "1e-40",
            ])
            .prop_map(str::to_owned),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Whatever is not refused obeys every range that the engine relies on.
        #[test]
        fn nothing_out_of_range_passes(
            values in prop::collection::vec((prop::sample::select(vec![
                "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                "repetition_penalty", "logit_bias", "prompt_logprobs", "min_tokens", "n", "seed",
                "stop", "stop_token_ids", "ignore_eos", "stream", "stream_options", "priority",
                "response_format", "skip_special_tokens",
            ]), value()), 0..4)
        ) {
            let members: Vec<String> =
                values.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
            let body = format!("{{{}}}", members.join(", "));
            let options = match parse(&body, &SamplingDefaults::default()) {
                Ok(options) => options,
                Err(error) => {
                    let body = error.body();
                    prop_assert_eq!(&body["error"]["type"], "invalid_request_error");
                    return Ok(());
                }
            };
            let SamplingParams {
                temperature, top_p, top_k: _, min_p, seed: _, presence_penalty, frequency_penalty,
                repetition_penalty, logit_bias, logprobs, prompt_logprobs, min_tokens: _,
                stop_token_ids,
            } = options.sampling;
            prop_assert!(temperature == 0.0 || (GREEDY_BELOW..=2.0).contains(&temperature));
            prop_assert!(top_p > 0.0 && top_p <= 1.0);
            prop_assert!((0.0..=1.0).contains(&min_p));
            prop_assert!((-2.0..=2.0).contains(&presence_penalty));
            prop_assert!((-2.0..=2.0).contains(&frequency_penalty));
            prop_assert!(repetition_penalty > 0.0 && repetition_penalty <= 2.0);
            for (id, bias) in logit_bias {
                prop_assert!(id < VOCAB_SIZE && bias.abs() <= 100.0);
            }
            prop_assert!(logprobs.is_none());
            prop_assert!(prompt_logprobs.is_none_or(|count| count <= MAX_LOGPROBS));
            prop_assert!(stop_token_ids.is_sorted());
            prop_assert!(stop_token_ids.iter().all(|id| *id < VOCAB_SIZE));
            prop_assert!((1..=MAX_N).contains(&options.n));
        }
    }
}
