//! The flight recorder's part of the controller: when a dump is made, of which
//! interval, and what is told of it.
//!
//! Invariants:
//! - rules fire at most one dump in [`BETWEEN_DUMPS_BY_RULE`], panics too;
//! - at most [`MAX_WAITING`] dumps have been ordered and not made, for however
//!   long a disk hangs;
//! - every client that asked for one is answered, in [`MADE_WITHIN`] at the latest;
//! - frontends are told counts once a tick, however often rules fire.

use super::gathering::Asker;
use super::{Action, Now, ProfileController, names, note_of};
use crate::dumper::{DumpOrder, Dumped};
use nano_ipc::flight::{
    DumpMade, FlightCounts, FlightRules, FlightState, Millis, RuleFired, TriggerKind,
};
use nano_ipc::profile::{
    Part, ProfileAnswer, ProfilePhase, ProfileState, SessionOfProcess, SessionOfServer,
};
use nano_ipc::role::Role;
use nano_ipc::to_child::ToChild;
use nano_trace::{SessionName, SessionState, SessionStatus};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// See the module.
pub(super) const BETWEEN_DUMPS_BY_RULE: Duration = Duration::from_secs(60);

/// Dumps that may be ordered and not made.
pub(super) const MAX_WAITING: usize = 4;

/// So long may a dump take until nobody waits for it any more.
pub(super) const MADE_WITHIN: Duration = Duration::from_secs(30);

/// Dumps that the status names.
const NAMED: usize = 16;

/// A process's panic is behind its death if it comes so shortly before.
const LAST_PANIC: Duration = Duration::from_secs(2);

/// What is kept, what fires a dump, and what came of it.
#[derive(Debug)]
pub(super) struct Flight {
    keep: Duration,
    rules: FlightRules,
    counts: FlightCounts,
    /// Frontends do not know the counts yet.
    counts_changed: bool,
    waiting: Vec<Waiting>,
    /// Newest last.
    made: VecDeque<DumpMade>,
    num_ordered: u32,
    last_by_rule: Option<Instant>,
    /// Whose panic was dumped last, and when.
    last_by_panic: Option<(u32, Instant)>,
    /// What is to be written when all processes are gone.
    of_death: Option<DumpOrder>,
    /// When the first death was known.
    died_at: Option<Instant>,
}

/// A dump that is not made yet.
#[derive(Debug)]
struct Waiting {
    number: u32,
    name: SessionName,
    /// What was behind it, in words.
    why: String,
    /// `None`: nobody.
    asker: Option<Asker>,
    /// What who asked should know of how that was understood.
    notes: Vec<String>,
    /// Who asked waits until then; `None`: it takes longer, and is still to be made.
    until: Option<Instant>,
}

/// What is behind a dump.
#[derive(Debug)]
enum Trigger {
    Http,
    Sigusr2,
    Rule(RuleFired),
    Panic(String),
    /// Its reason is known when all processes are gone.
    Death,
}

impl Trigger {
    fn kind(&self) -> TriggerKind {
        match self {
            Trigger::Http => TriggerKind::Http,
            Trigger::Sigusr2 => TriggerKind::Sigusr2,
            Trigger::Rule(_) => TriggerKind::Rule,
            Trigger::Panic(_) => TriggerKind::Panic,
            Trigger::Death => TriggerKind::Death,
        }
    }

    /// The rule.
    fn fired(&self) -> Option<&RuleFired> {
        match self {
            Trigger::Rule(fired) => Some(fired),
            Trigger::Http | Trigger::Sigusr2 | Trigger::Panic(_) | Trigger::Death => None,
        }
    }

    /// What files say of it.
    fn facts(&self) -> Vec<(String, String)> {
        let fact = |key: &str, value: String| (key.to_owned(), value);
        let mut facts = vec![fact("trigger", self.kind().name().to_owned())];
        match self {
            Trigger::Http | Trigger::Sigusr2 | Trigger::Death => {}
            Trigger::Rule(fired) => {
                facts.push(fact("rule", fired.rule.to_string()));
                facts.push(fact("value_ms", Millis(fired.value).to_string()));
                if let Some(id) = &fired.request_id {
                    facts.push(fact("request_id", id.clone()));
                }
            }
            Trigger::Panic(text) => facts.push(reason(text)),
        }
        facts
    }

