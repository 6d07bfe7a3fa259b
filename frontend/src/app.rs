//! What all handlers share.

use crate::api_error::ApiError;
use crate::body::Bodies;
use crate::engine_client::{Ending, EngineClient, EngineState, NewSequence};
use crate::generation_options::GenerationOptions;
use crate::metrics::EngineMetrics;
use crate::prompt::Prompt;
use crate::request_head::RequestHead;
use crate::request_trace::SequenceTrace;
use crate::served_model::{ServedModel, ServedNames};
use crate::text::TextModel;
use crate::text_delta::TextStream;
use crate::waiter::{Waiter, Waiting};
use nano_ipc::config::FrontendConfig;
use nano_ipc::engine_core_request::{EngineCoreRequest, RequestId};
use nano_ipc::lifecycle::Lifecycle;
use nano_ipc::sampling_params::SamplingParams;
use nano_trace::{Flow, RequestTrack};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// Bodies up to this many bytes are parsed and tokenized on the event loop, and
/// answers written: a few milliseconds at most, less than it costs others to
/// wait for a thread.
const INLINE_BYTES: usize = 8 << 10;

/// What all handlers share.
pub struct App {
    /// As the launcher set it up.
    pub config: FrontendConfig,
    /// What clients may call the model.
    pub names: Arc<ServedNames>,
    /// Reads what clients send.
    pub bodies: Bodies,
    /// The core.
    pub engine: EngineClient,
    /// Everything that is counted.
    pub metrics: Arc<EngineMetrics>,
    /// Set once it is loaded.
    pub model: OnceLock<Arc<TextModel>>,
    /// Seconds since 1970 when the server started, for `/v1/models`.
    pub created: u64,
    lifecycle: Arc<Lifecycle>,
    /// Numbers of requests, and what they are mixed with.
    run: u64,
    next_number: AtomicU64,
    seed: u64,
    /// Threads that prompts may occupy at once.
    threads: Arc<Semaphore>,
}

/// What a request's sequences need beside the prompt.
pub struct Submission<'a> {
    /// Of the HTTP request.
    pub head: &'a RequestHead,
    /// The id that the client sees.
    pub external_id: &'a str,
    /// The track of the first sequence.
    pub trace: SequenceTrace,
    /// Each is answered `options.n` times.
    pub prompts: &'a [Prompt],
    /// For each prompt, most tokens of its answers; at least 1.
    pub max_tokens: &'a [u32],
    /// Of every sequence.
    pub options: &'a GenerationOptions,
}

impl App {
    /// `run`: random word of the server's start; `seed`: seeds requests that
    /// bring no seed.
    pub fn new(
        config: FrontendConfig,
        engine: EngineClient,
        metrics: Arc<EngineMetrics>,
        lifecycle: Arc<Lifecycle>,
        run: u64,
        seed: u64,
    ) -> App {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        App {
            names: Arc::new(ServedNames::new(config.served_model_names.clone())),
            bodies: Bodies::new(config.max_body_bytes),
            config,
            engine,
            metrics,
            model: OnceLock::new(),
            created: unix_seconds(),
            lifecycle,
            run,
            next_number: AtomicU64::new(1),
            seed,
            threads: Arc::new(Semaphore::new(threads)),
        }
    }

    /// Why no request can be taken now.
    ///
    /// # Errors
    /// The reason, for `/health` and for whoever asks for more.
    pub fn health(&self) -> Result<(), String> {
        if let Some(shutdown) = self.lifecycle.shutdown() {
            return Err(shutdown.reason);
        }
        if let EngineState::Dead(reason) = self.engine.state() {
            return Err(reason.to_string());
        }
        if let Some(reason) = self.lifecycle.unhealthy() {
            return Err(reason);
        }
        self.engine.info().map_err(|error| error.to_string())?;
        if self.model.get().is_none() {
            return Err("the tokenizer is still loading".to_owned());
        }
        Ok(())
    }

    /// What is shared with the control thread.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// What a request needs to be understood.
    ///
    /// # Errors
    /// 503 while the server takes no requests.
    pub fn ready(&self) -> Result<ServedModel, ApiError> {
        // A stalled engine may go on: its requests wait, they are not refused.
        if let Some(shutdown) = self.lifecycle.shutdown() {
            return Err(ApiError::unavailable(shutdown.reason));
        }
        let info = self.engine.info()?;
        let text = self
            .model
            .get()
            .ok_or_else(|| ApiError::unavailable("the tokenizer is still loading"))?;
        Ok(ServedModel {
            names: Arc::clone(&self.names),
            text: Arc::clone(text),
            info,
        })
    }

