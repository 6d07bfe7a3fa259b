//! What a loop and its control thread share of profiling.
//!
//! A frontend asks, and is answered later, and shows what the launcher counts;
//! the core is told which steps to count, and looks once a turn, for the price
//! of one load.

use crate::flight::FlightCounts;
use crate::profile::{ProfileAnswer, StepsToCount};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Questions of one frontend that the launcher has not answered, at most.
const MAX_QUESTIONS: usize = 64;

type Reply = Box<dyn FnOnce(ProfileAnswer) + Send>;

/// What a loop and its control thread share of profiling.
#[derive(Default)]
pub struct ProfileLink {
    questions: Mutex<Questions>,
    steps: Mutex<Option<StepsToCount>>,
    /// How often `steps` was set.
    changes: AtomicU64,
    flight: Mutex<FlightCounts>,
}

#[derive(Default)]
struct Questions {
    last_id: u64,
    /// At most [`MAX_QUESTIONS`].
    open: HashMap<u64, Reply>,
}

/// The launcher does not answer, or too many ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_QUESTIONS} calls to the profiler are unanswered, the limit")]
pub struct TooManyQuestions;

impl ProfileLink {
    /// Keeps whom to answer; returns the number to ask under.
    ///
    /// # Errors
    /// When too many wait.
    pub fn expect(
        &self,
        reply: impl FnOnce(ProfileAnswer) + Send + 'static,
    ) -> Result<u64, TooManyQuestions> {
        let mut questions = lock(&self.questions);
        if questions.open.len() == MAX_QUESTIONS {
            return Err(TooManyQuestions);
        }
        questions.last_id += 1;
        let id = questions.last_id;
        questions.open.insert(id, Box::new(reply));
        Ok(id)
    }

    /// The answer to a question; one that nobody asked is ignored.
    pub fn answer(&self, id: u64, answer: ProfileAnswer) {
        let reply = lock(&self.questions).open.remove(&id);
        if let Some(reply) = reply {
            reply(answer);
        }
    }

    /// What the launcher counts of the flight recorder.
    pub fn flight_counts(&self) -> FlightCounts {
        lock(&self.flight).clone()
    }

    /// Sets what [`flight_counts`](Self::flight_counts) tells.
    pub fn set_flight_counts(&self, counts: FlightCounts) {
        *lock(&self.flight) = counts;
    }

    /// From now on these steps are to be counted, or none.
    pub fn count_steps(&self, steps: Option<StepsToCount>) {
        *lock(&self.steps) = steps;
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Which steps are to be counted, if that changed since `seen`.
    pub fn steps_to_count(&self, seen: &mut u64) -> Option<Option<StepsToCount>> {
        let changes = self.changes.load(Ordering::Acquire);
        if changes == *seen {
            return None;
        }
        *seen = changes;
        Some(lock(&self.steps).clone())
    }
}

impl fmt::Debug for ProfileLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfileLink")
            .field("steps", &lock(&self.steps))
            .finish_non_exhaustive()
    }
}

/// Plain values, whole at every moment.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_bounds::StepBounds;
    use std::sync::mpsc::channel;

    #[test]
    fn each_question_is_answered_once_and_their_number_is_bounded() {
        let link = ProfileLink::default();
        let (sender, answers) = channel();
        let ask = || {
            let sender = sender.clone();
            link.expect(move |answer| sender.send(answer).expect("it waits"))
        };
        let ids: Vec<u64> = (0..MAX_QUESTIONS).map(|_| ask().expect("room")).collect();
        assert_eq!(ask(), Err(TooManyQuestions));
        for id in ids.iter().chain(&ids) {
            link.answer(*id, ProfileAnswer::Off);
        }
        assert_eq!(answers.try_iter().count(), MAX_QUESTIONS);
        ask().expect("room again");
    }

    #[test]
    fn a_change_is_seen_once() {
        let link = ProfileLink::default();
        let mut seen = 0;
        assert_eq!(link.steps_to_count(&mut seen), None);
        let steps = StepsToCount {
            session: "a".parse().expect("a name"),
            bounds: StepBounds::default(),
        };
        link.count_steps(Some(steps.clone()));
        assert_eq!(link.steps_to_count(&mut seen), Some(Some(steps)));
        assert_eq!(link.steps_to_count(&mut seen), None);
        link.count_steps(None);
        assert_eq!(link.steps_to_count(&mut seen), Some(None));
    }
}
