//! What runs in the next step. Pure: no I/O, no clock, no randomness.

mod event;
mod integrity;
mod refusal;
mod update;

pub use event::{NotAdmitted, SchedulerEvent, TracedEvent};
pub use refusal::Refusal;
pub use update::WorkerMistake;

use crate::kv_cache::KvCacheManager;
use crate::sequence::{ClientId, Rank, RequestKey, Sequence, SequenceStatus};
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::engine_info::EngineInfo;
use nano_ipc::scheduler_output::{
    BlockId, NewSequence, ScheduledSequence, SchedulerOutput, SequenceId, StepId,
};
use nano_ipc::to_frontend::SchedulerStats;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// One step as planned.
#[derive(Debug)]
pub struct Plan {
    /// What the workers get.
    pub output: SchedulerOutput,
    /// Tokens of the step before their sequences' first sampled one.
    pub num_prefill_tokens: usize,
    /// Tokens of the step that were sampled by earlier ones.
    pub num_decode_tokens: usize,
}

/// What the core keeps of a plan until its result arrives.
#[derive(Debug)]
struct StepInFlight {
    step_id: StepId,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    id: SequenceId,
    /// First token computed.
    start: usize,
    num_tokens: usize,
    is_prefill: bool,
    /// Whether it reaches the sequence's last token, and so yields the next.
    samples: bool,
    /// The sequence's when the row was planned: blocks of an earlier
    /// residence are not its blocks any more.
    num_preemptions: u32,
}

/// Continuous batching with a token budget: each step runs what runs already,
/// then what waits, until tokens, slots or KV blocks are used up. A prompt
/// longer than what is left of the budget is computed in chunks.
///
/// Priority, then arrival, orders everything: who gets tokens first, who is
/// admitted next, and, reversed, who is preempted when blocks run out.
///
/// Invariants, checked by [`check_integrity`](Self::check_integrity):
/// - every sequence stands in exactly one of `waiting` and `running`, at its
///   rank, as its status says, and under its key in `by_request`;
/// - a running one holds blocks for all its computed tokens, any other none;
/// - at most `max_num_seqs` run, and no step has more than
///   `max_num_batched_tokens`;
/// - workers know exactly the running sequences and those in `forget`;
/// - `num_pending` counts the sampling rows in flight of a sequence.
///
/// Progress: whoever is first by rank can have all blocks (a request that
/// needs more than there are is refused), so it is never kept from running by
/// others, and ends after finitely many steps. [`schedule`](Self::schedule)
/// panics should nothing be runnable though something is open and no step is
/// in flight: a bug must not become a silent hang.
#[derive(Debug)]
pub struct Scheduler {
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    max_model_len: usize,
    max_waiting: usize,
    vocab_size: u32,
    block_size: usize,
    enable_prefix_caching: bool,
    kv_cache: KvCacheManager,
    sequences: HashMap<SequenceId, Sequence>,
    by_request: HashMap<RequestKey, SequenceId>,
    waiting: BTreeSet<Rank>,
    running: BTreeSet<Rank>,
    /// Sequences that workers know and that are named to them no more.
    forget: Vec<SequenceId>,
    /// Steps whose results are to come, in order.
    in_flight: VecDeque<StepInFlight>,
    last_sequence_id: u64,
    last_step_id: StepId,
    last_step_done: StepId,
    stats: SchedulerStats,
    events: Vec<TracedEvent>,
}

impl Scheduler {
    /// Nothing waits, nothing runs. Every number of `info` is at least 1.
    pub fn new(info: &EngineInfo, max_waiting: u32) -> Scheduler {
        let caching = info.enable_prefix_caching;
        Scheduler {
            max_num_seqs: info.max_num_seqs as usize,
            max_num_batched_tokens: info.max_num_batched_tokens as usize,
            max_model_len: info.max_model_len as usize,
            max_waiting: max_waiting as usize,
            vocab_size: info.vocab_size,
            block_size: info.block_size as usize,
            enable_prefix_caching: caching,
            kv_cache: KvCacheManager::new(info.num_kv_blocks, info.block_size, caching),
            sequences: HashMap::new(),
            by_request: HashMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            forget: Vec::new(),
            in_flight: VecDeque::new(),
            last_sequence_id: 0,
            last_step_id: StepId(0),
            last_step_done: StepId(0),
            stats: SchedulerStats::default(),
            events: Vec::new(),
        }
    }

