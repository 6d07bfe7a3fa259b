//! The body of `POST /start_profile`: our own keys, and those that clients of
//! other servers send.

use crate::api_error::{ApiError, shortened};
use crate::fields::Fields;
use nano_ipc::profile::{Activities, ProcessFilter, StartProfile};
use nano_ipc::step_bounds::{Cycle, MAX_STEPS, Stage, Stages, StepBounds};
use nano_trace::{Detail, SampleRate, SessionName};
use serde_json::Value;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A day.
const MAX_DURATION_MS: u64 = 86_400_000;
/// Bytes of a list of words, or of a schedule.
const LIST_BYTES: usize = 4096;
/// A terabyte.
const MAX_MB: u64 = 1 << 20;
/// Fields that a client is told of.
const MAX_IGNORED: usize = 8;
/// Of stack samples.
const MAX_HZ: u64 = SampleRate::MAX as u64;

/// Reads a body's fields.
///
/// # Errors
/// Names the field that is wrong, and what it may be.
pub fn start_profile(fields: &Fields<'_>) -> Result<StartProfile, ApiError> {
    Ok(StartProfile {
        name: name(fields)?,
        steps: steps(fields)?,
        duration: number(fields, "duration_ms", 1..=MAX_DURATION_MS)?.map(Duration::from_millis),
        max_bytes: number(fields, "max_mb", 1..=MAX_MB)?.map(|mb| mb << 20),
        marked_only: word(fields, "requests", &["all", "marked"])? == Some(1),
        detail: match number(fields, "detail", 1..=2)? {
            Some(2) => Detail::Ops,
            _ => Detail::Steps,
        },
        processes: processes(fields)?,
        activities: activities(fields)?,
        names_directory: fields.raw("output_dir").is_some(),
        // The last to be read.
        ignored: ignored(fields),
    })
}

/// Names of fields that were not read: the first ones.
pub(super) fn ignored(fields: &Fields<'_>) -> Vec<String> {
    let unread = fields.unread().into_iter();
    let shown = unread.take(MAX_IGNORED).map(shortened);
    shown.map(Cow::into_owned).collect()
}

/// `profile_prefix` and `profile_id` are vLLM's and SGLang's.
fn name(fields: &Fields<'_>) -> Result<Option<SessionName>, ApiError> {
    for key in ["name", "profile_prefix", "profile_id"] {
        if let Some(name) = session_name(fields, key)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The field as a session's name.
pub(super) fn session_name(
    fields: &Fields<'_>,
    key: &'static str,
) -> Result<Option<SessionName>, ApiError> {
    let text = fields.get::<String>(key)?;
    let name = text.map(|text| text.parse::<SessionName>()).transpose();
    name.map_err(|error| ApiError::invalid(key, format!("{key}: {error}")))
}

/// `delay_iterations` and `max_iterations` are vLLM's, `start_step` and
/// `profile_by_stage` SGLang's.
fn steps(fields: &Fields<'_>) -> Result<Option<StepBounds>, ApiError> {
    let steps = 0..=MAX_STEPS;
    let delay = number(fields, "delay_steps", steps.clone())?;
    let delay = delay.or(number(fields, "delay_iterations", steps.clone())?);
    let count = number(fields, "num_steps", 1..=MAX_STEPS)?;
    // There, 0 is no bound.
    let count = count.or(number(fields, "max_iterations", steps.clone())?);
    let first_step = number(fields, "start_step", steps)?;
    let by_stage = fields.flag("profile_by_stage")?;
    let stages = match word(fields, "stage", &["all", "prefill", "decode"])? {
        Some(1) => Stages::Only(Stage::Prefill),
        Some(2) => Stages::Only(Stage::Decode),
        None if by_stage => Stages::Each,
        _ => Stages::All,
    };
    let cycle = match (count.and_then(NonZeroU64::new), schedule(fields)?) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid(
                "schedule",
                "schedule and num_steps exclude each other",
            ));
        }
        (Some(record), None) => Some(Cycle {
            skip: 0,
            record,
            repeat: Some(NonZeroU64::MIN),
        }),
        (None, schedule) => schedule,
    };
    let bounds = StepBounds {
        first_step: first_step.unwrap_or(0),
        stages,
        delay: delay.unwrap_or(0),
        cycle,
    };
    // Both stages without a number are all steps.
    let is_everything = StepBounds {
        stages: Stages::All,
        ..bounds
    } == StepBounds::default()
        && !matches!(stages, Stages::Only(_));
    Ok((!is_everything).then_some(bounds))
}

