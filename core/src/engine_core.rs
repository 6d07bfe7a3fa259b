//! The loop: receive, schedule, execute, update, send.

use crate::error::CoreError;
use crate::peers::{Endpoint, FrontendEvent, PeerEvent, Peers, WaitFor, WorkerEvent};
use crate::request_tracks::RequestTracks;
use crate::scheduler::{Plan, Refusal, Scheduler};
use crate::sequence::ClientId;
use crate::slow_rules::SlowRules;
use crate::start_up::load_workers;
use crate::step_recording::StepRecording;
use nano_ipc::config::CoreConfig;
use nano_ipc::engine_core_output::{EngineCoreOutput, FinishReason};
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::flight::RuleFired;
use nano_ipc::lifecycle::{Lifecycle, boottime_ns};
use nano_ipc::model_runner_output::ModelRunnerOutput;
use nano_ipc::to_core::ToCore;
use nano_ipc::to_frontend::{SchedulerStats, ToFrontend};
use nano_ipc::to_launcher::ToLauncher;
use nano_ipc::to_worker::ToWorker;
use nano_trace::{Event, Flow, RequestTrack};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long frontends may take to read the last messages of a core that ends.
const GOODBYE: Duration = Duration::from_millis(500);

/// Steps that the workers have before the first one's result is in. With two,
/// workers never wait for the core: it takes in a result, tells frontends and
/// plans while they compute. The price: a newcomer waits for the rest of two
/// steps instead of one, and a sequence that stops is computed once in vain.
const STEPS_IN_FLIGHT: usize = 2;

/// Serves frontends and drives workers until the order to end.
///
/// # Errors
/// When the core cannot go on. Frontends were told why.
pub fn run(
    config: &CoreConfig,
    endpoint: Endpoint,
    run: u64,
    lifecycle: &Lifecycle,
) -> Result<(), CoreError> {
    let mut peers = Peers::new(endpoint, run, config.world_size)?;
    to_the_end(&mut peers, lifecycle, |peers| {
        serve(config, peers, lifecycle)
    })
}

/// Serves, and whatever ends it, a panic too, tells the frontends.
fn to_the_end(
    peers: &mut Peers,
    lifecycle: &Lifecycle,
    serve: impl FnOnce(&mut Peers) -> Result<(), CoreError>,
) -> Result<(), CoreError> {
    // The peers are whole after a panic anywhere else: their methods are not
    // left half-way by one in the scheduler.
    let served = catch_unwind(AssertUnwindSafe(|| serve(peers)));
    let outcome = served.unwrap_or_else(|panic| Err(CoreError::Panicked(panic_text(&*panic))));
    let reason = match &outcome {
        Err(error) => error.to_string(),
        Ok(()) => lifecycle
            .shutdown()
            .map_or_else(String::new, |order| order.reason),
    };
    peers.say_goodbye(&reason, GOODBYE);
    outcome
}

fn serve(config: &CoreConfig, peers: &mut Peers, lifecycle: &Lifecycle) -> Result<(), CoreError> {
    let Some(info) = load_workers(config, peers, lifecycle)? else {
        return Ok(());
    };
    let mut engine = EngineCore::new(config, info, peers, lifecycle);
    while engine.wait_for_work()? {
        engine.step()?;
    }
    Ok(())
}

/// The step loop's state.
struct EngineCore<'a> {
    info: EngineInfo,
    peers: &'a mut Peers,
    lifecycle: &'a Lifecycle,
    scheduler: Scheduler,
    tracks: RequestTracks,
    recording: StepRecording,
    slow: SlowRules,
    /// Results of each rank that were not yet taken in, in order of steps.
    results: Vec<VecDeque<ModelRunnerOutput>>,
    steps_in_flight: usize,
    /// What frontends are told at the end of the turn.
    outputs: Vec<(ClientId, EngineCoreOutput)>,
    /// What every frontend was last told.
    told: SchedulerStats,
}

