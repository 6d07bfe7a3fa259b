//! The flight recorder's part.

use super::*;
use crate::profile_controller::flight::{BETWEEN_DUMPS_BY_RULE, MADE_WITHIN, MAX_WAITING};
use nano_ipc::flight::{FlightRules, FlightState, Rule, RuleFired, RuleKind};

const KEEP: Duration = Duration::from_secs(10);
const KEEP_NS: u64 = 10_000_000_000;

fn flying() -> Server {
    Server::start(Mode::Flight(FlightSettings {
        keep: KEEP,
        rules: "ttft_ms>500,step_ms>100".parse().expect("rules"),
    }))
}

fn dump(name: Option<&str>, reach: Option<u64>) -> ProfileCommand {
    ProfileCommand::Dump {
        name: name.map(self::name),
        reach: reach.map(Duration::from_secs),
        ignored: Vec::new(),
    }
}

fn fired(kind: RuleKind, value_ms: u64, request_id: Option<&str>) -> RuleFired {
    let rules: FlightRules = "ttft_ms>500,step_ms>100".parse().expect("rules");
    let limit = rules.limit(kind).expect("a rule");
    RuleFired {
        rule: Rule { kind, limit },
        value: Duration::from_millis(value_ms),
        request_id: request_id.map(str::to_owned),
    }
}

fn of_file(name: &SessionName, state: SessionState) -> SessionStatus {
    status(name.clone(), state)
}

impl Server {
    fn fire(&mut self, pid: u32, fired: RuleFired) {
        let message = ToLauncher::RuleFired(fired);
        self.controller.heard(self.now, pid, message);
        self.settle();
    }

    /// Makes the oldest dump that was ordered.
    fn make(&mut self, state: SessionState) -> DumpOrder {
        let order = self.dumps.remove(0);
        let part = |pid| (pid, Some(of_file(&order.name, state.clone())));
        self.controller.dumped(Dumped {
            number: order.number,
            parts: PIDS.map(part).to_vec(),
        });
        self.settle();
        order
    }

    fn flight(&mut self) -> FlightState {
        let state = self.done(ProfileCommand::Status);
        state.flight.expect("it keeps")
    }
}

fn fact<'o>(order: &'o DumpOrder, key: &str) -> Option<&'o str> {
    let mut facts = order.facts.iter();
    facts
        .find(|(name, _)| name == key)
        .map(|(_, value)| value.as_str())
}

#[test]
fn a_client_is_answered_when_its_dump_is_made() {
    let mut server = flying();
    assert_eq!(server.counting, None);
    assert!(
        server.log[0].contains("ttft_ms>500 or step_ms>100"),
        "{:?}",
        server.log
    );
    let id = server.ask(dump(Some("slow"), Some(3)));
    assert_eq!(server.answer_to(id), None, "not yet");
    let order = server.make(SessionState::Finished);
    assert_eq!(order.name, name("slow"));
    assert_eq!((order.from_ns, order.to_ns), (T0 - 3_000_000_000, T0));
    assert_eq!(order.max_bytes, CAP);
    assert_eq!(fact(&order, "trigger"), Some("http"));
    assert_eq!(fact(&order, "flight_seconds"), Some("3"));
    let Some(ProfileAnswer::Done(state)) = server.answer_to(id) else {
        panic!("no answer")
    };
    assert_eq!(parts(&state), all("Finished"));
    let files = server.command(ProfileCommand::Files(Some(name("slow"))));
    assert!(matches!(files, ProfileAnswer::Files { .. }), "{files:?}");
    // Without a name, and as far as is kept; and a taken one.
    server.ask(dump(None, None));
    let order = server.make(SessionState::Finished);
    assert_eq!(order.name.as_str(), "flight-20261130T170503.123Z");
    assert_eq!(order.from_ns, T0 - KEEP_NS);
    server.ask(dump(Some("slow"), None));
    assert_eq!(server.make(SessionState::Capped).name.as_str(), "slow-2");
}

