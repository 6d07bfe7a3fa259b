//! The controller without sockets: what goes in, what comes out.

mod flight;
mod wishes;

use super::place::SLACK;
use super::*;
use crate::dumper::Dumped;
use nano_ipc::flight::FlightCounts;
use nano_ipc::profile::{Part, ProcessFilter, ProfileState};
use nano_ipc::step_bounds::Cycle;
use nano_trace::{SampleRate, SessionState};
use std::path::PathBuf;

const FRONTEND: u32 = 11;
const CORE: u32 = 12;
const WORKER: u32 = 13;
const PIDS: [u32; 3] = [FRONTEND, CORE, WORKER];
const CAP: u64 = 64 << 20;
const T0: u64 = 1_000_000_000_000;

/// A server whose processes obey, except those that are stopped.
struct Server {
    controller: ProfileController,
    now: Now,
    /// What each process records, as its recorder would tell.
    recorders: Vec<(u32, Vec<SessionStatus>)>,
    stopped: Vec<u32>,
    answers: Vec<(u64, ProfileAnswer)>,
    switches: Vec<(u32, SessionSwitch)>,
    counting: Option<StepsToCount>,
    ends: Vec<(u32, u64)>,
    dumps: Vec<DumpOrder>,
    counts: FlightCounts,
    log: Vec<String>,
    last_id: u64,
    /// Files are not whole before that many reports.
    flushes: u32,
}

fn name(text: &str) -> SessionName {
    text.parse().expect("a name")
}

fn status(name: SessionName, state: SessionState) -> SessionStatus {
    SessionStatus {
        file: PathBuf::from(format!("/traces/{name}")),
        name,
        state,
        bytes: 1,
        events: 2,
        drops: 0,
        late_records: 0,
        lost_samples: 0,
        unsampled_threads: 0,
        samples: None,
        since: SystemTime::UNIX_EPOCH,
    }
}

impl Server {
    fn start(mode: Mode) -> Server {
        Server::with_samples(mode, None)
    }

    fn with_samples(mode: Mode, sample_rate: Option<SampleRate>) -> Server {
        let profiler = Profiler {
            dir: "/traces".into(),
            max_bytes: CAP,
            mode,
            sample_rate,
        };
        let mut server = Server::with(Some(profiler));
        for (pid, role) in
            PIDS.into_iter()
                .zip([Role::Frontend, Role::Core, Role::Worker { rank: 0 }])
        {
            let specs = server.controller.sessions_at_start(&[role]);
            let sessions = specs
                .into_iter()
                .map(|spec| status(spec.name, SessionState::Recording));
            server.recorders.push((pid, sessions.collect()));
            server.controller.joined(pid, &[role]);
        }
        server.settle();
        server
    }