/// `{"wait": 1, "warmup": 1, "active": 3, "repeat": 1}`, or the same as a text.
fn schedule(fields: &Fields<'_>) -> Result<Option<Cycle>, ApiError> {
    const NAME: &str = "schedule";
    let wrong = |error: &dyn std::fmt::Display| ApiError::invalid(NAME, format!("{NAME}: {error}"));
    match fields.small::<Value>(NAME, LIST_BYTES)? {
        None => Ok(None),
        Some(Value::String(text)) => text.parse().map(Some).map_err(|error| wrong(&error)),
        Some(Value::Object(parts)) => {
            let parts = parts.iter().map(|(name, value)| {
                let number = value
                    .as_u64()
                    .or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
                (name.as_str(), number)
            });
            let cycle = Cycle::from_schedule(parts);
            cycle.map(Some).map_err(|error| wrong(&error))
        }
        Some(_) => Err(wrong(&"must be an object or a text")),
    }
}

fn processes(fields: &Fields<'_>) -> Result<Vec<ProcessFilter>, ApiError> {
    const NAME: &str = "processes";
    words(fields, NAME)?
        .iter()
        .map(|word| {
            word.parse().map_err(|error| {
                let word = shortened(word);
                ApiError::invalid(NAME, format!("{NAME}: {word:?} is none: {error}"))
            })
        })
        .collect()
}

/// `sample_hz` asks for samples too.
fn activities(fields: &Fields<'_>) -> Result<Activities, ApiError> {
    const NAME: &str = "activities";
    let mut activities = Activities::default();
    for word in words(fields, NAME)? {
        match word.to_ascii_lowercase().as_str() {
            "cpu" => {}
            "gpu" | "cuda" => activities.gpu = true,
            "samples" => activities.samples = Some(SampleRate::DEFAULT),
            // SGLang's: other profilers.
            "mem" | "rpd" | "cuda_profiler" => activities.foreign = true,
            other => {
                let other = shortened(other);
                let message = format!("{NAME} are cpu, gpu and samples, not {other:?}");
                return Err(ApiError::invalid(NAME, message));
            }
        }
    }
    let hz = number(fields, "sample_hz", 1..=MAX_HZ)?;
    let rate = hz.and_then(|hz| SampleRate::try_from(u32::try_from(hz).ok()?).ok());
    activities.samples = rate.or(activities.samples);
    Ok(activities)
}

fn words(fields: &Fields<'_>, name: &'static str) -> Result<Vec<String>, ApiError> {
    let list = match fields.small::<Value>(name, LIST_BYTES)? {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(no_list(name)),
    };
    let words = list.into_iter().map(|word| match word {
        Value::String(word) => Ok(word),
        _ => Err(no_list(name)),
    });
    words.collect()
}

fn no_list(name: &'static str) -> ApiError {
    ApiError::invalid(name, format!("{name} must be a list of words"))
}

/// The field as one of some words, in any case: which one.
fn word(
    fields: &Fields<'_>,
    name: &'static str,
    words: &[&str],
) -> Result<Option<usize>, ApiError> {
    let Some(text) = fields.get::<String>(name)? else {
        return Ok(None);
    };
    let place = words
        .iter()
        .position(|word| word.eq_ignore_ascii_case(&text));
    match place {
        Some(place) => Ok(Some(place)),
        None => Err(ApiError::invalid(
            name,
            format!(
                "{name} must be {}, it is {:?}",
                words.join(" or "),
                shortened(&text)
            ),
        )),
    }
}