#[test]
fn what_could_not_be_written_is_an_error_with_its_reason() {
    let mut server = flying();
    let id = server.ask(dump(None, None));
    server.make(SessionState::Failed("disk full".to_owned()));
    let failed = ProfileAnswer::Failed("disk full".to_owned());
    assert_eq!(server.answer_to(id), Some(failed));
    let files = server.command(ProfileCommand::Files(None));
    assert_eq!(files, ProfileAnswer::UnknownSession);
    // The newest that has files is had without its name.
    for (session, state) in [
        ("whole", SessionState::Finished),
        ("failed", SessionState::Failed("disk full".to_owned())),
    ] {
        let id = server.ask(dump(Some(session), None));
        server.make(state);
        assert!(server.answer_to(id).is_some());
    }
    let files = server.command(ProfileCommand::Files(None));
    let ProfileAnswer::Files { session, .. } = files else {
        panic!("{files:?}")
    };
    assert_eq!(session, name("whole"));
    // Nobody writes.
    let id = server.ask(dump(None, None));
    server.pass(MADE_WITHIN);
    let answer = server.answer_to(id);
    assert!(
        matches!(answer, Some(ProfileAnswer::Failed(_))),
        "{answer:?}"
    );
    server.make(SessionState::Finished);
    assert!(server.answers.is_empty(), "once");
}

#[test]
fn without_a_name_the_newest_files_are_had_a_dumps_too() {
    let mut server = flying();
    let newest = |server: &mut Server| match server.command(ProfileCommand::Files(None)) {
        ProfileAnswer::Files { session, .. } => session,
        other => panic!("{other:?}"),
    };
    server.start_named("first");
    server.done(STOP);
    assert_eq!(newest(&mut server), name("first"));
    server.ask(dump(Some("slow"), None));
    assert_eq!(newest(&mut server), name("first"), "it is not made yet");
    server.make(SessionState::Finished);
    assert_eq!(newest(&mut server), name("slow"));
    server.start_named("second");
    assert_eq!(newest(&mut server), name("second"));
    let files = server.command(ProfileCommand::Files(Some(name("first"))));
    assert!(matches!(files, ProfileAnswer::Files { .. }), "{files:?}");
}

#[test]
fn a_client_is_told_what_its_dump_cannot_do() {
    let mut server = flying();
    for (reach, ignored, notes) in [
        (Some(10), vec![], vec![]),
        (
            Some(60),
            vec!["processes".to_owned()],
            vec![
                "seconds: the last 10s are kept (NANO_PROFILER_FLIGHT_SECONDS)",
                "not known here, and ignored: processes",
            ],
        ),
    ] {
        let id = server.ask(ProfileCommand::Dump {
            name: None,
            reach: reach.map(Duration::from_secs),
            ignored,
        });
        server.make(SessionState::Finished);
        let Some(ProfileAnswer::Done(state)) = server.answer_to(id) else {
            panic!("no answer")
        };
        assert_eq!(state.notes, notes);
    }
}

#[test]
fn dumps_that_wait_are_bounded() {
    let mut server = flying();
    for _ in 0..MAX_WAITING {
        server.ask(dump(None, None));
    }
    let answer = server.command(dump(None, None));
    assert_eq!(answer, ProfileAnswer::DumpsWait(MAX_WAITING));
    server.controller.dump_signalled(server.now);
    server.fire(CORE, fired(RuleKind::Step, 200, None));
    assert_eq!(server.dumps.len(), MAX_WAITING);
    let names: BTreeSet<_> = server.dumps.iter().map(|dump| dump.name.clone()).collect();
    assert_eq!(names.len(), MAX_WAITING);
    server.make(SessionState::Finished);
    server.ask(dump(None, None));
    assert_eq!(server.dumps.len(), MAX_WAITING);
}

