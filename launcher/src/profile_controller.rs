//! Who records what, decided in one place: clients' commands go in, orders to
//! the processes come out, and what they report becomes the answers.
//!
//! Pure: no socket, no clock. Whoever owns it carries out its [`Action`]s.
//!
//! Invariants:
//! - at most one session has the place (`current`); it loses it when it is
//!   stopped, when its last step was counted, and when every process that takes
//!   part has ended it or is dead;
//! - a session's name is never used twice in a server's run;
//! - every command is answered, at the latest when its gathering's time is up:
//!   who has not reported by then is called silent.

mod flight;
mod gathering;
mod names;
mod place;

use crate::dumper::DumpOrder;
use crate::profiler::{FlightSettings, Mode, Profiler};
use flight::Flight;
pub use flight::told as told_of_dump;
use gathering::{Asker, Gathering, Purpose};
use names::SessionNames;
use nano_ipc::profile::{
    Activities, ProcessFilter, ProfileAnswer, ProfileCommand, ProfilePhase, RecorderOrder,
    RecorderReport, SessionSwitch, StartProfile, StepsToCount,
};
use nano_ipc::role::Role;
use nano_ipc::step_bounds::StepBounds;
use nano_ipc::to_child::ToChild;
use nano_ipc::to_launcher::ToLauncher;
use nano_trace::{Begin, SessionName, SessionSpec, SessionStatus};
pub use place::SINGLE;
use place::{Current, Member, bound, takes_part};
use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

/// How long after the core's a worker's recording of a session of steps is
/// ended, if it has not done so itself.
const WORKERS_END: Duration = Duration::from_millis(50);

/// A moment, on the clocks that are needed.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For time-outs.
    pub instant: Instant,
    /// CLOCK_BOOTTIME in ns, the clock of traces.
    pub boottime_ns: u64,
    /// For names.
    pub utc: SystemTime,
}

impl Now {
    /// This moment.
    pub fn read() -> Now {
        Now {
            instant: Instant::now(),
            boottime_ns: nano_ipc::lifecycle::boottime_ns(),
            utc: SystemTime::now(),
        }
    }
}

/// What is to be done for the controller.
#[derive(Clone, Debug)]
pub enum Action {
    /// A process is told something.
    Tell {
        /// Which one.
        pid: u32,
        /// What.
        message: ToChild,
    },
    /// What processes kept is to be written; [`ProfileController::dumped`] follows.
    Dump(DumpOrder),
    /// The operator is told something.
    Log(String),
}

/// Who records what.
#[derive(Debug)]
pub struct ProfileController {
    /// `None`: nothing can be recorded.
    profiler: Option<Profiler>,
    /// The server's run, as files name it.
    run: String,
    members: Vec<Member>,
    names: SessionNames,
    /// Sessions that there were, in order, and which processes take part in each;
    /// a dump comes when it is made. Never forgotten: each stands for files that
    /// are larger.
    filters: Vec<(SessionName, Vec<ProcessFilter>)>,
    current: Option<Current>,
    newest: Option<SessionName>,
    /// `None`: the processes keep nothing.
    flight: Option<Flight>,
    gatherings: Vec<Gathering>,
    last_number: u64,
    actions: Vec<Action>,
}

impl ProfileController {
    /// Before any process is started; the mode's own session has the place.
    pub fn new(profiler: Option<Profiler>, run: u64) -> ProfileController {
        let mut controller = ProfileController {
            profiler,
            run: format!("{run:016x}"),
            members: Vec::new(),
            names: SessionNames::default(),
            filters: Vec::new(),
            current: None,
            newest: None,
            flight: None,
            gatherings: Vec::new(),
            last_number: 0,
            actions: Vec::new(),
        };
        controller.begin_by_mode();
        controller
    }