    /// Takes in a request; it waits from here on.
    ///
    /// # Errors
    /// When it can never run, its key is taken, or too many wait.
    pub fn add(&mut self, client: ClientId, request: EngineCoreRequest) -> Result<(), Refusal> {
        self.check_request(client, &request)?;
        self.last_sequence_id += 1;
        let id = SequenceId(self.last_sequence_id);
        let sequence = Sequence::new(id, client, request);
        self.trace(&sequence, SchedulerEvent::Queued);
        self.by_request.insert(sequence.key, id);
        self.waiting.insert(sequence.rank());
        self.sequences.insert(id, sequence);
        Ok(())
    }

    /// Gives a request up; `false` when it is unknown or has ended.
    pub fn abort(&mut self, client: ClientId, id: RequestId) -> bool {
        let Some(sequence) = self.by_request.get(&(client, id)) else {
            return false;
        };
        if let Some(sequence) = self.remove(*sequence) {
            self.trace(&sequence, SchedulerEvent::Aborted);
        }
        true
    }

    /// Gives up all requests of a client that has gone; returns how many.
    pub fn abort_client(&mut self, client: ClientId) -> usize {
        let keys = self.by_request.keys().filter(|key| key.0 == client);
        let ids: Vec<_> = keys.map(|key| key.1).collect();
        ids.iter().filter(|id| self.abort(client, **id)).count()
    }

    /// Whether any request is open, a result is to come, or workers keep what
    /// they shall forget.
    pub fn has_work(&self) -> bool {
        !self.sequences.is_empty() || !self.in_flight.is_empty() || !self.forget.is_empty()
    }

    /// Steps whose results are to come.
    pub fn num_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The last step planned.
    pub fn last_step_id(&self) -> StepId {
        self.last_step_id
    }