    /// A word that no other request of this server's run has: key of a
    /// request's track, and its id where the client brings none.
    pub fn unique_key(&self) -> u64 {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        mix(self.run.wrapping_add(number))
    }

    /// Does work whose cost grows with so many bytes of a request or an answer:
    /// on the event loop when that is little, else on one of a few threads, which
    /// nobody may wait for any more once the future is dropped.
    ///
    /// # Errors
    /// The work's own, and 500 when it panics.
    pub async fn preprocess<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Waiter) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let waiting = Waiting::begin();
        let waiter = waiting.waiter();
        if bytes <= INLINE_BYTES {
            return work(&waiter);
        }
        let failed = |_| ApiError::internal("the request could not be processed");
        // Closed never: an error cannot happen.
        let permit = Arc::clone(&self.threads)
            .acquire_owned()
            .await
            .map_err(|error| ApiError::internal(error.to_string()))?;
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&waiter)
        })
        .await
        .map_err(failed)?
    }

    /// Hands every prompt, `n` times each, to the engine. Sequence `i` belongs
    /// to prompt `i / n`.
    ///
    /// # Errors
    /// When the engine is full or gone.
    pub fn submit(
        &self,
        submission: Submission<'_>,
        model: &TextModel,
    ) -> Result<TextStream, ApiError> {
        let Submission {
            head,
            external_id,
            mut trace,
            prompts,
            max_tokens,
            options,
        } = submission;
        let n = options.n as usize;
        // A whole answer is made when all sequences have ended: the first one of
        // a prompt tells of it for all. In a stream each begins on its own.
        let all_tell = options.streaming.is_some();
        let count = prompts.len() * n;
        let admission = match self.engine.admit(count) {
            Ok(admission) => admission,
            Err(error) => {
                trace.finish(Ending::Error);
                return Err(error.into());
            }
        };
        let mut first_trace = Some(trace);
        let mut sequences = Vec::with_capacity(count);
        for (prompt, max_tokens) in prompts.iter().zip(max_tokens) {
            for choice in 0..n {
                let index = sequences.len();
                let id = match index {
                    0 => external_id.to_owned(),
                    _ => format!("{external_id}-{index}"),
                };
                let trace = first_trace
                    .take()
                    .unwrap_or_else(|| self.begin_trace(head, &id));
                let seed = match options.seed_given {
                    true => options.sampling.seed.wrapping_add(choice as u64),
                    false => mix(self.seed ^ trace.trace_key()),
                };
                sequences.push(NewSequence {
                    request: EngineCoreRequest {
                        // The client gives it.
                        id: RequestId(0),
                        trace_key: trace.trace_key(),
                        external_id: bounded(id),
                        prompt_token_ids: prompt.token_ids().to_vec(),
                        max_tokens: *max_tokens,
                        priority: options.priority,
                        sampling: SamplingParams {
                            seed,
                            prompt_logprobs: options
                                .sampling
                                .prompt_logprobs
                                .filter(|_| choice == 0 || all_tell),
                            ..options.sampling.clone()
                        },
                    },
                    trace,
                });
            }
        }
        let generation = admission.submit(sequences, head.arrived_ns);
        Ok(TextStream::new(
            generation,
            external_id.to_owned(),
            prompts.iter().map(Prompt::len).sum(),
            options,
            model,
        ))
    }

    /// Begins the track of a request, or of a further sequence of it.
    pub fn begin_trace(&self, head: &RequestHead, external_id: &str) -> SequenceTrace {
        let key = match (self.unique_key(), head.is_marked) {
            (key, true) => key | RequestTrack::MARKED,
            (key, false) => key & !RequestTrack::MARKED,
        };
        let own_id = head
            .has_own_id
            .then_some(("x_request_id", head.id.as_str()));
        let parent = head
            .traceparent
            .as_deref()
            .map(|parent| ("traceparent", parent));
        let texts = [Some(("request_id", external_id)), own_id, parent];
        let texts: Vec<_> = texts.into_iter().flatten().collect();
        let of_client = head.traceparent.as_deref().and_then(Flow::of_traceparent);
        SequenceTrace::begin(key, &texts, of_client)
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The longest id that the engine takes is 128 bytes; ids are ASCII.
fn bounded(mut id: String) -> String {
    const MAX_BYTES: usize = 128;
    if id.len() > MAX_BYTES {
        // Its end tells a request's sequences apart.
        id.drain(..id.len() - MAX_BYTES);
    }
    id
}

/// A bijection of 64-bit words that scatters neighbours (the finalizer of
/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