    /// In words.
    fn why(&self) -> String {
        match self {
            Trigger::Http => "POST /profile/dump".to_owned(),
            Trigger::Sigusr2 => "SIGUSR2".to_owned(),
            Trigger::Rule(fired) => {
                let value = Millis(fired.value);
                match &fired.request_id {
                    Some(id) => format!("{}: {value} ms, request {id}", fired.rule),
                    None => format!("{}: {value} ms", fired.rule),
                }
            }
            Trigger::Panic(text) => format!("panic: {text}"),
            Trigger::Death => "death".to_owned(),
        }
    }
}

fn reason(text: &str) -> (String, String) {
    ("reason".to_owned(), text.to_owned())
}

impl Flight {
    pub(super) fn new(keep: Duration, rules: FlightRules) -> Flight {
        Flight {
            keep,
            rules,
            counts: FlightCounts::default(),
            counts_changed: false,
            waiting: Vec::new(),
            made: VecDeque::new(),
            num_ordered: 0,
            last_by_rule: None,
            last_by_panic: None,
            of_death: None,
            died_at: None,
        }
    }

    pub(super) fn next_tick(&self) -> Option<Instant> {
        let waiting = self.waiting.iter();
        waiting.filter_map(|waiting| waiting.until).min()
    }

    pub(super) fn state(&self) -> FlightState {
        FlightState {
            keep: self.keep,
            rules: self.rules.clone(),
            counts: self.counts.clone(),
            dumps: self.made.iter().cloned().collect(),
        }
    }

    /// Whether one is allowed now by what may fire one in a while only.
    fn admits(last: Option<Instant>, now: Now) -> bool {
        last.is_none_or(|last| now.instant.duration_since(last) >= BETWEEN_DUMPS_BY_RULE)
    }

    /// Whether the dump of a process's panic shows how it died.
    fn has_dumped_end_of(&self, pid: u32) -> bool {
        let (Some((panicked, last)), Some(died)) = (self.last_by_panic, self.died_at) else {
            return false;
        };
        panicked == pid && died.duration_since(last) < LAST_PANIC
    }
}

impl ProfileController {
    /// A client wants a dump.
    pub(super) fn dump_asked(
        &mut self,
        now: Now,
        asker: Asker,
        name: Option<SessionName>,
        reach: Option<Duration>,
        ignored: &[String],
    ) {
        match &self.flight {
            None => self.answer(&asker, ProfileAnswer::NoFlight),
            Some(flight) if flight.waiting.len() >= MAX_WAITING => {
                self.answer(&asker, ProfileAnswer::DumpsWait(MAX_WAITING));
            }
            Some(flight) => {
                let beyond = reach.filter(|reach| *reach > flight.keep).map(|_| {
                    let keep = flight.keep;
                    format!("seconds: the last {keep:?} are kept (NANO_PROFILER_FLIGHT_SECONDS)")
                });
                let notes = beyond.into_iter().chain(note_of(ignored)).collect();
                let asked = Some((asker, notes));
                self.dump(now, Trigger::Http, asked, name, reach);
            }
        }
    }

    /// The operator's signal for a dump.
    pub fn dump_signalled(&mut self, now: Now) {
        match &self.flight {
            None => self.log(
                "SIGUSR2: nothing is kept that could be dumped (NANO_PROFILER_MODE=flight with \
                 NANO_PROFILER_DIR keeps the last seconds)"
                    .to_owned(),
            ),
            Some(flight) if flight.waiting.len() >= MAX_WAITING => {
                self.log(format!("SIGUSR2: {MAX_WAITING} dumps wait to be made"));
            }
            Some(_) => self.dump(now, Trigger::Sigusr2, None, None, None),
        }
    }