impl<'a> EngineCore<'a> {
    fn new(
        config: &CoreConfig,
        info: EngineInfo,
        peers: &'a mut Peers,
        lifecycle: &'a Lifecycle,
    ) -> EngineCore<'a> {
        for client in peers.frontends() {
            peers.send_to_frontend(client, &ToFrontend::Ready(info.clone()));
        }
        EngineCore {
            scheduler: Scheduler::new(&info, config.max_waiting),
            info,
            peers,
            lifecycle,
            tracks: RequestTracks::default(),
            recording: StepRecording::new(config.workers_record),
            slow: SlowRules::new(&config.rules),
            results: vec![VecDeque::new(); config.world_size as usize],
            steps_in_flight: STEPS_IN_FLIGHT,
            outputs: Vec::new(),
            told: SchedulerStats::default(),
        }
    }

    /// Takes in messages until there is something to run; `false` once the
    /// order to end was given.
    fn wait_for_work(&mut self) -> Result<bool, CoreError> {
        loop {
            if self.lifecycle.shutdown().is_some() {
                return Ok(false);
            }
            if self.scheduler.has_work() {
                return Ok(true);
            }
            self.draw_gauges(None);
            self.lifecycle.idle();
            self.receive(WaitFor::Anybody)?;
            self.send();
        }
    }

    /// One turn.
    fn step(&mut self) -> Result<(), CoreError> {
        self.recording.turn_begins(self.lifecycle);
        let slice = nano_trace::slice(Event::CoreStep, []);
        self.lifecycle.busy(self.scheduler.last_step_id().0 + 1);
        self.receive(WaitFor::Nobody)?;
        let plan = self.schedule();
        let step = self.draw_gauges(plan.as_ref());
        let nothing_to_plan = plan.is_none();
        if let Some(plan) = plan {
            if let Some(mark) = self.recording.planned(&plan, self.lifecycle) {
                self.peers.send_to_workers(&ToWorker::Mark(mark))?;
            }
            self.execute(plan)?;
        }
        let enough = nothing_to_plan || self.scheduler.num_in_flight() >= self.steps_in_flight;
        if enough && let Some(result) = self.wait_for_result()? {
            self.update(result)?;
        }
        self.send();
        let (_, began_ns) = self.lifecycle.progress();
        self.report(self.slow.stepped(began_ns, boottime_ns));
        slice.end(step);
        Ok(())
    }

    fn receive(&mut self, whom: WaitFor) -> Result<(), CoreError> {
        self.peers.wait(whom, self.lifecycle.shutdown_fd())?;
        let slice = nano_trace::slice(Event::CoreReceive, []);
        let events = self.peers.receive()?;
        let num_messages = events.len() as u64;
        for event in events {
            match event {
                PeerEvent::Frontend(client, event) => self.hear(client, event),
                PeerEvent::Worker(rank, event) => self.collect(rank, event)?,
            }
        }
        self.record_events();
        slice.end([num_messages]);
        Ok(())
    }

    fn hear(&mut self, client: ClientId, event: FrontendEvent) {
        match event {
            FrontendEvent::Joined => {
                let ready = ToFrontend::Ready(self.info.clone());
                self.peers.send_to_frontend(client, &ready);
            }
            FrontendEvent::Message(ToCore::Add(request)) => self.add(client, request),
            FrontendEvent::Message(ToCore::Abort(id)) => {
                if self.scheduler.abort(client, id) {
                    self.finish(client, id, FinishReason::Abort);
                }
            }
            FrontendEvent::Message(_) => {}
            FrontendEvent::Left => {
                let aborted = self.scheduler.abort_client(client);
                if aborted > 0 {
                    log::info!("frontend {} has gone, {aborted} requests with it", client.0);
                }
            }
        }
    }

    fn add(&mut self, client: ClientId, request: EngineCoreRequest) {
        let id = request.id;
        let track = RequestTrack::new(request.trace_key);
        track.describe(Event::Queued, &[("request_id", &request.external_id)]);
        let trace_key = request.trace_key;
        self.slow.added(&request, boottime_ns);
        let added = self.scheduler.add(client, request);
        if added.is_err() {
            self.slow.refused(trace_key);
        }
        match added {
            Ok(()) => {}
            // An answer under this id would end the request that has it.
            Err(refusal @ Refusal::DuplicateId(_)) => {
                log::error!("frontend {}: a request is ignored: {refusal}", client.0);
            }
            Err(refusal @ Refusal::QueueFull(_)) => {
                self.finish(client, id, FinishReason::Refused(refusal.to_string()));
            }
            Err(refusal) => {
                self.finish(client, id, FinishReason::Error(refusal.to_string()));
            }
        }
    }

    /// A request's last output, when there is nothing else to say about it.
    fn finish(&mut self, client: ClientId, id: RequestId, reason: FinishReason) {
        let output = EngineCoreOutput {
            id,
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: None,
            num_cached_tokens: 0,
            first_step_ns: 0,
            finish_reason: Some(reason),
        };
        self.outputs.push((client, output));
    }

    fn collect(&mut self, rank: u32, event: WorkerEvent) -> Result<(), CoreError> {
        let what = match (event, self.results.get_mut(rank as usize)) {
            (WorkerEvent::StepDone(result), Some(results)) => {
                results.push_back(result);
                return Ok(());
            }
            (WorkerEvent::StepDone(_), None) => "no such rank",
            (WorkerEvent::Loaded(_), _) => "it sent Loaded twice",
        };
        let what = what.into();
        Err(CoreError::WorkerProtocol { rank, what })
    }

    fn schedule(&mut self) -> Option<Plan> {
        let _slice = nano_trace::slice(Event::Schedule, []);
        let plan = self.scheduler.schedule(boottime_ns());
        self.record_events();
        plan
    }

    /// Draws what the scheduler did, and judges it.
    fn record_events(&mut self) {
        let events = self.scheduler.take_events();
        let fired = self.slow.saw(&events, boottime_ns);
        self.tracks.record(events);
        self.report(fired);
    }

    fn report(&self, fired: impl IntoIterator<Item = RuleFired>) {
        for fired in fired {
            self.lifecycle.report(ToLauncher::RuleFired(fired));
        }
    }

    /// Sets the trace's counters; returns the step's arguments.
    fn draw_gauges(&self, plan: Option<&Plan>) -> [u64; 5] {
        let stats = self.scheduler.stats();
        let (prefill, decode) = plan.map_or((0, 0), |plan| {
            (
                plan.num_prefill_tokens as u64,
                plan.num_decode_tokens as u64,
            )
        });
        let (running, waiting) = (stats.num_running.into(), stats.num_waiting.into());
        nano_trace::counter(Event::Running, running);
        nano_trace::counter(Event::WaitingSequences, waiting);
        nano_trace::counter(Event::KvBlocksUsed, stats.num_used_blocks.into());
        nano_trace::counter(Event::BatchedTokens, prefill + decode);
        [stats.num_steps, prefill, decode, running, waiting]
    }

    fn execute(&mut self, plan: Plan) -> Result<(), CoreError> {
        let step_id = plan.output.step_id.0;
        let ranks = 0..self.results.len() as u32;
        let flows: Vec<_> = ranks
            .map(|rank| Flow::step_to_rank(step_id, rank))
            .collect();
        let slice = nano_trace::slice_with(Event::Dispatch, [], &flows);
        let bytes = self.peers.send_to_workers(&ToWorker::Step(plan.output))?;
        slice.end([bytes as u64]);
        Ok(())
    }

    /// Waits for every rank's result of the oldest step in flight; `None` when
    /// there is none, or the order to end came first.
    fn wait_for_result(&mut self) -> Result<Option<ModelRunnerOutput>, CoreError> {
        if self.scheduler.num_in_flight() == 0 {
            return Ok(None);
        }
        let _slice = nano_trace::slice(Event::WaitWorkers, []);
        while self.results.iter().any(VecDeque::is_empty) {
            self.peers
                .wait(WaitFor::Workers, self.lifecycle.shutdown_fd())?;
            if self.lifecycle.shutdown().is_some() {
                return Ok(None);
            }
            for event in self.peers.receive()? {
                match event {
                    PeerEvent::Worker(rank, event) => self.collect(rank, event)?,
                    PeerEvent::Frontend(client, event) => self.hear(client, event),
                }
            }
        }
        // All ranks sample alike; the first one's word is taken.
        let mut results = self.results.iter_mut().filter_map(VecDeque::pop_front);
        let first = results.next();
        let due = first.as_ref().map(|result| result.step_id);
        match results.position(|result| Some(result.step_id) != due) {
            None => Ok(first),
            Some(behind) => Err(CoreError::WorkerProtocol {
                rank: behind as u32 + 1,
                what: "its result is of another step than the first rank's".into(),
            }),
        }
    }

    fn update(&mut self, result: ModelRunnerOutput) -> Result<(), CoreError> {
        let step_id = result.step_id.0;
        let ranks = 0..self.results.len() as u32;
        let flows: Vec<_> = ranks
            .map(|rank| Flow::rank_to_core(step_id, rank))
            .collect();
        let num_sampled = result.sampled.len() as u64;
        let _slice = nano_trace::slice_with(Event::Update, [num_sampled], &flows);
        let done = result.step_id;
        self.outputs.extend(self.scheduler.update(result)?);
        self.record_events();
        self.recording.done(done, self.lifecycle);
        Ok(())
    }

    /// Tells frontends what their requests got, and all of them how the queues
    /// stand when that is news: a long prompt yields no output for many steps,
    /// and the end of the last request none at all.
    fn send(&mut self) {
        let stats = self.scheduler.stats();
        let queues =
            |stats: &SchedulerStats| (stats.num_running, stats.num_waiting, stats.num_requests);
        let is_news = if self.scheduler.has_work() {
            queues(&stats) != queues(&self.told)
        } else {
            stats != self.told
        };
        if self.outputs.is_empty() && !is_news {
            return;
        }
        let num_outputs = self.outputs.len() as u64;
        let _slice = nano_trace::slice(Event::CoreSend, [num_outputs]);
        let mut by_client = BTreeMap::<_, Vec<_>>::new();
        for (client, output) in self.outputs.drain(..) {
            by_client.entry(client).or_default().push(output);
        }
        if is_news {
            self.told = stats;
            for client in self.peers.frontends() {
                by_client.entry(client).or_default();
            }
        }
        for (client, outputs) in by_client {
            let message = ToFrontend::Outputs { outputs, stats };
            self.peers.send_to_frontend(client, &message);
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a text".into())
}

#[cfg(test)]
mod tests;
