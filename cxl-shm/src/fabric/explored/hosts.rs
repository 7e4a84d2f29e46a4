//! The state of all tasks, lines and own words, as a row of numbers, and operations on it.

use super::footprint::{Access, Footprint, Tasks};
use super::intern::{Contents, Interner};
use super::line_state::{LineState, Terms};
use super::model::Model;
use super::op::Op;
use super::quick_hash::QuickMap;
use super::settings::Memory;
use crate::fabric::LineWords;
use crate::units::{LineOffset, LineRange};

/// All of it: the tasks, how many have died, then what was ever written. Numbers at the end that
/// are missing are as at the start.
pub(super) type State = Vec<u32>;

/// A task that has died.
pub(super) const DEAD: u32 = u32::MAX;

/// Something that was ever written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Place {
    Line(LineOffset),
    OwnWord(usize, usize),
}

/// What is the same in all states.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) memory: Memory,
    pub(super) footprint: Footprint,
    /// The host of each task.
    pub(super) host_of: Vec<usize>,
    /// The tasks of each host.
    pub(super) tasks_of: Vec<Tasks>,
}

impl Ground {
    pub(super) fn terms(&self, at: LineOffset) -> Terms<'_> {
        let line = self.footprint.line(at);
        let used = |tasks: Tasks| (line.loads | line.stores) & tasks != 0;
        let users = self.tasks_of.iter().enumerate();
        let users = users.fold(0, |mask, (host, tasks)| mask | u32::from(used(*tasks)) << host);
        let Memory { caches, posted_writes } = self.memory;
        Terms { caches, posted_writes, host_of: &self.host_of, users }
    }
}

/// Meaning of the numbers of a state.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) ground: Ground,
    pub(super) contents: Contents,
    lines: Interner<LineState>,
    values: Interner<u64>,
    pub(super) places: Vec<Place>,
    /// What each of them is at the start.
    starts: Vec<u32>,
    place_of: QuickMap<Place, usize>,
    initial: QuickMap<LineOffset, LineWords>,
    initial_own: QuickMap<(usize, usize), u64>,
}

impl Hosts {
    pub(super) fn new<T>(model: &Model<T>, memory: Memory) -> Self {
        let mut tasks_of = vec![0; model.hosts];
        for (task, placed) in model.tasks.iter().enumerate() {
            tasks_of[placed.host] |= 1 << task;
        }
        let own = model.own_words.iter();
        let host_of = model.tasks.iter().map(|placed| placed.host).collect();
        let mut hosts = Self {
            ground: Ground { memory, footprint: Footprint::default(), host_of, tasks_of },
            contents: Contents::new(),
            lines: Interner::starting_with(LineState::new(model.hosts, 0)),
            values: Interner::starting_with(0),
            places: Vec::new(),
            starts: Vec::new(),
            place_of: QuickMap::default(),
            initial: model.lines.iter().copied().collect(),
            initial_own: own.map(|(host, index, value)| ((*host, *index), *value)).collect(),
        };
        for (host, index, _) in &model.own_words {
            let tasks = hosts.ground.host_of.len();
            hosts.position_or_new(Place::OwnWord(*host, *index), &mut vec![0; tasks + 1]);
        }
        hosts
    }

    /// A state of these tasks with every line and word as at the start.
    pub(super) fn start(&mut self, tasks: Vec<u32>) -> State {
        let mut state = tasks;
        state.push(0);
        state.extend(&self.starts);
        state
    }

    fn at_start(&mut self, place: Place) -> u32 {
        match place {
            Place::Line(at) => {
                let words = self.initial.get(&at).copied().unwrap_or_default();
                let content = self.contents.number(words);
                self.lines.number(LineState::new(self.ground.tasks_of.len(), content))
            }
            Place::OwnWord(host, index) => {
                let value = self.initial_own.get(&(host, index)).copied().unwrap_or(0);
                self.values.number(value)
            }
        }
    }

    /// Position in a state of something that was written before; `None` when it never was.
    pub(super) fn position(&self, place: Place) -> Option<usize> {
        self.place_of.get(&place).copied()
    }

    fn position_or_new(&mut self, place: Place, state: &mut State) -> usize {
        if let Some(position) = self.position(place) {
            return position;
        }
        let position = self.ground.host_of.len() + 1 + self.places.len();
        self.places.push(place);
        self.place_of.insert(place, position);
        let start = self.at_start(place);
        self.starts.push(start);
        self.ground.footprint.grown = true;
        self.complete(state);
        position
    }

