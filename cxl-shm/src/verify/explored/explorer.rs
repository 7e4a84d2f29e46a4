//! One model on one memory: where it starts, what can happen next, and whether that is right.

use std::rc::Rc;

use super::eager::Mortal;
use super::footprint::Tasks;
use super::hosts::{DEAD, Hosts, Place, State};
use super::locals::{Intention, Locals};
use super::model::{LineStores, Model, Task};
use super::op::Op;
use super::replay::Rules;
use super::settings::Memory;
use crate::units::LineOffset;
use crate::verify::simulated::{CacheMode, Site};

/// What happened from one state to the next, in words, when asked for.
pub(super) type Note = Vec<String>;

/// A state that can follow, and what happened.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) state: State,
    pub(super) note: Note,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Explorer<T> {
    pub(super) model: Model<T>,
    pub(super) hosts: Hosts,
    locals: Locals<T>,
    /// Whether notes are taken.
    pub(super) tells: bool,
    /// Whether independent operations are carried out at once. Only tests do without.
    pub(super) reduces: bool,
}

impl<T: Task> Explorer<T> {
    pub(super) fn new(model: Model<T>, memory: Memory, suppressed: Option<Site>) -> Self {
        let rules = Rules {
            bytes: model.bytes,
            left_out: model.left_out.clone(),
            moved: model.moved.clone(),
            line_stores: match memory.caches {
                CacheMode::Adversarial => model.line_stores,
                CacheMode::Sticky => LineStores::Words,
            },
            suppressed,
        };
        let hosts = Hosts::new(&model, memory);
        Self { model, hosts, locals: Locals::new(Rc::new(rules)), tells: false, reduces: true }
    }

    pub(super) fn start(&mut self) -> Successor {
        let tasks = self.model.tasks.iter();
        let tasks: Vec<_> = tasks.map(|placed| placed.task.clone()).collect();
        let tasks = tasks.into_iter().enumerate();
        let tasks = tasks.map(|(index, task)| self.locals.start(index, task)).collect();
        let state = self.hosts.start(tasks);
        self.reduced(state, Note::new())
    }

    /// Everything that can happen in `state`.
    pub(super) fn successors(&mut self, state: &State) -> Vec<Successor> {
        let mut successors = Vec::new();
        for task in 0..self.tasks() {
            if let Some(op @ Op::Choose(_)) = self.intends(state, task) {
                // Independent of everything: the other operations can wait for it.
                self.act(state, task, op, &mut successors);
                return successors;
            }
        }
        for task in 0..self.tasks() {
            if let Some(op) = self.intends(state, task) {
                self.act(state, task, op, &mut successors);
            }
        }
        self.caches_act(state, &mut successors);
        self.death(state, &mut successors);
        successors
    }

    /// What is wrong in `state`.
    pub(super) fn judge(&self, state: &State) -> Result<(), String> {
        for (placed, local) in self.model.tasks.iter().zip(state) {
            if *local != DEAD
                && let Intention::Refuted(message) = &self.locals.get(*local).intention
            {
                return Err(format!("{}: {message}", placed.name));
            }
        }
        let views = self.views(state);
        (self.model.always)(&views)?;
        if (self.model.ended)(&views) {
            let device = |at: crate::units::WordOffset| {
                self.hosts.device(state, at.line())[at.index_in_line()]
            };
            (self.model.at_end)(&views, &device)?;
        }
        Ok(())
    }

    pub(super) fn has_ended(&self, state: &State) -> bool {
        (self.model.ended)(&self.views(state))
    }

    /// The tasks of `state`, in words.
    pub(super) fn describe(&self, state: &State) -> Note {
        let tasks = self.model.tasks.iter().enumerate();
        let tasks = tasks.map(|(task, placed)| match state[task] {
            DEAD => format!("{} is dead", placed.name),
            number => {
                let local = self.locals.get(number);
                format!("{}: {:?}, next {:?}", placed.name, local.border, local.intention)
            }
        });
        tasks.collect()
    }

    fn tasks(&self) -> usize {
        self.model.tasks.len()
    }