    fn begin_by_mode(&mut self) {
        let Some(profiler) = &self.profiler else {
            return;
        };
        let dir = profiler.dir.display();
        let (wanted, steps) = match &profiler.mode {
            Mode::Auto => ("auto", None),
            Mode::Schedule(cycle) => {
                let steps = StepBounds {
                    cycle: Some(*cycle),
                    ..StepBounds::default()
                };
                ("schedule", Some(steps))
            }
            Mode::Manual => {
                self.log(format!(
                    "profiling waits for POST /start_profile or SIGUSR1; traces go to {dir}"
                ));
                return;
            }
            Mode::Flight(FlightSettings { keep, rules }) => {
                let or_rules: String = rules.iter().map(|rule| format!(" or {rule}")).collect();
                let line = format!(
                    "flight recorder: the last {keep:?} are kept; POST /profile/dump or \
                     SIGUSR2{or_rules} writes them to {dir}"
                );
                self.flight = Some(Flight::new(*keep, rules.clone()));
                self.log(line);
                return;
            }
        };
        let (max_bytes, sample_rate) = (profiler.max_bytes, profiler.sample_rate);
        let name = self.names.take(wanted);
        let mut spec = SessionSpec::new(name.clone(), max_bytes);
        spec.sample_rate = sample_rate;
        if steps.is_some() {
            spec.begin = Begin::Stamped;
        }
        self.newest = Some(name.clone());
        self.filters.push((name.clone(), Vec::new()));
        self.current = Some(Current {
            name,
            spec,
            is_auto: steps.is_none(),
            filter: Vec::new(),
            steps,
            on_since: None,
            was_on: steps.is_none(),
            over: BTreeSet::new(),
            until: None,
        });
    }

    /// Sessions with which a process of these roles begins.
    pub fn sessions_at_start(&self, roles: &[Role]) -> Vec<SessionSpec> {
        let current = self.current.iter();
        current
            .filter(|current| takes_part(&current.filter, roles))
            .map(|current| current.spec.clone())
            .collect()
    }

    /// A process has begun, with those sessions.
    pub fn joined(&mut self, pid: u32, roles: &[Role]) {
        let member = Member {
            pid,
            roles: roles.to_vec(),
            gone: false,
        };
        if let Some(current) = &self.current {
            if let (Some(at_ns), true) = (current.on_since, current.has_part(&member)) {
                let message = ToChild::ProfileSwitch(SessionSwitch {
                    session: current.name.clone(),
                    at_ns,
                    on: true,
                    last: false,
                });
                self.actions.push(Action::Tell { pid, message });
            }
            if let (Some(steps), true) = (current.to_count(), roles.contains(&Role::Core)) {
                let message = ToChild::CountSteps(Some(steps));
                self.actions.push(Action::Tell { pid, message });
            }
        }
        self.members.push(member);
    }

    /// A client of this frontend wants something.
    fn command(&mut self, now: Now, frontend: u32, id: u64, command: ProfileCommand) {
        let asker = Asker::Client { frontend, id };
        match command {
            _ if self.profiler.is_none() => self.answer(&asker, ProfileAnswer::Off),
            ProfileCommand::Start(start) => self.start(now, asker, *start),
            ProfileCommand::Stop { wait } => self.stop(now, asker, wait),
            ProfileCommand::Dump {
                name,
                reach,
                ignored,
            } => self.dump_asked(now, asker, name, reach, &ignored),
            ProfileCommand::Status => {
                let primary = self.primary();
                let orders = self.living(|_| RecorderOrder::Report);
                self.gather(now, asker, Purpose::Tell, primary, orders);
            }
            ProfileCommand::Files(wanted) => {
                let answer = self.files(wanted);
                self.answer(&asker, answer);
            }
        }
    }

    /// The operator's signal: ends what records, or begins a session.
    pub fn toggled(&mut self, now: Now) {
        let Some(profiler) = &self.profiler else {
            let hint = "SIGUSR1: profiling is off (NANO_PROFILER_DIR names a directory for it)";
            return self.log(hint.to_owned());
        };
        if self.current.is_some() {
            return self.stop(now, Asker::Signal, false);
        }
        let wishes = StartProfile {
            activities: Activities {
                samples: profiler.sample_rate,
                ..Activities::default()
            },
            ..StartProfile::default()
        };
        self.start(now, Asker::Signal, wishes);
    }

