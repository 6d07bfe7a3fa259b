//! Flight recording, as processes speak of it: what fires a dump, and how
//! things stand.

use nano_trace::SessionName;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// What can be too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RuleKind {
    /// A request's first token, counted from its arrival; the frontend sees it.
    Ttft,
    /// A request's next token, counted from the one before; the frontend sees it.
    Itl,
    /// A request's first step, counted from its arrival at the core, which sees it.
    Queue,
    /// A turn of the core's loop.
    Step,
}

impl RuleKind {
    /// Each, in the order of the trace's labels.
    pub const ALL: [RuleKind; 4] = [
        RuleKind::Ttft,
        RuleKind::Itl,
        RuleKind::Queue,
        RuleKind::Step,
    ];

    /// As operators write it.
    pub fn name(self) -> &'static str {
        nano_trace::FLIGHT_RULES[self as usize]
    }
}

const _: () = assert!(RuleKind::ALL.len() == nano_trace::FLIGHT_RULES.len());

/// `ttft_ms>500`: the limit beyond which something is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// What.
    pub kind: RuleKind,
    /// More than so long; not zero.
    pub limit: Duration,
}

impl Rule {
    /// How the trace's instants show that something took so long: which rule
    /// that breaks, and in microseconds the time and the limit.
    pub fn args(self, value: Duration) -> [u64; 3] {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        [self.kind as u64, micros(value), micros(self.limit)]
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.kind.name(), Millis(self.limit))
    }
}

/// A time in milliseconds, without zeros behind the point.
#[derive(Clone, Copy, Debug)]
pub struct Millis(pub Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_micros() as f64 / 1e3)
    }
}

/// At most one rule of each kind: `ttft_ms>500,step_ms>100`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightRules(Vec<Rule>);

/// A text that is no list of rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRules {
    /// Not of the form of a rule.
    #[error(
        "{0:?} is no rule: rules are like ttft_ms>500 or itl_ms>200,queue_ms>1000,step_ms>100, \
         with milliseconds from 0.001 to 86400000"
    )]
    Form(String),
    /// A second limit for the same.
    #[error("{0} is limited twice")]
    Twice(&'static str),
}

impl FlightRules {
    /// The limit of a kind.
    pub fn limit(&self, kind: RuleKind) -> Option<Duration> {
        let mut rules = self.0.iter();
        rules.find(|rule| rule.kind == kind).map(|rule| rule.limit)
    }

    /// Each rule.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
}

impl FromStr for FlightRules {
    type Err = NotRules;

    fn from_str(text: &str) -> Result<FlightRules, NotRules> {
        let mut rules = FlightRules::default();
        if text.trim().is_empty() {
            return Ok(rules);
        }
        for part in text.split(',') {
            let rule = rule(part).ok_or_else(|| {
                let part = part.trim().chars().take(64).collect();
                NotRules::Form(part)
            })?;
            if rules.limit(rule.kind).is_some() {
                return Err(NotRules::Twice(rule.kind.name()));
            }
            rules.0.push(rule);
        }
        Ok(rules)
    }
}

fn rule(text: &str) -> Option<Rule> {
    const DAY_MS: f64 = 86_400_000.0;
    let (name, limit) = text.split_once('>')?;
    let name = name.trim();
    let kind = RuleKind::ALL.into_iter().find(|kind| kind.name() == name)?;
    let limit_ms: f64 = limit.trim().parse().ok()?;
    let limit = Duration::from_micros((limit_ms * 1e3).round() as u64);
    ((0.001..=DAY_MS).contains(&limit_ms)).then_some(Rule { kind, limit })
}

/// Something was too slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleFired {
    /// The rule.
    pub rule: Rule,
    /// So long it took.
    pub value: Duration,
    /// Which request, as its client sees it; `None`: a step.
    pub request_id: Option<String>,
}

/// What is behind a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TriggerKind {
    /// A client.
    Http,
    /// The operator.
    Sigusr2,
    /// A rule.
    Rule,
    /// A thread of a process.
    Panic,
    /// The end of a process.
    Death,
}

impl TriggerKind {
    /// Each.
    pub const ALL: [TriggerKind; 5] = [
        TriggerKind::Http,
        TriggerKind::Sigusr2,
        TriggerKind::Rule,
        TriggerKind::Panic,
        TriggerKind::Death,
    ];

    /// As traces and metrics show it.
    pub fn name(self) -> &'static str {
        match self {
            TriggerKind::Http => "http",
            TriggerKind::Sigusr2 => "sigusr2",
            TriggerKind::Rule => "rule",
            TriggerKind::Panic => "panic",
            TriggerKind::Death => "death",
        }
    }
}

/// How often things happened in the server's run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightCounts {
    /// By kind, in the order of [`RuleKind::ALL`]: how often each rule fired.
    pub fired: [u64; RuleKind::ALL.len()],
    /// How often no dump was made for it: the minute had had its one, or too
    /// many waited to be made.
    pub suppressed: [u64; RuleKind::ALL.len()],
    /// By trigger, in the order of [`TriggerKind::ALL`]: dumps that were begun.
    pub dumps: [u64; TriggerKind::ALL.len()],
}

/// How flight recording stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightState {
    /// So long is kept.
    pub keep: Duration,
    /// What fires a dump.
    pub rules: FlightRules,
    /// How often that happened.
    pub counts: FlightCounts,
    /// The newest dumps, newest last.
    pub dumps: Vec<DumpMade>,
}

/// A dump that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpMade {
    /// Its session.
    pub session: SessionName,
    /// When it was begun.
    pub at: SystemTime,
    /// What was behind it.
    pub trigger: TriggerKind,
    /// What was too slow, where that was a rule.
    pub fired: Option<RuleFired>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_once_and_for_all() {
        let text = "ttft_ms>500, itl_ms > 200,queue_ms>1000,step_ms>0.5";
        let rules: FlightRules = text.parse().expect("rules");
        let limits = RuleKind::ALL.map(|kind| rules.limit(kind).expect("limited").as_micros());
        assert_eq!(limits, [500_000, 200_000, 1_000_000, 500]);
        let shown: Vec<String> = rules.iter().map(ToString::to_string).collect();
        let expected = ["ttft_ms>500", "itl_ms>200", "queue_ms>1000", "step_ms>0.5"];
        assert_eq!(shown, expected);
        let one: FlightRules = "step_ms>100".parse().expect("a rule");
        assert_eq!(one.limit(RuleKind::Ttft), None);
        assert_eq!(" ".parse(), Ok(FlightRules::default()));
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for (text, named) in [
            ("ttft_ms", "\"ttft_ms\""),
            ("ttft_ms=500", "\"ttft_ms=500\""),
            ("ttft_ms<500", "\"ttft_ms<500\""),
            ("ttft>500", "\"ttft>500\""),
            ("ttft_ms>", "\"ttft_ms>\""),
            ("ttft_ms>-1", "\"ttft_ms>-1\""),
            ("ttft_ms>0", "\"ttft_ms>0\""),
            ("ttft_ms>nan", "\"ttft_ms>nan\""),
            ("ttft_ms>inf", "\"ttft_ms>inf\""),
            ("ttft_ms>1e30", "\"ttft_ms>1e30\""),
            ("step_ms>5,,", "\"\""),
            ("step_ms>5;ttft_ms>5", "\"step_ms>5;ttft_ms>5\""),
            ("step_ms>5,step_ms>6", "step_ms is limited twice"),
        ] {
            let error = text.parse::<FlightRules>().expect_err(text).to_string();
            assert!(error.contains(named) && error.len() < 300, "{error}");
            assert_eq!(error.lines().count(), 1);
        }
    }
}
