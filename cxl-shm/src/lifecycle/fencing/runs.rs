//! What a fence has begun, for each victim.

use crate::layout::{Case, Machine};
use crate::lifecycle::fencing::{FenceOrder, FenceState};
use crate::units::NodeId;

/// Attempts to fence: one for each victim, and never two at once for the same one. `T` is an
/// attempt that is under way. Dropping it gives the attempt up.
#[derive(Debug)]
pub(super) struct Runs<T> {
    again_ms: u64,
    runs: Vec<Run<T>>,
}

#[derive(Debug)]
struct Run<T> {
    victim: NodeId,
    case: Case,
    machine: Option<Machine>,
    /// When the stage began.
    since_ms: u64,
    stage: Stage<T>,
}

#[derive(Debug)]
enum Stage<T> {
    Running(T),
    Over(Result<(), String>),
}

impl<T> Runs<T> {
    /// No attempts. One that failed is repeated `again_ms` after its failure.
    pub(super) fn new(again_ms: u64) -> Self {
        Self { again_ms, runs: Vec::new() }
    }

    /// How the fence of `order` stands. `start` begins an attempt: at the first call for a victim,
    /// case and machine, and after a failure. `look` says how a running attempt of so many ms
    /// ended, or `None` while it runs.
    pub(super) fn poll(
        &mut self,
        order: &FenceOrder,
        now_ms: u64,
        start: impl FnOnce() -> Result<T, String>,
        look: impl FnOnce(&mut T, u64) -> Option<Result<(), String>>,
    ) -> FenceState {
        let FenceOrder { victim, case, machine, .. } = *order;
        let asked = (victim, case, machine);
        let same = |run: &Run<T>| (run.victim, run.case, run.machine) == asked;
        // Another case of the victim, or another machine, makes an older attempt worthless.
        self.runs.retain(|run| {
            run.victim != victim || same(run) && !run.is_due_again(now_ms, self.again_ms)
        });
        let index = self.runs.iter().position(same).unwrap_or_else(|| {
            let stage = start().map_or_else(|reason| Stage::Over(Err(reason)), Stage::Running);
            self.runs.push(Run { victim, case, machine, since_ms: now_ms, stage });
            self.runs.len() - 1
        });
        self.runs[index].look(now_ms, look)
    }
}

impl<T> Run<T> {
    /// Whether the attempt failed, and so long ago that it is to be repeated.
    fn is_due_again(&self, now_ms: u64, again_ms: u64) -> bool {
        let past_ms = now_ms.saturating_sub(self.since_ms);
        matches!(self.stage, Stage::Over(Err(_))) && past_ms >= again_ms
    }