    fn with(profiler: Option<Profiler>) -> Server {
        Server {
            controller: ProfileController::new(profiler, 0xabc),
            now: Now {
                instant: Instant::now(),
                boottime_ns: T0,
                utc: SystemTime::UNIX_EPOCH + Duration::from_millis(1_796_058_303_123),
            },
            recorders: Vec::new(),
            stopped: Vec::new(),
            answers: Vec::new(),
            switches: Vec::new(),
            counting: None,
            ends: Vec::new(),
            dumps: Vec::new(),
            counts: FlightCounts::default(),
            log: Vec::new(),
            last_id: 0,
            flushes: 0,
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now.instant += time;
        self.now.boottime_ns += time.as_nanos() as u64;
        self.now.utc += time;
        self.controller.ticked(self.now);
        self.settle();
    }

    /// Carries out actions until there are none.
    fn settle(&mut self) {
        loop {
            let actions = self.controller.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Log(line) => self.log.push(line),
                    Action::Dump(order) => self.dumps.push(order),
                    Action::Tell { pid, message } => self.hear(pid, message),
                }
            }
        }
    }

    fn hear(&mut self, pid: u32, message: ToChild) {
        match message {
            ToChild::ProfileAnswer { id, answer } => self.answers.push((id, *answer)),
            ToChild::ProfileSwitch(switch) => self.switches.push((pid, switch)),
            ToChild::CountSteps(steps) => {
                assert_eq!(pid, CORE);
                self.counting = steps;
            }
            ToChild::FlightCounts(counts) => {
                assert_eq!(pid, FRONTEND);
                self.counts = counts;
            }
            ToChild::Profile { number, order } => {
                if !self.stopped.contains(&pid) {
                    let report = self.obey(pid, order);
                    self.controller.reported(self.now, pid, number, report);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn sessions(&mut self, pid: u32) -> &mut Vec<SessionStatus> {
        let recorder = self.recorders.iter_mut().find(|(of, _)| *of == pid);
        &mut recorder.expect("a process").1
    }

    fn end(&mut self, pid: u32, session: &SessionName, state: SessionState) {
        for status in self.sessions(pid) {
            if status.name == *session && !status.state.has_ended() {
                status.state = state.clone();
            }
        }
    }

    fn obey(&mut self, pid: u32, order: RecorderOrder) -> RecorderReport {
        let flushing = self.flushes > 0;
        let ended = match flushing {
            true => SessionState::Flushing,
            false => SessionState::Finished,
        };
        match order {
            RecorderOrder::Begin { ends, spec } => {
                if let Some((session, _)) = ends {
                    self.end(pid, &session, ended);
                }
                let state = match spec.begin {
                    Begin::Stamped => SessionState::Armed,
                    _ => SessionState::Recording,
                };
                self.sessions(pid).push(status(spec.name, state));
            }
            RecorderOrder::End { session, at_ns } => {
                self.ends.push((pid, at_ns));
                self.end(pid, &session, ended);
            }
            RecorderOrder::Report => {
                self.flushes = self.flushes.saturating_sub(1);
                if self.flushes == 0 {
                    for status in self.sessions(pid) {
                        if status.state == SessionState::Flushing {
                            status.state = SessionState::Finished;
                        }
                    }
                }
            }
        }
        RecorderReport {
            sessions: self.sessions(pid).clone(),
            refused: None,
        }
    }

    fn ask(&mut self, command: ProfileCommand) -> u64 {
        self.last_id += 1;
        let message = ToLauncher::Profile {
            id: self.last_id,
            command,
        };
        self.controller.heard(self.now, FRONTEND, message);
        self.settle();
        self.last_id
    }

    fn answer_to(&mut self, id: u64) -> Option<ProfileAnswer> {
        let place = self.answers.iter().position(|(of, _)| *of == id)?;
        Some(self.answers.remove(place).1)
    }

    #[track_caller]
    fn command(&mut self, command: ProfileCommand) -> ProfileAnswer {
        let id = self.ask(command);
        self.answer_to(id).expect("answered at once")
    }

    #[track_caller]
    fn done(&mut self, command: ProfileCommand) -> ProfileState {
        match self.command(command) {
            ProfileAnswer::Done(state) => state,
            other => panic!("{other:?}"),
        }
    }

    fn start_named(&mut self, text: &str) -> ProfileAnswer {
        self.command(start(StartProfile {
            name: Some(name(text)),
            ..StartProfile::default()
        }))
    }

    fn switch(&mut self, session: &str, at_ns: u64, on: bool, last: bool) {
        let switch = SessionSwitch {
            session: name(session),
            at_ns,
            on,
            last,
        };
        let message = ToLauncher::ProfileSwitch(switch);
        self.controller.heard(self.now, CORE, message);
        self.settle();
    }
}

fn start(start: StartProfile) -> ProfileCommand {
    ProfileCommand::Start(Box::new(start))
}

const STOP: ProfileCommand = ProfileCommand::Stop { wait: false };

/// State of each process in the newest session.
fn parts(state: &ProfileState) -> Vec<String> {
    let newest = state.sessions.first().expect("a session");
    newest
        .processes
        .iter()
        .map(|process| match &process.part {
            Part::Told(status) => format!("{}: {:?}", process.role, status.state),
            other => format!("{}: {other:?}", process.role),
        })
        .collect()
}

fn all(state: &str) -> Vec<String> {
    ["frontend", "core", "worker-0"]
        .map(|role| format!("{role}: {state}"))
        .to_vec()
}

fn newest(state: &ProfileState) -> &str {
    state.sessions.first().expect("a session").name.as_str()
}

#[test]
fn without_a_directory_nothing_can_be_asked_and_the_signal_is_harmless() {
    let mut server = Server::with(None);
    for command in [
        start(StartProfile::default()),
        STOP,
        ProfileCommand::Status,
        ProfileCommand::Files(None),
    ] {
        assert_eq!(server.command(command), ProfileAnswer::Off);
    }
    server.controller.toggled(server.now);
    server.settle();
    assert_eq!(server.log.len(), 1, "{:?}", server.log);
    assert_eq!(server.controller.sessions_at_start(&[Role::Core]), []);
}

#[test]
fn a_session_begins_and_ends_in_every_process_and_auto_makes_room() {
    let mut server = Server::start(Mode::Auto);
    let state = server.done(ProfileCommand::Status);
    assert_eq!(newest(&state), "auto");
    assert_eq!(state.phase, ProfilePhase::Recording);

    let state = server.done(start(StartProfile::default()));
    assert_eq!(newest(&state), "20261130T170503.123Z");
    assert_eq!(parts(&state), all("Recording"));
    assert_eq!(state.sessions.len(), 2, "auto is told of, too");
    for pid in PIDS {
        assert_eq!(
            server.sessions(pid)[0].state,
            SessionState::Finished,
            "auto"
        );
    }
    let busy = ProfileAnswer::Busy(name("20261130T170503.123Z"));
    assert_eq!(server.start_named("other"), busy);

    let state = server.done(STOP);
    assert_eq!(newest(&state), "20261130T170503.123Z");
    assert_eq!(parts(&state), all("Finished"));
    assert_eq!(state.phase, ProfilePhase::Idle);
    // Again, and nothing has changed: auto does not go on either.
    assert_eq!(server.done(STOP), state);
    assert_eq!(server.done(ProfileCommand::Status), state);
}

#[test]
fn auto_ends_and_the_next_one_begins_at_the_same_time_everywhere() {
    let mut server = Server::start(Mode::Auto);
    let ask = start(StartProfile::default());
    server.controller.command(server.now, FRONTEND, 1, ask);
    let mut told = Vec::new();
    for action in server.controller.take_actions() {
        if let Action::Tell { pid, message } = action
            && let ToChild::Profile { order, .. } = message
        {
            let RecorderOrder::Begin { ends, spec } = order else {
                panic!("{order:?}");
            };
            assert_eq!(ends, Some((name("auto"), T0)));
            assert_eq!(spec.begin, Begin::At(T0));
            told.push(pid);
        }
    }
    assert_eq!(told, PIDS);
}

#[test]
fn a_taken_name_gets_a_number() {
    let mut server = Server::start(Mode::Manual);
    for expected in ["x", "x-2", "x-3"] {
        let ProfileAnswer::Done(state) = server.start_named("x") else {
            panic!("not begun");
        };
        assert_eq!(newest(&state), expected);
        server.done(STOP);
    }
    // The mode's own session has had its name.
    let mut server = Server::start(Mode::Auto);
    let ProfileAnswer::Done(state) = server.start_named("auto") else {
        panic!("not begun");
    };
    assert_eq!(newest(&state), "auto-2");
}

#[test]
fn a_stopped_process_is_called_silent_in_time_and_the_others_record() {
    let mut server = Server::start(Mode::Manual);
    server.stopped.push(WORKER);
    let id = server.ask(start(StartProfile::default()));
    assert_eq!(server.answer_to(id), None, "it may still answer");
    let tick = server.controller.next_tick().expect("a deadline");
    let wait = tick - server.now.instant;
    assert!(wait <= Duration::from_secs(1), "{wait:?}");
    server.pass(wait);
    let Some(ProfileAnswer::Done(state)) = server.answer_to(id) else {
        panic!("no answer");
    };
    assert_eq!(
        parts(&state),
        ["frontend: Recording", "core: Recording", "worker-0: Silent"]
    );
    assert_eq!(state.phase, ProfilePhase::Recording);
}

#[test]
fn a_dead_process_is_called_gone_and_keeps_nobody_waiting() {
    let mut server = Server::start(Mode::Manual);
    server.stopped.push(WORKER);
    let id = server.ask(start(StartProfile::default()));
    server.controller.gone(server.now, WORKER);
    server.settle();
    let Some(ProfileAnswer::Done(state)) = server.answer_to(id) else {
        panic!("no answer");
    };
    assert_eq!(
        parts(&state),
        ["frontend: Recording", "core: Recording", "worker-0: Gone"]
    );
    let state = server.done(STOP);
    assert_eq!(
        parts(&state),
        ["frontend: Finished", "core: Finished", "worker-0: Gone"]
    );
}

#[test]
fn a_session_that_has_ended_by_itself_everywhere_leaves_its_place() {
    let mut server = Server::start(Mode::Manual);
    server.start_named("x");
    for pid in PIDS {
        let busy = ProfileAnswer::Busy(name("x"));
        assert_eq!(server.start_named("y"), busy, "{pid} records still");
        server.end(pid, &name("x"), SessionState::Capped);
        let ended = status(name("x"), SessionState::Capped);
        let message = ToLauncher::ProfileEnded(ended);
        server.controller.heard(server.now, pid, message);
        server.settle();
    }
    let state = server.done(ProfileCommand::Status);
    assert_eq!(parts(&state), all("Capped"));
    assert_eq!(state.phase, ProfilePhase::Idle);
    assert!(matches!(server.start_named("y"), ProfileAnswer::Done(_)));
}

#[test]
fn time_ends_a_session_even_where_a_process_is_stopped() {
    let mut server = Server::start(Mode::Manual);
    let bounded = StartProfile {
        name: Some(name("x")),
        duration: Some(Duration::from_secs(3)),
        ..StartProfile::default()
    };
    server.done(start(bounded));
    server.stopped.push(WORKER);
    for pid in [FRONTEND, CORE] {
        let ended = status(name("x"), SessionState::TimedOut);
        server.controller.ended(pid, &ended);
    }
    assert_eq!(server.start_named("y"), ProfileAnswer::Busy(name("x")));
    let tick = server.controller.next_tick().expect("a deadline");
    assert_eq!(tick - server.now.instant, Duration::from_secs(3) + SLACK);
    server.pass(Duration::from_secs(3) + SLACK);
    assert_eq!(server.controller.next_tick(), None);
    server.stopped.clear();
    assert!(matches!(server.start_named("y"), ProfileAnswer::Done(_)));
}

#[test]
fn steps_are_counted_by_the_core_and_the_last_one_ends_the_session() {
    let mut server = Server::start(Mode::Manual);
    let bounds = StepBounds {
        delay: 5,
        ..StepBounds::default()
    };
    let stepped = StartProfile {
        name: Some(name("x")),
        steps: Some(bounds),
        ..StartProfile::default()
    };
    let state = server.done(start(stepped));
    assert_eq!(parts(&state), all("Armed"));
    let to_count = StepsToCount {
        session: name("x"),
        bounds,
    };
    assert_eq!(server.counting, Some(to_count));
    server.switch("old", 1, true, false);
    assert_eq!(server.switches, [], "of no session that is");
    server.switch("x", 10, true, false);
    let told: Vec<(u32, bool)> = server.switches.iter().map(|(p, s)| (*p, s.on)).collect();
    assert_eq!(told, [(FRONTEND, true)], "workers switch by themselves");
    server.switch("x", 20, false, true);
    assert_eq!(server.switches.len(), 2);
    let late = T0 + WORKERS_END.as_nanos() as u64;
    assert_eq!(server.ends, [(FRONTEND, 20), (CORE, 20), (WORKER, late)]);
    assert_eq!(server.counting, None);
    let state = server.done(ProfileCommand::Status);
    assert_eq!(parts(&state), all("Finished"));
    assert!(matches!(server.start_named("y"), ProfileAnswer::Done(_)));
}

#[test]
fn who_waits_for_steps_that_do_not_come_makes_room() {
    let mut server = Server::start(Mode::Manual);
    let stepped = |text: &str| StartProfile {
        name: Some(name(text)),
        steps: Some(StepBounds::default()),
        ..StartProfile::default()
    };
    server.done(start(stepped("x")));
    let state = server.done(start(stepped("y")));
    assert_eq!(parts(&state), all("Armed"));
    let [note] = &state.notes[..] else {
        panic!("{:?}", state.notes);
    };
    assert!(note.contains("session x"), "{note}");
    let counted = server.counting.clone().expect("steps");
    assert_eq!(counted.session, name("y"));
    // It has recorded, and will again.
    server.switch("y", 10, true, false);
    server.switch("y", 20, false, false);
    assert_eq!(server.start_named("z"), ProfileAnswer::Busy(name("y")));
    server.done(STOP);
    // Without steps nothing is counted after it.
    server.done(start(stepped("z")));
    assert!(matches!(server.start_named("a"), ProfileAnswer::Done(_)));
    assert_eq!(server.counting, None);
}

#[test]
fn a_schedule_records_from_the_start_and_late_comers_join_it() {
    let cycle: Cycle = "wait=1,active=2".parse().expect("a schedule");
    let mut server = Server::start(Mode::Schedule(cycle));
    let counted = server.counting.clone().expect("steps");
    assert_eq!(counted.session, name("schedule"));
    assert_eq!(counted.bounds.cycle, Some(cycle));
    server.switch("schedule", 10, true, false);
    server.switches.clear();
    assert_eq!(
        server.start_named("x"),
        ProfileAnswer::Busy(name("schedule"))
    );

    const LATE: u32 = 14;
    let role = Role::Worker { rank: 1 };
    let specs = server.controller.sessions_at_start(&[role]);
    assert_eq!(specs.len(), 1);
    assert_eq!(specs[0].begin, Begin::Stamped);
    server.recorders.push((LATE, Vec::new()));
    server.controller.joined(LATE, &[role]);
    server.settle();
    let [(LATE, switch)] = &server.switches[..] else {
        panic!("{:?}", server.switches);
    };
    assert!(switch.on && switch.at_ns == 10);
    server.switch("schedule", 30, false, true);
    assert_eq!(server.counting, None);
}

#[test]
fn a_late_comer_joins_what_records_and_only_that() {
    let mut server = Server::start(Mode::Manual);
    let role = Role::Worker { rank: 1 };
    assert_eq!(server.controller.sessions_at_start(&[role]), []);
    let only_core = StartProfile {
        processes: vec![ProcessFilter::Role(Role::Core)],
        ..StartProfile::default()
    };
    let state = server.done(start(only_core));
    assert_eq!(
        parts(&state),
        ["frontend: None", "core: Recording", "worker-0: None"]
    );
    assert_eq!(server.controller.sessions_at_start(&[role]), []);
    let specs = server.controller.sessions_at_start(&[Role::Core]);
    assert_eq!(specs[0].begin, Begin::Now, "its own begin");
    // Those that have no part do not keep it alive.
    server.controller.gone(server.now, CORE);
    server.settle();
    assert_eq!(
        server.done(ProfileCommand::Status).phase,
        ProfilePhase::Idle
    );
}

#[test]
fn a_filter_that_means_nobody_is_refused_and_takes_no_name() {
    let mut server = Server::start(Mode::Auto);
    let nobody = StartProfile {
        name: Some(name("x")),
        processes: vec![ProcessFilter::Role(Role::Worker { rank: 7 })],
        ..StartProfile::default()
    };
    assert_eq!(server.command(start(nobody)), ProfileAnswer::NoProcess);
    let ProfileAnswer::Done(state) = server.start_named("x") else {
        panic!("not begun");
    };
    assert_eq!(newest(&state), "x");
}

#[test]
fn what_begins_nowhere_is_an_error_and_keeps_no_place() {
    let mut server = Server::start(Mode::Manual);
    server.stopped.extend(PIDS);
    let id = server.ask(start(StartProfile::default()));
    for pid in PIDS {
        let report = RecorderReport {
            sessions: Vec::new(),
            refused: Some("no such directory".to_owned()),
        };
        let number = server.controller.last_number;
        let message = ToLauncher::ProfileReport { number, report };
        server.controller.heard(server.now, pid, message);
    }
    server.settle();
    let failed = ProfileAnswer::Failed("no such directory".to_owned());
    assert_eq!(server.answer_to(id), Some(failed));
    server.stopped.clear();
    assert!(matches!(server.start_named("x"), ProfileAnswer::Done(_)));
}

#[test]
fn who_waits_is_answered_when_all_files_are_whole() {
    let mut server = Server::start(Mode::Manual);
    server.start_named("x");
    server.flushes = 10;
    let id = server.ask(ProfileCommand::Stop { wait: true });
    let flushing = server.done(ProfileCommand::Status);
    assert_eq!(flushing.phase, ProfilePhase::Flushing);
    // Others may begin meanwhile.
    assert!(matches!(server.start_named("y"), ProfileAnswer::Done(_)));
    server.done(STOP);
    for _ in 0..10 {
        server.pass(Duration::from_millis(20));
    }
    let Some(ProfileAnswer::Done(state)) = server.answer_to(id) else {
        panic!("no answer");
    };
    assert_eq!(newest(&state), "x");
    assert_eq!(parts(&state), all("Finished"));
    assert_eq!(server.controller.next_tick(), None);
    // One that never is whole does not keep it for ever.
    server.start_named("z");
    server.flushes = u32::MAX;
    let id = server.ask(ProfileCommand::Stop { wait: true });
    for _ in 0..30 {
        assert_eq!(server.answer_to(id), None);
        server.pass(Duration::from_secs(1));
    }
    assert!(server.answer_to(id).is_some());
}

#[test]
fn the_signal_begins_and_ends() {
    let mut server = Server::start(Mode::Manual);
    for expected in [ProfilePhase::Recording, ProfilePhase::Idle] {
        server.controller.toggled(server.now);
        server.settle();
        assert_eq!(server.done(ProfileCommand::Status).phase, expected);
    }
    let mut server = Server::start(Mode::Auto);
    server.controller.toggled(server.now);
    server.settle();
    let state = server.done(ProfileCommand::Status);
    assert_eq!(state.phase, ProfilePhase::Idle);
    assert_eq!(parts(&state), all("Finished"));
}

#[test]
fn only_sessions_of_this_run_have_files() {
    let mut server = Server::start(Mode::Manual);
    let files = ProfileCommand::Files;
    assert_eq!(server.command(files(None)), ProfileAnswer::UnknownSession);
    server.start_named("x");
    let expected = ProfileAnswer::Files {
        dir: "/traces".into(),
        run: "0000000000000abc".to_owned(),
        session: name("x"),
        roles: ["frontend", "core", "worker-0"].map(str::to_owned).to_vec(),
    };
    assert_eq!(server.command(files(None)), expected);
    assert_eq!(server.command(files(Some(name("x")))), expected);
    let unknown = server.command(files(Some(name("y"))));
    assert_eq!(unknown, ProfileAnswer::UnknownSession);
}

#[test]
fn one_process_with_all_roles_is_told_once_and_listed_for_each() {
    let profiler = Profiler {
        dir: "/traces".into(),
        max_bytes: CAP,
        mode: Mode::Manual,
        sample_rate: None,
    };
    let mut server = Server::with(Some(profiler));
    server.recorders.push((CORE, Vec::new()));
    let roles = [Role::Frontend, Role::Core, Role::Worker { rank: 0 }];
    server.controller.joined(CORE, &roles);
    let state = server.done(start(StartProfile::default()));
    assert_eq!(server.sessions(CORE).len(), 1);
    assert_eq!(parts(&state), all("Recording"));
}