    /// Gauges and counters of this moment.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            num_running: self.running.len() as u32,
            num_waiting: self.waiting.len() as u32,
            num_requests: self.sequences.len() as u32,
            num_used_blocks: self.kv_cache.num_used_blocks() as u32,
            num_steps: self.last_step_id.0,
            ..self.stats
        }
    }

    /// What happened since the last call, in order.
    pub fn take_events(&mut self) -> Vec<TracedEvent> {
        std::mem::take(&mut self.events)
    }

    /// Plans the next step, which begins at `now_ns`; `None` when nothing can
    /// run before a step in flight is done, or nothing is open. A step without
    /// a row is planned when nobody is left to run and workers do not know it.
    pub fn schedule(&mut self, now_ns: u64) -> Option<Plan> {
        let mut plan = PlanInProgress {
            step_id: StepId(self.last_step_id.0 + 1),
            now_ns,
            budget: self.max_num_batched_tokens,
            new: Vec::new(),
            scheduled: Vec::new(),
            rows: Vec::new(),
        };
        self.schedule_running(&mut plan);
        self.schedule_waiting(&mut plan);
        if plan.rows.is_empty() {
            assert!(
                self.sequences.is_empty() || !self.in_flight.is_empty(),
                "{} sequences are open, none can run and no step is in flight",
                self.sequences.len()
            );
            if !self.in_flight.is_empty() || self.forget.is_empty() {
                return None;
            }
        }

        self.last_step_id = plan.step_id;
        let prefill = plan.rows.iter().filter(|row| row.is_prefill);
        let num_prefill_tokens = prefill.map(|row| row.num_tokens).sum();
        let num_tokens = self.max_num_batched_tokens - plan.budget;
        self.in_flight.push_back(StepInFlight {
            step_id: plan.step_id,
            rows: plan.rows,
        });
        Some(Plan {
            output: SchedulerOutput {
                step_id: plan.step_id,
                finished: std::mem::take(&mut self.forget),
                new: plan.new,
                scheduled: plan.scheduled,
            },
            num_prefill_tokens,
            num_decode_tokens: num_tokens - num_prefill_tokens,
        })
    }

    /// Gives the running sequences their tokens, first rank first. Where
    /// blocks lack, the last rank loses its own: it does not come back in the
    /// same step, as there are fewer free ones now than it had.
    fn schedule_running(&mut self, plan: &mut PlanInProgress) {
        let order: Vec<_> = self.running.iter().copied().collect();
        // A prompt's chunk leaves a token to every sequence behind it that
        // needs but one: a long prompt does not halt what streams already.
        let needs_one = |id| (self.sequences[&id].num_computable_tokens() == 1) as usize;
        let mut reserved: usize = order.iter().map(|(_, id)| needs_one(*id)).sum();
        for rank @ (_, id) in order {
            let Some(sequence) = self.sequences.get_mut(&id) else {
                continue;
            };
            if sequence.status != SequenceStatus::Running {
                break; // Preempted, as all behind it.
            }
            let wanted = sequence.num_computable_tokens();
            let num_tokens = if wanted == 1 {
                reserved -= 1;
                wanted.min(plan.budget)
            } else {
                wanted.min(plan.budget.saturating_sub(reserved))
            };
            if num_tokens == 0 {
                continue;
            }
            let end = sequence.num_computed_tokens + num_tokens;
            let new_block_ids = loop {
                let sequence = self.sequences.get_mut(&id).expect("it runs");
                if let Some(appended) = self.kv_cache.grow(&mut sequence.block_table, end) {
                    break appended;
                }
                if self.kv_cache.has_retired() {
                    return; // Blocks become free without a victim.
                }
                let victim = *self.running.last().expect("at least this one runs");
                self.preempt(victim);
                if victim == rank {
                    return;
                }
            };
            self.plan_row(plan, id, num_tokens, new_block_ids);
        }
    }

    /// Admits waiting sequences, first rank first, until one has to wait.
    fn schedule_waiting(&mut self, plan: &mut PlanInProgress) {
        while let Some(rank @ (_, id)) = self.waiting.first().copied() {
            let reason = if self.running.len() == self.max_num_seqs {
                NotAdmitted::SequenceSlots
            } else if plan.budget == 0 {
                NotAdmitted::TokenBudget
            } else if self.admit(rank) {
                let sequence = &self.sequences[&id];
                plan.new.push(NewSequence {
                    id,
                    trace_key: sequence.trace_key,
                    token_ids: sequence.token_ids.clone(),
                    num_prompt_tokens: sequence.num_prompt_tokens as u32,
                    num_computed_tokens: sequence.num_computed_tokens as u32,
                    block_ids: sequence.block_table.clone(),
                    sampling: sequence.sampling.clone(),
                });
                let num_tokens = sequence.num_computable_tokens().min(plan.budget);
                self.plan_row(plan, id, num_tokens, Vec::new());
                continue;
            } else {
                NotAdmitted::KvBlocks
            };
            self.note_not_admitted(id, reason);
            return;
        }
    }

    /// Moves a sequence from `waiting` to `running`, with blocks for all its
    /// tokens: a prompt computed in chunks never stops half-way for want of
    /// them. `false`, and nothing changed, when there are too few.
    fn admit(&mut self, rank: Rank) -> bool {
        let sequence = self.sequences.get_mut(&rank.1).expect("it waits");
        if sequence.num_pending > 0 {
            return false; // Preempted, and a step in flight still samples for it.
        }
        let num_tokens = sequence.num_tokens();
        let first_time = sequence.status == SequenceStatus::Waiting;
        let cacheable = if self.enable_prefix_caching && !sequence.needs_prompt_logprobs() {
            sequence.block_hashes(num_tokens, self.block_size)
        } else {
            &[]
        };
        // One block for each running sequence to grow into: without it, the
        // newcomer would be the next step's victim, its prompt computed in vain.
        let num_spare = self.running.len();
        let Some(admission) = self.kv_cache.admit(cacheable, num_tokens, num_spare) else {
            return false;
        };

        sequence.status = SequenceStatus::Running;
        sequence.block_table = admission.block_table;
        sequence.num_computed_tokens = admission.num_cached_tokens;
        sequence.num_prefill_tokens = num_tokens;
        sequence.not_admitted = None;
        if first_time {
            sequence.num_cached_tokens = admission.num_cached_tokens;
            if self.enable_prefix_caching {
                self.stats.prefix_cache_queries += num_tokens as u64;
                self.stats.prefix_cache_hits += admission.num_cached_tokens as u64;
            }
        }
        let event = SchedulerEvent::Admitted {
            num_cached_tokens: admission.num_cached_tokens,
        };
        self.events.push(TracedEvent::new(sequence, event));
        self.waiting.remove(&rank);
        self.running.insert(rank);
        true
    }

    fn plan_row(
        &mut self,
        plan: &mut PlanInProgress,
        id: SequenceId,
        num_tokens: usize,
        new_block_ids: Vec<BlockId>,
    ) {
        let sequence = self.sequences.get_mut(&id).expect("it runs");
        let start = sequence.num_computed_tokens;
        let is_prefill = start < sequence.num_prefill_tokens;
        sequence.num_computed_tokens += num_tokens;
        let samples = sequence.num_computed_tokens == sequence.num_tokens();
        sequence.num_pending += usize::from(samples);
        sequence.last_step = plan.step_id;
        sequence.first_step_ns.get_or_insert(plan.now_ns);
        plan.budget -= num_tokens;
        plan.rows.push(Row {
            id,
            start,
            num_tokens,
            is_prefill,
            samples,
            num_preemptions: sequence.num_preemptions,
        });
        plan.scheduled.push(ScheduledSequence {
            id,
            num_tokens: num_tokens as u32,
            new_block_ids,
        });
        if is_prefill {
            let event = SchedulerEvent::PrefillPlanned {
                step_id: plan.step_id,
                num_tokens,
            };
            self.events.push(TracedEvent::new(sequence, event));
        }
    }

    /// Takes a running sequence's blocks; it waits to be computed anew.
    fn preempt(&mut self, rank: Rank) {
        let sequence = self.sequences.get_mut(&rank.1).expect("it runs");
        let event = SchedulerEvent::Preempted {
            num_blocks: sequence.block_table.len(),
            num_computed_tokens: sequence.num_computed_tokens,
        };
        self.events.push(TracedEvent::new(sequence, event));
        sequence.status = SequenceStatus::Preempted;
        sequence.num_computed_tokens = 0;
        sequence.num_preemptions += 1;
        let block_table = std::mem::take(&mut sequence.block_table);
        let last_step = Some(sequence.last_step).filter(|step| *step > self.last_step_done);
        self.kv_cache.release(block_table, last_step);
        self.running.remove(&rank);
        self.waiting.insert(rank);
        self.forget.push(rank.1);
        self.stats.num_preemptions += 1;
    }

    /// Forgets a sequence, wherever it stands.
    fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(&id)?;
        self.by_request.remove(&sequence.key);
        self.waiting.remove(&sequence.rank());
        if self.running.remove(&sequence.rank()) {
            self.forget.push(id);
            let block_table = std::mem::take(&mut sequence.block_table);
            let last_step = Some(sequence.last_step).filter(|step| *step > self.last_step_done);
            self.kv_cache.release(block_table, last_step);
        }
        Some(sequence)
    }

    /// Notes why the first of the waiting still waits, where it is news.
    fn note_not_admitted(&mut self, id: SequenceId, reason: NotAdmitted) {
        let sequence = self.sequences.get_mut(&id).expect("it waits");
        if sequence.not_admitted.replace(reason) != Some(reason) {
            let event = SchedulerEvent::NotAdmitted(reason);
            self.events.push(TracedEvent::new(sequence, event));
        }
    }

    fn trace(&mut self, sequence: &Sequence, event: SchedulerEvent) {
        self.events.push(TracedEvent::new(sequence, event));
    }
}

/// A plan while rows are added to it.
struct PlanInProgress {
    step_id: StepId,
    now_ns: u64,
    /// Tokens that the step can still take.
    budget: usize,
    new: Vec<NewSequence>,
    scheduled: Vec<ScheduledSequence>,
    rows: Vec<Row>,
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
