//! Which steps a profile session records.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::str::FromStr;

/// What a step computes. One that computes any token of a prompt is prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Some of its tokens are of prompts.
    Prefill,
    /// All of its tokens were sampled by earlier steps.
    Decode,
}

/// Which steps count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stages {
    /// All, together.
    #[default]
    All,
    /// Those of one stage; the others are not recorded.
    Only(Stage),
    /// Each stage for itself: so many of the one and so many of the other.
    Each,
}

/// Which steps a profile session records, as the core counts them. Steps that
/// run nothing do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepBounds {
    /// Steps with smaller numbers do not count.
    pub first_step: u64,
    /// Steps of other stages do not count.
    pub stages: Stages,
    /// So many that count are passed over first.
    pub delay: u64,
    /// What follows; all of it where there is none.
    pub cycle: Option<Cycle>,
}

/// Steps that are passed over, steps that are recorded, and that again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cycle {
    /// Steps that are passed over.
    pub skip: u64,
    /// Steps that are recorded then.
    pub record: NonZeroU64,
    /// How many times; `None`: until the session ends.
    pub repeat: Option<NonZeroU64>,
}

/// Largest number of steps in a bound.
pub const MAX_STEPS: u64 = 1_000_000_000;

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a schedule is `wait=1,warmup=1,active=3,repeat=1` with numbers up to {MAX_STEPS}, active from 1 on: {0}"
)]
pub struct WrongSchedule(String);

impl Cycle {
    /// Of the numbers that PyTorch's profiler takes by these names: steps that
    /// it sleeps, that it warms up, that it records, and how many times; `repeat`
    /// 0 is without end. One that is absent is 0, but for `repeat`, which is 1.
    ///
    /// # Errors
    /// When nothing is recorded, or a name or number is wrong.
    pub fn from_schedule<'a>(
        parts: impl IntoIterator<Item = (&'a str, Option<u64>)>,
    ) -> Result<Cycle, WrongSchedule> {
        let [mut wait, mut warmup, mut active, mut repeat] = [0, 0, 0, 1];
        for (name, number) in parts {
            let place = match name {
                "wait" => &mut wait,
                "warmup" => &mut warmup,
                "active" => &mut active,
                "repeat" => &mut repeat,
                _ => return Err(WrongSchedule(format!("{:?} is none of these", short(name)))),
            };
            *place = number
                .filter(|number| *number <= MAX_STEPS)
                .ok_or_else(|| WrongSchedule(format!("the number of {name}")))?;
        }
        Ok(Cycle {
            skip: wait + warmup,
            record: NonZeroU64::new(active)
                .ok_or_else(|| WrongSchedule("active is missing or 0".to_owned()))?,
            repeat: NonZeroU64::new(repeat),
        })
    }
}

impl FromStr for Cycle {
    type Err = WrongSchedule;

    fn from_str(text: &str) -> Result<Cycle, WrongSchedule> {
        Cycle::from_schedule(text.split(',').map(|part| {
            let (name, number) = part.split_once('=').unwrap_or((part, ""));
            (name.trim(), number.trim().parse().ok())
        }))
    }
}

/// So much of a foreign word as a message can hold.
fn short(word: &str) -> &str {
    &word[..word.floor_char_boundary(40)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(skip: u64, record: u64, repeat: u64) -> Cycle {
        let some = |number| NonZeroU64::new(number).expect("not 0");
        Cycle {
            skip,
            record: some(record),
            repeat: NonZeroU64::new(repeat),
        }
    }

    #[test]
    fn schedules_are_read() {
        for (text, expected) in [
            ("wait=1,warmup=1,active=3,repeat=1", cycle(2, 3, 1)),
            (" active = 2 , wait = 4 ", cycle(4, 2, 1)),
            ("active=1,repeat=0", cycle(0, 1, 0)),
            ("active=1000000000,repeat=7", cycle(0, 1_000_000_000, 7)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_schedule_says_why() {
        let long = "x".repeat(1000);
        for (text, word) in [
            ("", "\"\" is none of these"),
            ("wait=1", "active is missing"),
            ("active=0", "active is missing or 0"),
            ("active=-1", "the number of active"),
            ("active=1000000001", "the number of active"),
            ("active=1,active", "the number of active"),
            ("active=1,idle=2", "\"idle\" is none of these"),
            (&long, "xxx"),
        ] {
            let message = text.parse::<Cycle>().expect_err(text).to_string();
            assert!(message.contains(word) && message.len() < 250, "{message}");
        }
    }
}