#[test]
fn dumps_that_were_given_up_wait_until_they_are_made() {
    let mut server = flying();
    for _ in 0..MAX_WAITING {
        server.ask(dump(None, None));
    }
    assert!(server.controller.next_tick().is_some());
    server.pass(MADE_WITHIN);
    assert_eq!(server.answers.len(), MAX_WAITING);
    assert_eq!(server.controller.next_tick(), None, "nobody waits");
    let answer = server.command(dump(None, None));
    assert_eq!(answer, ProfileAnswer::DumpsWait(MAX_WAITING));
    server.pass(MADE_WITHIN);
    assert_eq!(server.answers.len(), MAX_WAITING, "once");
    // The disk goes on.
    let order = server.make(SessionState::Finished);
    let told = server.log.last().expect("a line");
    assert!(
        told.contains(order.name.as_str()) && told.contains("3 files"),
        "{told}"
    );
    server.ask(dump(None, None));
    assert_eq!(server.dumps.len(), MAX_WAITING);
}

#[test]
fn counts_are_told_once_a_tick() {
    let mut server = flying();
    server.fire(CORE, fired(RuleKind::Step, 200, None));
    server.pass(Duration::ZERO);
    assert_eq!(server.counts.fired, [0, 0, 0, 1]);
    for _ in 0..100 {
        let message = ToLauncher::RuleFired(fired(RuleKind::Step, 200, None));
        server.controller.heard(server.now, CORE, message);
    }
    for expected in [1, 0] {
        server.controller.ticked(server.now);
        let actions = server.controller.take_actions();
        assert_eq!(actions.len(), expected, "{actions:?}");
    }
}

#[test]
fn rules_fire_at_most_one_dump_a_minute_and_all_is_counted() {
    let mut server = flying();
    server.fire(FRONTEND, fired(RuleKind::Ttft, 812, Some("cmpl-7")));
    let order = server.make(SessionState::Finished);
    for (key, value) in [
        ("trigger", "rule"),
        ("rule", "ttft_ms>500"),
        ("value_ms", "812"),
        ("request_id", "cmpl-7"),
        ("flight_seconds", "10"),
    ] {
        assert_eq!(fact(&order, key), Some(value));
    }
    server.pass(BETWEEN_DUMPS_BY_RULE - Duration::from_millis(1));
    for _ in 0..3 {
        server.fire(CORE, fired(RuleKind::Step, 200, None));
    }
    server.fire(FRONTEND, fired(RuleKind::Ttft, 900, Some("cmpl-8")));
    assert!(server.dumps.is_empty());
    // Others are not held back.
    server.controller.dump_signalled(server.now);
    server.settle();
    server.make(SessionState::Finished);
    server.pass(Duration::from_millis(1));
    server.fire(CORE, fired(RuleKind::Step, 300, None));
    let order = server.make(SessionState::Finished);
    assert_eq!(fact(&order, "rule"), Some("step_ms>100"));
    assert_eq!(fact(&order, "request_id"), None);
    let state = server.flight();
    assert_eq!(state.counts.fired, [2, 0, 0, 4]);
    assert_eq!(state.counts.suppressed, [1, 0, 0, 3]);
    assert_eq!(state.counts.dumps, [0, 1, 2, 0, 0]);
    server.pass(Duration::ZERO);
    assert_eq!(server.counts, state.counts, "the frontend knows");
    let fired: Vec<_> = state.dumps.iter().map(|dump| &dump.fired).collect();
    let [Some(ttft), None, Some(step)] = fired[..] else {
        panic!("{fired:?}")
    };
    assert_eq!(ttft.request_id.as_deref(), Some("cmpl-7"));
    assert_eq!(step.value, Duration::from_millis(300));
    assert_eq!(state.keep, KEEP);
}

