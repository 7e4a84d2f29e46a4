//! The batch of a policy that pauses for want of memory only: the request that came last waits.

use std::collections::VecDeque;

use kv_cache::placement::{Measured, Placement, PlanError};

use super::choices::Choice;
use super::{Decided, Policy};
use crate::machine::{Machine, Running};

#[derive(Debug)]
pub(super) struct Waiting {
    machine: Machine,
    choice: Choice,
    /// In the order in which they began to run.
    running: Vec<Running>,
    placements: Vec<Placement>,
    /// In the order in which they are to run.
    waiting: VecDeque<Running>,
    changed: bool,
}

impl Waiting {
    pub(super) fn new(choice: Choice, machine: Machine) -> Self {
        let (running, placements) = (Vec::new(), Vec::new());
        Self { machine, choice, running, placements, waiting: VecDeque::new(), changed: false }
    }

    fn fits(&self) -> Result<bool, PlanError> {
        Ok(self.machine.iteration(&self.running, &self.placements)?.fits)
    }

    /// Chooses for `running`; the last of them wait until the others fit.
    fn shrink(&mut self, decided: &mut Decided) -> Result<(), PlanError> {
        while !self.running.is_empty() {
            if let Some(placements) = self.choice.choose(&self.machine, &self.running)? {
                self.placements = placements;
                return Ok(());
            }
            let last = self.running.pop().into_iter();
            for request in last {
                if self.running.is_empty() {
                    decided.rejected.push(request.id);
                } else {
                    decided.paused.push(request.id);
                    decided.evicted.push((request.id, (1..=self.machine.layers()).collect()));
                    self.waiting.push_front(request);
                }
            }
        }
        self.placements.clear();
        Ok(())
    }

    /// Takes in those that wait, as long as they fit.
    fn grow(&mut self, decided: &mut Decided) -> Result<(), PlanError> {
        while let Some(next) = self.waiting.front().copied() {
            self.running.push(next);
            match self.choice.choose(&self.machine, &self.running)? {
                Some(placements) => {
                    self.placements = placements;
                    self.waiting.pop_front();
                }
                None => {
                    self.running.pop();
                    if !self.running.is_empty() {
                        return Ok(());
                    }
                    self.waiting.pop_front();
                    decided.rejected.push(next.id);
                }
            }
        }
        Ok(())
    }
}

impl Policy for Waiting {
    fn arrive(&mut self, request: Running) {
        self.waiting.push_back(request);
        self.changed = true;
    }

    fn finish(&mut self, id: u64) {
        self.running.retain(|request| request.id != id);
        self.changed = true;
    }

    fn decide(&mut self) -> Result<Decided, PlanError> {
        let mut decided = Decided::default();
        if self.changed {
            self.changed = false;
            self.shrink(&mut decided)?;
            if decided.paused.is_empty() {
                self.grow(&mut decided)?;
            }
        } else if !self.running.is_empty() && !self.fits()? {
            self.shrink(&mut decided)?;
        }
        if self.running.is_empty() {
            self.grow(&mut decided)?;
        }
        decided.batch = self.running.iter().copied().zip(self.placements.iter().cloned()).collect();
        Ok(decided)
    }

    fn stepped(&mut self, _now_ns: u64, _measured: Measured) {
        self.running.iter_mut().for_each(|request| request.tokens += 1);
    }
}