    /// Adds what was written first by others, in another branch.
    fn complete(&self, state: &mut State) {
        let first = self.ground.host_of.len() + 1;
        state.extend(self.starts.iter().skip(state.len().saturating_sub(first)));
    }

    fn number_at(&self, state: &State, position: usize) -> u32 {
        let first = self.ground.host_of.len() + 1;
        state.get(position).copied().unwrap_or_else(|| self.starts[position - first])
    }

    pub(super) fn line(&self, state: &State, position: usize) -> &LineState {
        self.lines.value(self.number_at(state, position))
    }

    pub(super) fn set_line(&mut self, state: &mut State, position: usize, line: LineState) {
        self.complete(state);
        state[position] = self.lines.number(line);
    }

    fn with_line(&mut self, state: &State, position: usize, line: LineState) -> State {
        let mut after = state.clone();
        self.set_line(&mut after, position, line);
        after
    }

    /// What the device holds.
    pub(super) fn device(&self, state: &State, at: LineOffset) -> LineWords {
        match self.position(Place::Line(at)) {
            Some(position) => *self.contents.value(self.line(state, position).device),
            None => self.initial.get(&at).copied().unwrap_or_default(),
        }
    }

    /// Notes whom `op` of `task` touches.
    pub(super) fn note(&mut self, state: &mut State, task: usize, op: Op) {
        let host = self.ground.host_of[task];
        match op {
            Op::Load(at) => {
                let access = Access::Load(at.index_in_line());
                self.ground.footprint.note_line(at.line(), task, access);
            }
            Op::Store(at, _) => {
                let access = Access::Store(at.index_in_line());
                self.ground.footprint.note_line(at.line(), task, access);
                self.position_or_new(Place::Line(at.line()), state);
            }
            Op::Flush(lines) | Op::ReadBack(lines) => {
                for (at, _) in self.written(lines) {
                    self.ground.footprint.note_line(at, task, Access::Flush);
                }
            }
            Op::MemoryLoad(index) => self.ground.footprint.note_word(host, index, task, false),
            Op::MemoryStore(index, _) | Op::MemoryExchange { index, .. } => {
                self.ground.footprint.note_word(host, index, task, true);
                self.position_or_new(Place::OwnWord(host, index), state);
            }
            Op::Fence | Op::Choose(_) | Op::Pause | Op::HasDied(_) => {}
        }
    }

    /// The lines among `lines` that are ever written, and their positions: a flush of any other
    /// changes nothing.
    pub(super) fn written(&self, lines: LineRange) -> Vec<(LineOffset, usize)> {
        if lines.lines() == 1 {
            let at = lines.start();
            return self
                .position(Place::Line(at))
                .map(|position| (at, position))
                .into_iter()
                .collect();
        }
        let inside =
            |at: &LineOffset| lines.start().bytes() <= at.bytes() && at.bytes() < lines.end_bytes();
        let first = self.ground.host_of.len() + 1;
        let places = self.places.iter().enumerate();
        let lines = places.filter_map(|(index, place)| match place {
            Place::Line(at) if inside(at) => Some((*at, first + index)),
            _ => None,
        });
        lines.collect()
    }

    /// The lines whose flush by `task` a fence waits for.
    pub(super) fn flushed_by(&self, state: &State, task: usize) -> Vec<(LineOffset, usize)> {
        let first = self.ground.host_of.len() + 1;
        let places = self.places.iter().enumerate();
        let flushed = places.filter_map(|(index, place)| match place {
            Place::Line(at) if self.line(state, first + index).is_flushed_by(task) => {
                Some((*at, first + index))
            }
            _ => None,
        });
        flushed.collect()
    }