/// The field as a number, which may come as a text.
pub(super) fn number(
    fields: &Fields<'_>,
    name: &'static str,
    range: RangeInclusive<u64>,
) -> Result<Option<u64>, ApiError> {
    let is_text = |value: &&serde_json::value::RawValue| value.get().starts_with('"');
    if fields.raw(name).filter(is_text).is_none() {
        return fields.number(name, range);
    }
    let text: String = fields.get(name)?.unwrap_or_default();
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| range.contains(number));
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(ApiError::invalid(
            name,
            format!(
                "{name} must be from {} to {}, it is {:?}",
                range.start(),
                range.end(),
                shortened(&text)
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<StartProfile, ApiError> {
        start_profile(&Fields::parse(body.as_bytes()).expect("an object"))
    }

    #[track_caller]
    fn good(body: &str) -> StartProfile {
        read(body).unwrap_or_else(|error| panic!("{body}: {error:?}"))
    }

    fn recorded(record: u64) -> Option<Cycle> {
        Some(Cycle {
            skip: 0,
            record: NonZeroU64::new(record).expect("not 0"),
            repeat: Some(NonZeroU64::MIN),
        })
    }

    #[test]
    fn what_is_not_said_has_no_bounds() {
        for body in [
            "{}",
            r#"{"name": null, "num_steps": null, "activities": null}"#,
            // Old clients send a completion; SGLang a directory.
            r#"{"model": "m", "prompt": "x", "max_tokens": 5, "stream": true, "stream_options": {}}"#,
            r#"{"output_dir": "/etc", "activities": ["CPU"], "profile_by_stage": false, "with_stack": true, "record_shapes": true, "merge_profiles": false}"#,
            r#"{"max_iterations": 0, "delay_iterations": 0, "profile_by_stage": true, "stage": "all", "requests": "all", "detail": 1}"#,
        ] {
            let start = good(body);
            let expected = StartProfile {
                names_directory: body.contains("output_dir"),
                ignored: start.ignored.clone(),
                ..StartProfile::default()
            };
            assert_eq!(start, expected, "{body}");
        }
    }

    #[test]
    fn what_means_nothing_is_told_and_not_all_of_much() {
        let start = good(r#"{"num_steps": 4, "num_step": 5, "with_stack": true, "name": null}"#);
        assert_eq!(start.ignored, ["num_step", "with_stack"]);
        let many: Vec<String> = (0..100)
            .map(|n| format!("\"{n}{}\": 0", "x".repeat(500)))
            .collect();
        let start = good(&format!("{{{}}}", many.join(",")));
        assert_eq!(start.ignored.len(), MAX_IGNORED);
        assert!(
            start.ignored.iter().all(|name| name.len() < 110),
            "{start:?}"
        );
    }

    #[test]
    fn every_key_is_read_and_so_are_those_of_other_servers() {
        let start = good(
            r#"{"name": "a.b-1", "num_steps": 4, "delay_steps": 2, "duration_ms": 1500, "max_mb": 3,
                "stage": "Decode", "requests": "marked", "processes": ["worker-0", "core"],
                "activities": ["Cpu", "GPU", "samples"], "detail": 2, "start_step": 9}"#,
        );
        assert_eq!(start.name, Some("a.b-1".parse().expect("a name")));
        let bounds = StepBounds {
            first_step: 9,
            stages: Stages::Only(Stage::Decode),
            delay: 2,
            cycle: recorded(4),
        };
        assert_eq!(start.steps, Some(bounds));
        assert_eq!(start.duration, Some(Duration::from_millis(1500)));
        assert_eq!(start.max_bytes, Some(3 << 20));
        assert!(start.marked_only);
        assert_eq!(start.detail, Detail::Ops);
        assert_eq!(start.processes.len(), 2);
        assert!(start.activities.gpu);
        assert_eq!(start.activities.samples, Some(SampleRate::DEFAULT));

        let sglang = good(
            r#"{"num_steps": " 5 ", "start_step": "3", "profile_by_stage": true, "profile_id": "1735.12", "profile_prefix": null}"#,
        );
        assert_eq!(sglang.name, Some("1735.12".parse().expect("a name")));
        let bounds = StepBounds {
            first_step: 3,
            stages: Stages::Each,
            delay: 0,
            cycle: recorded(5),
        };
        assert_eq!(sglang.steps, Some(bounds));

        let vllm = good(r#"{"profile_prefix": "run", "delay_iterations": 7, "max_iterations": 8}"#);
        assert_eq!(vllm.name, Some("run".parse().expect("a name")));
        let bounds = StepBounds {
            delay: 7,
            cycle: recorded(8),
            ..StepBounds::default()
        };
        assert_eq!(vllm.steps, Some(bounds));

        for body in [
            r#"{"activities": ["SAMPLES"], "sample_hz": 999}"#,
            r#"{"sample_hz": " 999 "}"#,
        ] {
            let rate = good(body).activities.samples.map(SampleRate::hz);
            assert_eq!(rate, Some(999), "{body}");
        }

        for body in [
            r#"{"schedule": {"wait": 1, "warmup": "1", "active": 3, "repeat": 2}}"#,
            r#"{"schedule": "wait=1,warmup=1,active=3,repeat=2"}"#,
        ] {
            let cycle = good(body).steps.and_then(|steps| steps.cycle);
            assert_eq!(
                cycle,
                "wait=1,warmup=1,active=3,repeat=2".parse().ok(),
                "{body}"
            );
        }
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_field_and_its_limit() {
        let long = format!(r#"{{"name": "{}"}}"#, "x".repeat(1 << 20));
        for (body, field, limit) in [
            (r#"{"name": "../x"}"#, "name", "1 to 128 characters"),
            (r#"{"name": ""}"#, "name", "1 to 128 characters"),
            (r#"{"name": 7}"#, "name", "expected a string"),
            (&long, "name", "1 to 128 characters"),
            (r#"{"profile_prefix": "a b"}"#, "profile_prefix", "1 to 128"),
            (r#"{"profile_id": "-"}"#, "profile_id", "1 to 128"),
            (r#"{"num_steps": 0}"#, "num_steps", "from 1 to 1000000000"),
            (r#"{"num_steps": "0"}"#, "num_steps", "from 1 to 1000000000"),
            (
                r#"{"num_steps": "ten"}"#,
                "num_steps",
                "from 1 to 1000000000",
            ),
            (r#"{"num_steps": -1}"#, "num_steps", "from 1 to 1000000000"),
            (r#"{"num_steps": 1.5}"#, "num_steps", "an integer"),
            (r#"{"num_steps": [1]}"#, "num_steps", "expected"),
            (r#"{"delay_steps": 1e30}"#, "delay_steps", "an integer"),
            (
                r#"{"delay_iterations": "-1"}"#,
                "delay_iterations",
                "from 0 to",
            ),
            (
                r#"{"max_iterations": 1000000001}"#,
                "max_iterations",
                "from 0 to",
            ),
            (r#"{"start_step": "x"}"#, "start_step", "from 0 to"),
            (r#"{"duration_ms": 0}"#, "duration_ms", "from 1 to 86400000"),
            (r#"{"max_mb": 0}"#, "max_mb", "from 1 to 1048576"),
            (r#"{"detail": 3}"#, "detail", "from 1 to 2"),
            (r#"{"sample_hz": 0}"#, "sample_hz", "from 1 to 1000"),
            (r#"{"sample_hz": "1001"}"#, "sample_hz", "from 1 to 1000"),
            (r#"{"stage": "warm"}"#, "stage", "all or prefill or decode"),
            (r#"{"requests": "some"}"#, "requests", "all or marked"),
            (
                r#"{"processes": "core"}"#,
                "processes",
                "must be a list of words",
            ),
            (
                r#"{"processes": ["launcher"]}"#,
                "processes",
                "`frontend`, `core`",
            ),
            (
                r#"{"activities": ["tpu"]}"#,
                "activities",
                "cpu, gpu and samples",
            ),
            (
                r#"{"profile_by_stage": 3}"#,
                "profile_by_stage",
                "expected a boolean",
            ),
            (r#"{"schedule": 3}"#, "schedule", "an object or a text"),
            (
                r#"{"schedule": {"active": -3}}"#,
                "schedule",
                "the number of active",
            ),
            (
                r#"{"schedule": "active=1", "num_steps": 1}"#,
                "schedule",
                "exclude",
            ),
        ] {
            let error = read(body).expect_err(body);
            let answer = error.body();
            assert_eq!(answer["error"]["param"], field, "{body}: {answer}");
            let message = error.message();
            assert!(
                message.contains(limit) && message.contains(field),
                "{message}"
            );
            assert!(message.len() < 600, "{message}");
        }
    }
}