#[test]
fn panics_fire_once_a_minute_and_stand_for_the_death_they_cause() {
    let mut server = flying();
    let panicked = || ToLauncher::Panicked("worker: at x.rs: boom".to_owned());
    for _ in 0..2 {
        server.controller.heard(server.now, WORKER, panicked());
        server.settle();
    }
    let order = server.make(SessionState::Finished);
    assert!(server.dumps.is_empty());
    assert_eq!(fact(&order, "trigger"), Some("panic"));
    assert_eq!(fact(&order, "reason"), Some("worker: at x.rs: boom"));
    let told = server.log.iter();
    let told = told.filter(|line| line.contains("a panic is not dumped: another"));
    assert_eq!(told.count(), 1, "{:?}", server.log);
    server.pass(Duration::from_secs(1));
    server.controller.died(server.now);
    let why = "worker-0: internal error";
    let worker = Some(WORKER);
    assert_eq!(server.controller.take_dump_of_death(worker, why), None);
}

#[test]
fn a_panic_stands_for_no_death_of_another_process_and_for_none_long_after() {
    for (pid, later, is_dumped) in [
        (Some(WORKER), Duration::from_secs(1), false),
        (Some(CORE), Duration::from_secs(1), true),
        (None, Duration::from_secs(1), true),
        (Some(WORKER), Duration::from_secs(3), true),
    ] {
        let mut server = flying();
        let panicked = ToLauncher::Panicked("boom".to_owned());
        server.controller.heard(server.now, WORKER, panicked);
        server.pass(later);
        server.controller.died(server.now);
        let order = server.controller.take_dump_of_death(pid, "it ended");
        assert_eq!(order.is_some(), is_dumped, "{pid:?} after {later:?}");
    }
}

#[test]
fn a_death_is_dumped_once_from_the_moment_that_it_was_known() {
    let mut server = flying();
    // Of the first that was seen, and of its root.
    server.controller.died(server.now);
    server.now.boottime_ns += 1_000_000_000;
    server.controller.died(server.now);
    let why = "core was killed by SIGKILL";
    let order = server.controller.take_dump_of_death(Some(CORE), why);
    let order = order.expect("a dump");
    assert_eq!((order.from_ns, order.to_ns), (T0 - KEEP_NS, T0));
    assert_eq!(fact(&order, "trigger"), Some("death"));
    assert_eq!(fact(&order, "reason"), Some("core was killed by SIGKILL"));
    let again = server.controller.take_dump_of_death(Some(CORE), why);
    assert_eq!(again, None);
}

#[test]
fn a_session_is_recorded_beside_as_in_mode_manual() {
    let mut server = flying();
    let begun = server.start_named("mine");
    assert!(matches!(begun, ProfileAnswer::Done(_)), "{begun:?}");
    let id = server.ask(dump(Some("beside"), None));
    server.make(SessionState::Finished);
    let Some(ProfileAnswer::Done(state)) = server.answer_to(id) else {
        panic!("no answer")
    };
    assert_eq!(state.phase, ProfilePhase::Recording);
    let ended = server.done(STOP);
    assert_eq!(ended.sessions[0].name, name("mine"));
    assert_eq!(parts(&ended), all("Finished"));
}

#[test]
fn without_the_mode_nothing_is_dumped() {
    let mut server = Server::start(Mode::Manual);
    assert_eq!(server.command(dump(None, None)), ProfileAnswer::NoFlight);
    server.controller.dump_signalled(server.now);
    server.settle();
    assert!(
        server
            .log
            .last()
            .expect("a hint")
            .contains("NANO_PROFILER_MODE=flight")
    );
    server.controller.died(server.now);
    let why = "core was killed";
    assert_eq!(server.controller.take_dump_of_death(Some(CORE), why), None);
    assert_eq!(server.done(ProfileCommand::Status).flight, None);
    let mut server = Server::with(None);
    server.controller.joined(FRONTEND, &[Role::Frontend]);
    assert_eq!(server.command(dump(None, None)), ProfileAnswer::Off);
}