    fn look(
        &mut self,
        now_ms: u64,
        look: impl FnOnce(&mut T, u64) -> Option<Result<(), String>>,
    ) -> FenceState {
        if let Stage::Running(attempt) = &mut self.stage {
            let Some(outcome) = look(attempt, now_ms.saturating_sub(self.since_ms)) else {
                return FenceState::Running;
            };
            (self.stage, self.since_ms) = (Stage::Over(outcome), now_ms);
        }
        match &self.stage {
            Stage::Running(_) => FenceState::Running,
            Stage::Over(Ok(())) => FenceState::Fenced,
            Stage::Over(Err(reason)) => FenceState::NotFenced(reason.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Incarnation;
    use std::cell::Cell;
    use std::rc::Rc;

    const AGAIN_MS: u64 = 100;

    /// An attempt, which counts when it is given up.
    struct Attempt(Rc<Cell<u32>>);

    impl Drop for Attempt {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    /// Attempts with the number of those begun and dropped.
    struct Bed {
        runs: Runs<Attempt>,
        begun: u32,
        dropped: Rc<Cell<u32>>,
    }

    impl Bed {
        fn new() -> Self {
            Self { runs: Runs::new(AGAIN_MS), begun: 0, dropped: Rc::default() }
        }

        fn poll(
            &mut self,
            order: &FenceOrder,
            now_ms: u64,
            outcome: Option<Result<(), &str>>,
        ) -> FenceState {
            let start = || {
                self.begun += 1;
                Ok(Attempt(Rc::clone(&self.dropped)))
            };
            let outcome = outcome.map(|outcome| outcome.map_err(str::to_owned));
            self.runs.poll(order, now_ms, start, |_, _| outcome)
        }
    }

    fn order(victim: u16, appointment: u32) -> FenceOrder {
        FenceOrder {
            victim: NodeId(victim),
            case: Case { incarnation: Incarnation(1), appointment },
            incarnation: Incarnation(1),
            host: None,
            machine: None,
        }
    }

    #[test]
    fn an_attempt_begins_once_and_stays_fenced() {
        let mut bed = Bed::new();
        assert_eq!(bed.poll(&order(1, 1), 0, None), FenceState::Running);
        assert_eq!(bed.poll(&order(1, 1), AGAIN_MS * 9, Some(Ok(()))), FenceState::Fenced);
        assert_eq!(bed.poll(&order(1, 1), AGAIN_MS * 99, None), FenceState::Fenced);
        assert_eq!((bed.begun, bed.dropped.get()), (1, 1));
    }

    #[test]
    fn a_failure_is_repeated_some_time_after_it_and_not_after_its_start() {
        let mut bed = Bed::new();
        let failed = FenceState::NotFenced("no".to_owned());
        assert_eq!(bed.poll(&order(1, 1), 0, None), FenceState::Running);
        assert_eq!(bed.poll(&order(1, 1), 500, Some(Err("no"))), failed);
        assert_eq!(bed.poll(&order(1, 1), 500 + AGAIN_MS - 1, None), failed);
        assert_eq!(bed.begun, 1);
        assert_eq!(bed.poll(&order(1, 1), 500 + AGAIN_MS, None), FenceState::Running);
        assert_eq!(bed.poll(&order(1, 1), 501 + AGAIN_MS, Some(Ok(()))), FenceState::Fenced);
        assert_eq!(bed.begun, 2);
    }

    #[test]
    fn an_attempt_that_does_not_begin_has_failed() {
        let mut runs = Runs::<()>::new(AGAIN_MS);
        let begin = || Err("cannot begin".to_owned());
        let state = runs.poll(&order(1, 1), 0, begin, |(), _| None);
        assert_eq!(state, FenceState::NotFenced("cannot begin".to_owned()));
        let state = runs.poll(&order(1, 1), AGAIN_MS, || Ok(()), |(), _| None);
        assert_eq!(state, FenceState::Running);
    }

    #[test]
    fn the_age_of_an_attempt_counts_from_its_start() {
        let mut runs = Runs::<()>::new(AGAIN_MS);
        for (now_ms, age_ms) in [(7, 0), (10, 3), (507, 500)] {
            let look = |(): &mut (), told_ms| {
                assert_eq!(told_ms, age_ms);
                None
            };
            assert_eq!(runs.poll(&order(1, 1), now_ms, || Ok(()), look), FenceState::Running);
        }
    }

    #[test]
    fn another_case_or_machine_gives_the_older_attempt_of_that_victim_up() {
        let mut bed = Bed::new();
        let machine = Some(Machine { boot_id: [1, 2], machine_id: [3, 4] });
        let elsewhere = FenceOrder { machine, ..order(1, 2) };
        bed.poll(&order(1, 1), 0, None);
        bed.poll(&order(2, 1), 0, Some(Ok(())));
        let given_up = bed.dropped.get();
        for (order, at) in [(order(1, 2), 1), (elsewhere, 2)] {
            assert_eq!(bed.poll(&order, 0, None), FenceState::Running);
            assert_eq!(bed.dropped.get() - given_up, at, "two attempts at once for one victim");
        }
        // The other victim's fence still holds.
        assert_eq!(bed.poll(&order(2, 1), 0, None), FenceState::Fenced);
        assert_eq!(bed.begun, 4);
    }
}