    fn views(&self, state: &State) -> Vec<u64> {
        let tasks = state[..self.tasks()].iter();
        tasks.map(|task| if *task == DEAD { 0 } else { self.locals.get(*task).view }).collect()
    }

    /// The operation that a task is about to carry out; `None` when it does not run.
    fn intends(&self, state: &State, task: usize) -> Option<Op> {
        if !self.has_started(state, task) || state[task] == DEAD {
            return None;
        }
        match &self.locals.get(state[task]).intention {
            Intention::Op(op) => Some(*op),
            Intention::Ended | Intention::Refuted(_) => None,
        }
    }

    fn has_started(&self, state: &State, task: usize) -> bool {
        self.model.tasks[task].after_death_of.is_none_or(|other| state[other] == DEAD)
    }

    /// `task` carries out `op`, in every way.
    fn act(&mut self, state: &State, task: usize, op: Op, successors: &mut Vec<Successor>) {
        let mut state = state.clone();
        let position = self.position(&mut state, task, op);
        for (answer, mut after) in self.hosts.apply(&state, task, op, position) {
            after[task] = self.locals.after(state[task], answer);
            let note = self.note(|this| this.tell(task, op, answer));
            let successor = self.reduced(after, note);
            successors.push(successor);
        }
    }

    /// Where in a state is what `op`, which `task` is about to do, loads or stores.
    fn position(&mut self, state: &mut State, task: usize, op: Op) -> Option<usize> {
        let local = self.locals.get_mut(state[task]);
        // What a store of a line changes follows from what is there.
        if local.noted_in != self.hosts.search || matches!(op, Op::StoreLine(..)) {
            local.noted_in = self.hosts.search;
            self.hosts.note(state, task, op);
        }
        let local = self.locals.get_mut(state[task]);
        if local.position.is_none() {
            local.position = self.hosts.position_of(task, op);
        }
        local.position
    }

    /// What caches and links do by themselves.
    fn caches_act(&mut self, state: &State, successors: &mut Vec<Successor>) {
        if self.hosts.ground.memory.caches == CacheMode::Sticky {
            return;
        }
        for (at, position) in self.lines() {
            let used = self.hosts.ground.line_use(position);
            for host in 0..self.model.hosts {
                // Where a line is that no other host ever touches makes no difference.
                if used.all() & !self.hosts.ground.tasks_of[host] == 0 {
                    continue;
                }
                let copy = &self.hosts.line(state, position).copies[host];
                let (is_dirty, is_posted) = (copy.dirty.is_some(), !copy.posted.is_empty());
                if is_dirty {
                    let mut line = self.hosts.line(state, position).clone();
                    line.write_back(self.hosts.ground.terms(position), host);
                    let what = "its cache writes back";
                    successors.push(self.with_line(state, (at, position), line, host, what));
                }
                if is_posted {
                    let mut line = self.hosts.line(state, position).clone();
                    line.land_one(self.hosts.ground.terms(position), host);
                    let what = "its posted write arrives at";
                    successors.push(self.with_line(state, (at, position), line, host, what));
                }
            }
        }
    }

    fn with_line(
        &mut self,
        state: &State,
        (at, position): (LineOffset, usize),
        line: super::line_state::LineState,
        host: usize,
        what: &str,
    ) -> Successor {
        let mut after = state.clone();
        self.hosts.set_line(&mut after, position, line);
        let note = self.note(|this| format!("host {host}: {what} {}", this.model.name_of(at)));
        self.reduced(after, note)
    }

    fn lines(&self) -> Vec<(LineOffset, usize)> {
        let first = self.tasks() + 1;
        let places = self.hosts.places.iter().enumerate();
        let lines = places.filter_map(|(index, place)| match place {
            Place::Line(at) => Some((*at, first + index)),
            Place::OwnWord(..) => None,
        });
        lines.collect()
    }