    fn start(&mut self, now: Now, asker: Asker, start: StartProfile) {
        let Some(profiler) = &self.profiler else {
            return;
        };
        if let Some(current) = self
            .current
            .as_ref()
            .filter(|current| !current.makes_room())
        {
            let busy = ProfileAnswer::Busy(current.name.clone());
            return self.answer(&asker, busy);
        }
        let mut living = self.members.iter().filter(|member| !member.gone);
        if !living.any(|member| takes_part(&start.processes, &member.roles)) {
            return self.answer(&asker, ProfileAnswer::NoProcess);
        }
        let (max_bytes, mut notes) = understood(&start, profiler.max_bytes);
        if self.members.iter().any(|member| member.roles.len() > 1) && !start.processes.is_empty() {
            notes
                .push("processes: this server is one process, all of which is recorded".to_owned());
        }
        let name = match &start.name {
            Some(name) => self.names.take(name.as_str()),
            None => self.names.take(&names::of_time(now.utc)),
        };
        let begins_ns = now.boottime_ns;
        let spec = SessionSpec {
            name: name.clone(),
            max_bytes,
            duration: start.duration,
            begin: match start.steps {
                Some(_) => Begin::Stamped,
                None => Begin::At(begins_ns),
            },
            marked_only: start.marked_only,
            detail: start.detail,
            sample_rate: start.activities.samples,
        };
        let ended = self.current.take();
        if let Some(armed) = ended.as_ref().filter(|ended| !ended.is_auto) {
            notes.push(format!(
                "session {}, which had not begun to record, was ended",
                armed.name
            ));
            // Its steps; those of the new one are counted when all are ready.
            self.count_steps(None);
        }
        let ends = ended.map(|ended| (ended.name, begins_ns));
        let current = Current {
            name: name.clone(),
            is_auto: false,
            filter: start.processes,
            steps: start.steps,
            on_since: None,
            was_on: start.steps.is_none(),
            over: BTreeSet::new(),
            // Of one that follows steps, time counts from the first one on.
            until: match start.steps {
                Some(_) => None,
                None => bound(now, start.duration, begins_ns),
            },
            spec: SessionSpec {
                begin: match spec.begin {
                    Begin::Stamped => Begin::Stamped,
                    Begin::Now | Begin::At(_) => Begin::Now,
                },
                ..spec.clone()
            },
        };
        let orders = self.living(|member| match (current.has_part(member), &ends) {
            (true, ends) => RecorderOrder::Begin {
                ends: ends.clone(),
                spec: spec.clone(),
            },
            (false, Some((session, at_ns))) => RecorderOrder::End {
                session: session.clone(),
                at_ns: *at_ns,
            },
            (false, None) => RecorderOrder::Report,
        });
        self.log(format!("profiling: session {name} begins"));
        self.newest = Some(name.clone());
        self.filters.push((name.clone(), current.filter.clone()));
        self.current = Some(current);
        self.gather(now, asker, Purpose::Start(notes), Some(name), orders);
    }

    fn stop(&mut self, now: Now, asker: Asker, wait: bool) {
        let primary = self.primary();
        let orders = match self.current.take() {
            Some(current) => self.end_orders(current, now.boottime_ns, "it was stopped"),
            None => self.living(|_| RecorderOrder::Report),
        };
        let purpose = match wait {
            true => Purpose::Wait {
                until: now.instant + gathering::WHOLE_WITHIN,
            },
            false => Purpose::Tell,
        };
        self.gather(now, asker, purpose, primary, orders);
    }

    fn files(&self, wanted: Option<SessionName>) -> ProfileAnswer {
        let is_wanted = |name| wanted.as_ref().is_none_or(|wanted| name == wanted);
        let known = self.filters.iter().rfind(|(name, _)| is_wanted(name));
        let (Some((session, filter)), Some(profiler)) = (known, &self.profiler) else {
            return ProfileAnswer::UnknownSession;
        };
        let members = self.members.iter();
        let recorded = members.filter(|member| takes_part(filter, &member.roles));
        ProfileAnswer::Files {
            dir: profiler.dir.clone(),
            run: self.run.clone(),
            session: session.clone(),
            roles: recorded.map(Member::role_of_files).collect(),
        }
    }

    /// A process has said something.
    pub fn heard(&mut self, now: Now, pid: u32, message: ToLauncher) {
        match message {
            ToLauncher::Profile { id, command } => self.command(now, pid, id, command),
            ToLauncher::ProfileReport { number, report } => {
                self.reported(now, pid, number, report);
            }
            ToLauncher::ProfileSwitch(switch) => self.switched(now, pid, switch),
            ToLauncher::ProfileEnded(status) => self.ended(pid, &status),
            ToLauncher::RuleFired(fired) => self.rule_fired(now, fired),
            ToLauncher::Panicked(text) => self.panicked(now, pid, text),
            // Of no concern to the profiler.
            ToLauncher::Pong { .. } | ToLauncher::Ready(_) | ToLauncher::Failed(_) => {}
        }
    }

    /// A process has answered an order.
    fn reported(&mut self, now: Now, pid: u32, number: u64, report: RecorderReport) {
        let gathering = self.gatherings.iter_mut().find(|g| g.number == number);
        if let Some(current) = &mut self.current {
            let over = report
                .sessions
                .iter()
                .any(|status| status.name == current.name && status.state.has_ended());
            let began_in_vain = report.refused.is_some()
                && gathering
                    .as_ref()
                    .is_some_and(|g| g.is_begin_of(&current.name));
            if over || began_in_vain {
                current.over.insert(pid);
            }
        }
        if let Some(gathering) = gathering {
            gathering.reports.insert(pid, report);
        }
        self.free_the_place();
        self.conclude(now);
    }