    /// Every way in which `op` of `task` can be carried out: answer, and the state after it but
    /// for the task itself.
    pub(super) fn apply(&mut self, state: &State, task: usize, op: Op) -> Vec<(u64, State)> {
        let host = self.ground.host_of[task];
        match op {
            Op::Load(at) => {
                let Some(position) = self.position(Place::Line(at.line())) else {
                    return vec![(
                        self.device(state, at.line())[at.index_in_line()],
                        state.clone(),
                    )];
                };
                let line = self.line(state, position);
                let terms = self.ground.terms(at.line());
                let ways = line.load(terms, &self.contents, host, at.index_in_line());
                let ways = ways.into_iter();
                ways.map(|(value, line)| (value, self.with_line(state, position, line))).collect()
            }
            Op::Store(at, value) => {
                let mut state = state.clone();
                let position = self.position_or_new(Place::Line(at.line()), &mut state);
                let line = self.line(&state, position).clone();
                let terms = self.ground.terms(at.line());
                let (who, word) = ((task, host), at.index_in_line());
                let ways = line.store(terms, &mut self.contents, who, word, value);
                ways.into_iter().map(|line| (0, self.with_line(&state, position, line))).collect()
            }
            Op::Flush(lines) => {
                let mut after = state.clone();
                for (_, position) in self.written(lines) {
                    let mut line = self.line(&after, position).clone();
                    line.issue_flush(task);
                    self.set_line(&mut after, position, line);
                }
                vec![(0, after)]
            }
            Op::Fence => {
                let mut after = state.clone();
                for (at, position) in self.flushed_by(state, task) {
                    let mut line = self.line(&after, position).clone();
                    line.complete_flush(self.ground.terms(at), task, host);
                    self.set_line(&mut after, position, line);
                }
                vec![(0, after)]
            }
            Op::ReadBack(lines) => {
                let mut ways = vec![state.clone()];
                for (at, position) in self.written(lines) {
                    let mut more = Vec::new();
                    for way in ways {
                        for line in self.line(&way, position).read_back(self.ground.terms(at), host)
                        {
                            more.push(self.with_line(&way, position, line));
                        }
                    }
                    ways = more;
                }
                ways.into_iter().map(|way| (0, way)).collect()
            }
            Op::MemoryLoad(index) => vec![(self.own_word(state, host, index), state.clone())],
            Op::MemoryStore(index, value) => {
                vec![(0, self.with_own_word(state, host, index, value))]
            }
            Op::MemoryExchange { index, current, new } => {
                let found = self.own_word(state, host, index);
                if found == current {
                    vec![(found, self.with_own_word(state, host, index, new))]
                } else {
                    vec![(found, state.clone())]
                }
            }
            Op::Choose(options) => (0..options).map(|option| (option, state.clone())).collect(),
            Op::Pause => vec![(0, state.clone())],
            Op::HasDied(task) => vec![(u64::from(state[task] == DEAD), state.clone())],
        }
    }

    fn own_word(&self, state: &State, host: usize, index: usize) -> u64 {
        match self.position(Place::OwnWord(host, index)) {
            Some(position) => *self.values.value(self.number_at(state, position)),
            None => self.initial_own.get(&(host, index)).copied().unwrap_or(0),
        }
    }

    fn with_own_word(&mut self, state: &State, host: usize, index: usize, value: u64) -> State {
        let mut after = state.clone();
        let position = self.position_or_new(Place::OwnWord(host, index), &mut after);
        self.complete(&mut after);
        after[position] = self.values.number(value);
        after
    }

    /// `task` dies.
    pub(super) fn kill(&mut self, state: &State, task: usize) -> State {
        let mut after = state.clone();
        for (_, position) in self.flushed_by(state, task) {
            let mut line = self.line(&after, position).clone();
            line.forget_task(task);
            self.set_line(&mut after, position, line);
        }
        after[task] = DEAD;
        after[self.ground.host_of.len()] += 1;
        after
    }

    /// Every way in which `host` can lose power. Its `running` tasks die.
    pub(super) fn lose_power(&mut self, state: &State, host: usize, running: Tasks) -> Vec<State> {
        let first = self.ground.host_of.len() + 1;
        let mut after = state.clone();
        for task in (0..self.ground.host_of.len()).filter(|task| running >> task & 1 == 1) {
            after[task] = DEAD;
        }
        after[self.ground.host_of.len()] += 1;
        let mut ways = vec![after];
        for (index, place) in self.places.clone().into_iter().enumerate() {
            let position = first + index;
            match place {
                Place::Line(at) => {
                    let mut more = Vec::new();
                    for way in ways {
                        for line in self.line(&way, position).crash(self.ground.terms(at), host) {
                            more.push(self.with_line(&way, position, line));
                        }
                    }
                    ways = more;
                }
                Place::OwnWord(of, _) if of == host => {
                    for way in ways.iter_mut().filter(|way| way.len() > position) {
                        way[position] = 0;
                    }
                }
                Place::OwnWord(..) => {}
            }
        }
        ways
    }
}
