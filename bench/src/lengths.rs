//! How long prompts or answers are.

use crate::workload::random::Random;
use rand::RngExt;
use rand_distr::{Distribution, Normal};
use serde::{Serialize, Serializer};
use std::fmt;
use std::fs;
use std::str::FromStr;

/// A distribution of lengths in tokens; each is at least 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// Always this one.
    Fixed(u32),
    /// Each from `min` to `max` equally often.
    Uniform {
        /// The shortest.
        min: u32,
        /// The longest.
        max: u32,
    },
    /// A normal distribution, rounded.
    Normal {
        /// Its mean.
        mean: u32,
        /// Its standard deviation.
        std: u32,
    },
    /// One of these, each equally often.
    Sampled {
        /// The file that they came from.
        path: String,
        /// Not empty.
        lengths: Vec<u32>,
    },
}

impl Lengths {
    /// One length.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let length = match self {
            Lengths::Fixed(length) => *length,
            Lengths::Uniform { min, max } => random.random_range(*min..=*max),
            // A standard deviation that is finite and no less than 0 is always good.
            Lengths::Normal { mean, std } => Normal::new(f64::from(*mean), f64::from(*std))
                .map_or(*mean, |normal| normal.sample(random).round() as u32),
            Lengths::Sampled { lengths, .. } => {
                let place = random.random_range(0..lengths.len().max(1));
                lengths.get(place).copied().unwrap_or(1)
            }
        };
        length.max(1)
    }
}

/// Why a text describes no lengths.
#[derive(Debug, thiserror::Error)]
pub enum NoLengths {
    /// Another form.
    #[error("{0:?} is not of the form 128, 64..256, normal:128,16 or sampled:FILE")]
    Form(String),
    /// Zero tokens, or a range that ends before it begins.
    #[error("{0:?}: lengths are 1 or more, and a range ends no earlier than it begins")]
    Range(String),
    /// The file of lengths does not help.
    #[error("sampled:{path}: {why}")]
    File {
        /// Which.
        path: String,
        /// What is wrong.
        why: String,
    },
}

impl FromStr for Lengths {
    type Err = NoLengths;

    fn from_str(text: &str) -> Result<Lengths, NoLengths> {
        let form = || NoLengths::Form(text.to_owned());
        let number = |part: &str| part.trim().parse::<u32>().map_err(|_| form());
        let lengths = if let Some(path) = text.strip_prefix("sampled:") {
            return sampled(path);
        } else if let Some(rest) = text.strip_prefix("normal:") {
            let (mean, std) = rest.split_once(',').ok_or_else(form)?;
            Lengths::Normal {
                mean: number(mean)?,
                std: number(std)?,
            }
        } else if let Some((min, max)) = text.split_once("..") {
            Lengths::Uniform {
                min: number(min)?,
                max: number(max)?,
            }
        } else {
            Lengths::Fixed(number(text)?)
        };
        let good = match &lengths {
            Lengths::Fixed(length) => *length > 0,
            Lengths::Uniform { min, max } => *min > 0 && min <= max,
            Lengths::Normal { mean, .. } => *mean > 0,
            Lengths::Sampled { .. } => true,
        };
        good.then_some(lengths)
            .ok_or_else(|| NoLengths::Range(text.to_owned()))
    }
}

/// Lengths of a file with one a line.
fn sampled(path: &str) -> Result<Lengths, NoLengths> {
    let wrong = |why: String| NoLengths::File {
        path: path.to_owned(),
        why,
    };
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let lengths = lines
        .map(|(place, line)| match line.trim().parse::<u32>() {
            Ok(length @ 1..) => Ok(length),
            _ => Err(wrong(format!("line {}: {line:?} is no length", place + 1))),
        })
        .collect::<Result<Vec<u32>, NoLengths>>()?;
    if lengths.is_empty() {
        return Err(wrong("holds no length".to_owned()));
    }
    Ok(Lengths::Sampled {
        path: path.to_owned(),
        lengths,
    })
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(length) => write!(f, "{length}"),
            Lengths::Uniform { min, max } => write!(f, "{min}..{max}"),
            Lengths::Normal { mean, std } => write!(f, "normal:{mean},{std}"),
            Lengths::Sampled { path, .. } => write!(f, "sampled:{path}"),
        }
    }
}

impl Serialize for Lengths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::random::{Purpose, random};

    fn draws(text: &str) -> Vec<u32> {
        let lengths: Lengths = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(lengths.to_string(), text);
        (0..2000)
            .map(|index| lengths.draw(&mut random(1, Purpose::Measured, index)))
            .collect()
    }

    #[test]
    fn draws_follow_the_distribution() {
        assert!(draws("7").iter().all(|&length| length == 7));
        let uniform = draws("3..5");
        for length in 3..=5 {
            let count = uniform.iter().filter(|&&drawn| drawn == length).count();
            assert!((500..850).contains(&count), "{count} of {length}");
        }
        let normal = draws("normal:100,10");
        let mean = f64::from(normal.iter().sum::<u32>()) / normal.len() as f64;
        assert!((99.0..101.0).contains(&mean), "{mean}");
        let near = normal
            .iter()
            .filter(|&&drawn| drawn.abs_diff(100) <= 10)
            .count();
        assert!((1200..1500).contains(&near), "{near} within one deviation");
        // The left tail is cut at one token.
        assert!(draws("normal:1,50").contains(&1));
    }

    #[test]
    fn sampled_lengths_come_from_their_file() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        fs::write(file.path(), "5\n\n9\n").expect("written");
        let text = format!("sampled:{}", file.path().display());
        let drawn = draws(&text);
        assert!(drawn.contains(&5) && drawn.contains(&9));
        assert!(drawn.iter().all(|length| [5, 9].contains(length)));
        for bad in ["", "5\n0\n", "x"] {
            fs::write(file.path(), bad).expect("written");
            assert!(text.parse::<Lengths>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_length_is_refused() {
        for text in [
            "",
            "0",
            "-1",
            "5..3",
            "0..3",
            "normal:5",
            "normal:0,1",
            "a",
            "sampled:/none",
        ] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }
}