    /// Tasks die, and hosts.
    fn death(&mut self, state: &State, successors: &mut Vec<Successor>) {
        let mortal = self.mortal(state);
        for task in (0..self.tasks()).filter(|task| mortal.tasks >> task & 1 == 1) {
            let after = self.hosts.kill(state, task);
            let note = self.note(|this| format!("{} dies", this.model.tasks[task].name));
            let successor = self.reduced(after, note);
            successors.push(successor);
        }
        for host in (0..self.model.hosts).filter(|host| mortal.hosts >> host & 1 == 1) {
            let running = (0..self.tasks()).filter(|task| {
                self.model.tasks[*task].host == host && self.has_started(state, *task)
            });
            let running = running.fold(0, |mask: Tasks, task| mask | 1 << task);
            for after in self.hosts.lose_power(state, host, running) {
                let note = self.note(|_| format!("host {host} loses power"));
                let successor = self.reduced(after, note);
                successors.push(successor);
            }
        }
    }

    /// What may die in `state`, by itself and not because it came to its end.
    fn mortal(&self, state: &State) -> Mortal {
        if state[self.tasks()] >= self.model.deaths {
            return Mortal { tasks: 0, hosts: 0 };
        }
        let tasks = (0..self.tasks())
            .filter(|task| self.model.tasks[*task].mortal && self.intends(state, *task).is_some());
        let is_up = |host: &&usize| {
            let mut tasks = (0..self.tasks()).filter(|task| self.model.tasks[*task].host == **host);
            tasks.any(|task| self.intends(state, task).is_some())
        };
        let hosts = self.model.mortal_hosts.iter().filter(is_up);
        Mortal {
            tasks: tasks.fold(0, |mask, task| mask | 1 << task),
            hosts: hosts.fold(0, |mask, host| mask | 1 << host),
        }
    }

    /// `state` after every operation that is independent of all others.
    fn reduced(&mut self, mut state: State, mut note: Note) -> Successor {
        let mut moved = self.reduces;
        let mut passed = Vec::new();
        while std::mem::take(&mut moved) {
            for task in 0..self.tasks() {
                while let Some(op) = self.intends(&state, task) {
                    let position = self.position(&mut state, task, op);
                    let mortal = self.mortal(&state);
                    if !self.hosts.is_independent(&state, task, op, position, mortal) {
                        break;
                    }
                    let mut ways = self.hosts.apply(&state, task, op, position);
                    let (Some((answer, after)), None) = (ways.pop(), ways.pop()) else {
                        break;
                    };
                    let number = self.locals.after(state[task], answer);
                    if self.locals.get(number).view != self.locals.get(state[task]).view {
                        break;
                    }
                    // One that goes round and waits for something is not ahead of the others.
                    if passed.contains(&number) {
                        break;
                    }
                    passed.push(number);
                    note.extend(self.note(|this| format!("  {}", this.tell(task, op, answer))));
                    state = after;
                    state[task] = number;
                    moved = true;
                }
            }
        }
        Successor { state, note }
    }

    fn note(&self, text: impl FnOnce(&Self) -> String) -> Note {
        if self.tells { vec![text(self)] } else { Note::new() }
    }

    fn tell(&self, task: usize, op: Op, answer: u64) -> String {
        let name = &self.model.tasks[task].name;
        let line = |at: LineOffset| self.model.name_of(at);
        match op {
            Op::Load(at) => {
                format!("{name}: load {}[{}] -> {answer:#x}", line(at.line()), at.index_in_line())
            }
            Op::Store(at, value) => {
                format!("{name}: store {}[{}] := {value:#x}", line(at.line()), at.index_in_line())
            }
            Op::StoreLine(at, words) => format!("{name}: store {} := {words:x?}", line(at)),
            Op::Flush(lines) => format!("{name}: flush {}", line(lines.start())),
            Op::ReadBack(lines) => format!("{name}: read back {}", line(lines.start())),
            Op::Choose(_) => format!("{name}: chooses {answer}"),
            Op::MemoryLoad(_) => format!("{name}: {op} -> {answer:#x}"),
            Op::MemoryExchange { current, .. } if answer != current => {
                format!("{name}: {op}, but found {answer:#x}")
            }
            Op::HasDied(_) => format!("{name}: {op} -> {answer}"),
            Op::Fence
            | Op::MemoryStore(..)
            | Op::MemoryClear
            | Op::MemoryExchange { .. }
            | Op::Pause => {
                format!("{name}: {op}")
            }
        }
    }
}