    /// The core has switched the recording, and obeyed already; workers switch at
    /// their own ends of steps.
    fn switched(&mut self, now: Now, pid: u32, switch: SessionSwitch) {
        let Some(current) = &mut self.current else {
            return;
        };
        if current.name != switch.session {
            return;
        }
        current.on_since = switch.on.then_some(switch.at_ns);
        current.was_on |= switch.on;
        if switch.on && current.until.is_none() {
            current.until = bound(now, current.spec.duration, switch.at_ns);
        }
        let others = self
            .members
            .iter()
            .filter(|member| !member.gone && member.pid != pid);
        let told = |member: &&Member| current.has_part(member) && !member.is_worker();
        for member in others.filter(told) {
            self.actions.push(Action::Tell {
                pid: member.pid,
                message: ToChild::ProfileSwitch(switch.clone()),
            });
        }
        if switch.last
            && let Some(current) = self.current.take()
        {
            // A worker's own end of its last step may be a little later, or not
            // be known yet.
            let late_ns = now.boottime_ns + WORKERS_END.as_nanos() as u64;
            let mut orders = self.end_orders(current, switch.at_ns, "its steps were counted");
            for (pid, order) in &mut orders {
                let is_worker = |member: &Member| member.pid == *pid && member.is_worker();
                if let RecorderOrder::End { at_ns, .. } = order
                    && self.members.iter().any(is_worker)
                {
                    *at_ns = late_ns;
                }
            }
            self.order(orders);
        }
    }

    /// A session has ended by itself in a process.
    fn ended(&mut self, pid: u32, status: &SessionStatus) {
        if let Some(current) = &mut self.current
            && current.name == status.name
        {
            current.over.insert(pid);
            self.free_the_place();
        }
    }

    /// A process is dead.
    pub fn gone(&mut self, now: Now, pid: u32) {
        let members = self.members.iter_mut();
        for member in members.filter(|member| member.pid == pid) {
            member.gone = true;
        }
        self.free_the_place();
        self.conclude(now);
    }

    /// When [`ticked`](Self::ticked) is to be called at the latest.
    pub fn next_tick(&self) -> Option<Instant> {
        let until = self.current.as_ref().and_then(|current| current.until);
        let gatherings = self.gatherings.iter().map(Gathering::next_tick);
        let dumps = self.flight.as_ref().and_then(Flight::next_tick);
        let others = until.map(|(instant, _)| instant).into_iter().chain(dumps);
        gatherings.chain(others).min()
    }

    /// Time has passed.
    pub fn ticked(&mut self, now: Now) {
        if let Some((_, at_ns)) = self
            .current
            .as_ref()
            .and_then(|current| current.until)
            .filter(|(instant, _)| now.instant >= *instant)
            && let Some(current) = self.current.take()
        {
            let orders = self.end_orders(current, at_ns, "its time is over");
            self.order(orders);
        }
        self.give_up_dumps(now);
        self.tell_counts();
        self.conclude(now);
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Nobody is left who could be told anything but the operator.
    pub fn log_rest(&mut self) {
        for action in self.take_actions() {
            if let Action::Log(line) = action {
                log::info!("{line}");
            }
        }
    }

    /// The session that a client most likely asks about.
    fn primary(&self) -> Option<SessionName> {
        self.newest.clone()
    }

    /// The place is free when nobody is left who records.
    fn free_the_place(&mut self) {
        let Some(current) = &self.current else {
            return;
        };
        let records = |member: &Member| {
            !member.gone && current.has_part(member) && !current.over.contains(&member.pid)
        };
        if self.members.is_empty() || self.members.iter().any(records) {
            return;
        }
        let name = current.name.clone();
        let counts = current.steps.is_some();
        self.current = None;
        self.log(format!(
            "profiling: session {name} has ended in every process"
        ));
        if counts {
            self.count_steps(None);
        }
    }

    /// Orders that end a session everywhere; the core counts no more.
    fn end_orders(&mut self, current: Current, at_ns: u64, why: &str) -> Vec<(u32, RecorderOrder)> {
        self.log(format!("profiling: session {} ends: {why}", current.name));
        if current.steps.is_some() {
            self.count_steps(None);
        }
        self.living(|_| RecorderOrder::End {
            session: current.name.clone(),
            at_ns,
        })
    }

    fn count_steps(&mut self, steps: Option<StepsToCount>) {
        let cores = self
            .members
            .iter()
            .filter(|member| member.roles.contains(&Role::Core));
        for member in cores.filter(|member| !member.gone) {
            self.actions.push(Action::Tell {
                pid: member.pid,
                message: ToChild::CountSteps(steps.clone()),
            });
        }
    }

    /// An order for each living process.
    fn living(&self, order: impl Fn(&Member) -> RecorderOrder) -> Vec<(u32, RecorderOrder)> {
        let living = self.members.iter().filter(|member| !member.gone);
        living.map(|member| (member.pid, order(member))).collect()
    }

    /// Sends orders under a number of their own, which is returned.
    fn order(&mut self, orders: Vec<(u32, RecorderOrder)>) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        for (pid, order) in orders {
            let message = ToChild::Profile { number, order };
            self.actions.push(Action::Tell { pid, message });
        }
        number
    }