    /// Something was slower than a rule allows.
    pub(super) fn rule_fired(&mut self, now: Now, fired: RuleFired) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        let kind = fired.rule.kind as usize;
        flight.counts.fired[kind] += 1;
        let has_room = flight.waiting.len() < MAX_WAITING;
        if has_room && Flight::admits(flight.last_by_rule, now) {
            flight.last_by_rule = Some(now.instant);
            self.dump(now, Trigger::Rule(fired), None, None, None);
        } else {
            flight.counts.suppressed[kind] += 1;
            flight.counts_changed = true;
        }
    }

    /// A thread of a process has panicked.
    pub(super) fn panicked(&mut self, now: Now, pid: u32, text: String) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        let last = flight.last_by_panic.map(|(_, at)| at);
        if flight.waiting.len() >= MAX_WAITING {
            self.log(format!(
                "flight recorder: a panic is not dumped: {MAX_WAITING} dumps wait to be made"
            ));
        } else if Flight::admits(last, now) {
            flight.last_by_panic = Some((pid, now.instant));
            self.dump(now, Trigger::Panic(text), None, None, None);
        } else {
            self.log(format!(
                "flight recorder: a panic is not dumped: another was less than \
                 {BETWEEN_DUMPS_BY_RULE:?} ago"
            ));
        }
    }

    /// The server ends because a process died or failed. What all processes kept
    /// is to be written once they are gone: they record until then, and cannot be
    /// waited for. See [`Self::take_dump_of_death`].
    pub fn died(&mut self, now: Now) {
        let flight = self.flight.as_ref();
        if flight.is_none_or(|flight| flight.died_at.is_some()) {
            return;
        }
        let order = self.order_of(now, &Trigger::Death, None, None);
        if let Some(flight) = &mut self.flight {
            flight.died_at = Some(now.instant);
            flight.of_death = order;
        }
    }

    /// What is to be written when all processes are gone, and why that is so:
    /// whose end is seen first need not be the first that ended. Nothing if `pid`,
    /// whose end is the root, panicked right before, which was dumped.
    pub fn take_dump_of_death(&mut self, pid: Option<u32>, why: &str) -> Option<DumpOrder> {
        let flight = self.flight.as_mut()?;
        let mut order = flight.of_death.take()?;
        if pid.is_some_and(|pid| flight.has_dumped_end_of(pid)) {
            return None;
        }
        order.facts.push(reason(why));
        Some(order)
    }

    /// Orders a dump.
    fn dump(
        &mut self,
        now: Now,
        trigger: Trigger,
        asked: Option<(Asker, Vec<String>)>,
        name: Option<SessionName>,
        reach: Option<Duration>,
    ) {
        let order = self.order_of(now, &trigger, name, reach);
        let (Some(order), Some(flight)) = (order, &mut self.flight) else {
            return;
        };
        let (asker, notes) = asked.unzip();
        flight.waiting.push(Waiting {
            number: order.number,
            name: order.name.clone(),
            why: trigger.why(),
            asker,
            notes: notes.unwrap_or_default(),
            until: Some(now.instant + MADE_WITHIN),
        });
        flight.counts_changed = true;
        self.actions.push(Action::Dump(order));
    }

    fn order_of(
        &mut self,
        now: Now,
        trigger: &Trigger,
        name: Option<SessionName>,
        reach: Option<Duration>,
    ) -> Option<DumpOrder> {
        let (profiler, flight) = (self.profiler.as_ref()?, self.flight.as_mut()?);
        let name = match name {
            Some(name) => self.names.take(name.as_str()),
            None => self
                .names
                .take(&format!("flight-{}", names::of_time(now.utc))),
        };
        flight.num_ordered += 1;
        flight.counts.dumps[trigger.kind() as usize] += 1;
        if flight.made.len() == NAMED {
            flight.made.pop_front();
        }
        flight.made.push_back(DumpMade {
            session: name.clone(),
            at: now.utc,
            trigger: trigger.kind(),
            fired: trigger.fired().cloned(),
        });
        let reach = reach.unwrap_or(flight.keep);
        let reach_ns = u64::try_from(reach.as_nanos()).unwrap_or(u64::MAX);
        let mut facts = trigger.facts();
        facts.push(("flight_seconds".to_owned(), reach.as_secs_f64().to_string()));
        Some(DumpOrder {
            number: flight.num_ordered,
            name,
            dir: profiler.dir.clone(),
            max_bytes: profiler.max_bytes,
            from_ns: now.boottime_ns.saturating_sub(reach_ns),
            to_ns: now.boottime_ns,
            facts,
        })
    }

    /// A dump has been made.
    pub fn dumped(&mut self, dumped: Dumped) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        let mut waiting = flight.waiting.iter();
        let Some(place) = waiting.position(|waiting| waiting.number == dumped.number) else {
            return;
        };
        let waiting = flight.waiting.remove(place);
        self.log(format!(
            "flight recorder: {} ({}): {}",
            waiting.name,
            waiting.why,
            told(&dumped)
        ));
        let failed = failure(&dumped);
        if failed.is_none() {
            // There are files to be had.
            self.filters.push((waiting.name.clone(), Vec::new()));
        }
        let Some(asker) = &waiting.asker else {
            return;
        };
        let answer = match failed {
            Some(reason) => ProfileAnswer::Failed(reason),
            None => ProfileAnswer::Done(self.state_of(waiting.name, &dumped, waiting.notes)),
        };
        self.answer(asker, answer);
    }

    /// Time has passed. Dumps that are late stay ordered, but nobody waits for
    /// them any more.
    pub(super) fn give_up_dumps(&mut self, now: Now) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        let mut late = Vec::new();
        for waiting in &mut flight.waiting {
            if waiting.until.is_some_and(|until| now.instant >= until) {
                waiting.until = None;
                late.push((waiting.name.clone(), waiting.asker.take()));
            }
        }
        for (name, asker) in late {
            let reason = format!("{name} takes longer than {MADE_WITHIN:?}");
            self.log(format!("flight recorder: {reason}"));
            if let Some(asker) = asker {
                self.answer(&asker, ProfileAnswer::Failed(reason));
            }
        }
    }

    fn state_of(&self, name: SessionName, dumped: &Dumped, notes: Vec<String>) -> ProfileState {
        let part = |pid: u32| {
            let mut parts = dumped.parts.iter();
            let part = parts.find(|(of, _)| *of == pid);
            match part.and_then(|(_, status)| status.clone()) {
                Some(status) => Part::Told(status),
                None => Part::None,
            }
        };
        let processes = self.members.iter().flat_map(|member| {
            let of_role = |role: &Role| SessionOfProcess {
                role: *role,
                pid: member.pid,
                part: part(member.pid),
            };
            member.roles.iter().map(of_role)
        });
        ProfileState {
            phase: match self.current {
                Some(_) => ProfilePhase::Recording,
                None => ProfilePhase::Idle,
            },
            sessions: vec![SessionOfServer {
                name,
                processes: processes.collect(),
            }],
            notes,
            flight: self.flight.as_ref().map(Flight::state),
        }
    }

    /// For `/metrics`, if there is news.
    pub(super) fn tell_counts(&mut self) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        if !std::mem::take(&mut flight.counts_changed) {
            return;
        }
        let frontends = self.members.iter();
        let frontends = frontends.filter(|m| !m.gone && m.roles.contains(&Role::Frontend));
        for frontend in frontends {
            self.actions.push(Action::Tell {
                pid: frontend.pid,
                message: ToChild::FlightCounts(flight.counts.clone()),
            });
        }
    }
}

/// Why nothing was written, if that is so.
fn failure(dumped: &Dumped) -> Option<String> {
    let mut reason = "no process has begun to record".to_owned();
    for status in statuses(dumped) {
        match &status.state {
            SessionState::Failed(why) => reason.clone_from(why),
            _ => return None,
        }
    }
    Some(reason)
}

fn statuses(dumped: &Dumped) -> impl Iterator<Item = &SessionStatus> {
    dumped
        .parts
        .iter()
        .filter_map(|(_, status)| status.as_ref())
}

/// What was written, in words.
pub fn told(dumped: &Dumped) -> String {
    let mut files: u64 = 0;
    let mut bytes = 0;
    let mut lacking = String::new();
    for status in statuses(dumped) {
        match &status.state {
            SessionState::Failed(why) => {
                lacking.push_str(&format!("; {}: {why}", status.file.display()));
            }
            state => {
                files += 1;
                bytes += status.bytes;
                if *state == SessionState::Capped {
                    let file = status.file.display();
                    lacking.push_str(&format!("; {file} lacks the begin, beyond its cap"));
                }
            }
        }
    }
    format!("{files} files, {bytes} bytes{lacking}")
}