    fn gather(
        &mut self,
        now: Now,
        asker: Asker,
        purpose: Purpose,
        primary: Option<SessionName>,
        orders: Vec<(u32, RecorderOrder)>,
    ) {
        let number = self.order(orders);
        let gathering = Gathering::new(number, now.instant, asker, purpose, primary);
        self.gatherings.push(gathering);
        self.conclude(now);
    }

    /// Answers whose answer is complete, or whose time is up.
    fn conclude(&mut self, now: Now) {
        for mut gathering in std::mem::take(&mut self.gatherings) {
            if gathering.is_to_ask_again(now.instant) {
                let orders = self.living(|_| RecorderOrder::Report);
                let number = self.order(orders);
                gathering.begin_again(number, now.instant);
            }
            if !gathering.is_complete(&self.members, now.instant) {
                self.gatherings.push(gathering);
                continue;
            }
            let phase = match self.current {
                Some(_) => ProfilePhase::Recording,
                None if gathering.all_whole() => ProfilePhase::Idle,
                None => ProfilePhase::Flushing,
            };
            self.count_what_began(&gathering);
            let flight = self.flight.as_ref().map(Flight::state);
            let answer = gathering.answer(&self.members, phase, flight);
            self.answer(&gathering.asker, answer);
        }
    }

    /// Steps count from when every process could record them.
    fn count_what_began(&mut self, gathering: &Gathering) {
        let began = |current: &&Current| gathering.is_begin_of(&current.name);
        if let Some(steps) = self
            .current
            .as_ref()
            .filter(began)
            .and_then(Current::to_count)
        {
            self.count_steps(Some(steps));
        }
    }

    fn answer(&mut self, asker: &Asker, answer: ProfileAnswer) {
        match asker {
            Asker::Client { frontend, id } => self.actions.push(Action::Tell {
                pid: *frontend,
                message: ToChild::ProfileAnswer {
                    id: *id,
                    answer: Box::new(answer),
                },
            }),
            // The log has told of begin and end; else there is nothing to say.
            Asker::Signal => match answer {
                ProfileAnswer::Failed(reason) => self.log(format!("SIGUSR1: {reason}")),
                ProfileAnswer::NoProcess => self.log("SIGUSR1: no process is ready".to_owned()),
                _ => {}
            },
        }
    }

    fn log(&mut self, line: String) {
        self.actions.push(Action::Log(line));
    }
}

/// A session's cap, and what its client should know of how it was understood.
fn understood(start: &StartProfile, operators_cap: u64) -> (u64, Vec<String>) {
    let mut notes = Vec::new();
    let cap = start.max_bytes.unwrap_or(operators_cap);
    if cap > operators_cap {
        notes.push(format!(
            "max_mb: the operator's cap of {} MiB holds (NANO_PROFILER_MAX_MB)",
            operators_cap >> 20
        ));
    }
    if start.activities.gpu {
        notes.push(
            "activities: gpu: this build has no CUDA; what the processes do is recorded".to_owned(),
        );
    }
    if start.activities.foreign {
        notes.push("activities: mem, rpd and cuda_profiler are not known here".to_owned());
    }
    if start.names_directory {
        notes.push("output_dir is ignored: the operator chooses the directory".to_owned());
    }
    notes.extend(note_of(&start.ignored));
    (cap.min(operators_cap), notes)
}

/// What a client should know of fields that mean nothing.
fn note_of(ignored: &[String]) -> Option<String> {
    (!ignored.is_empty()).then(|| format!("not known here, and ignored: {}", ignored.join(", ")))
}

#[cfg(test)]
mod tests;
