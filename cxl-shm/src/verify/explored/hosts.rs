//! The state of all tasks, lines and own words, as a row of numbers, and operations on it.

use std::rc::Rc;

use super::footprint::{Access, Footprint, LineUse, Tasks, WordUse};
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
    /// Who touches what, by position in a state, as far as was known when a search began.
    uses: Vec<Use>,
}

/// Who touches a line or a word.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    line: LineUse,
    word: WordUse,
    /// Bit per host: it loads or stores the line.
    hosts: u32,
}

impl Ground {
    pub(super) fn terms(&self, position: usize) -> Terms<'_> {
        let users = self.uses.get(position).map_or(0, |used| used.hosts);
        let Memory { caches, posted_writes } = self.memory;
        Terms { caches, posted_writes, host_of: &self.host_of, users }
    }

    /// Who touches the line at `position`.
    pub(super) fn line_use(&self, position: usize) -> LineUse {
        self.uses.get(position).map_or_else(LineUse::default, |used| used.line)
    }

    /// Who touches the own word at `position`.
    pub(super) fn word_use(&self, position: usize) -> WordUse {
        self.uses.get(position).map_or_else(WordUse::default, |used| used.word)
    }
}

/// What a task can do at one line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum LineOp {
    Load(usize),
    Store(usize, u64),
    /// The content, by its number.
    StoreWhole(u32),
    Flush,
    /// Its flush has taken effect.
    Fence,
    ReadBack,
}

/// A line by its number, the task and the position, and what the task does there.
type LineKey = (u32, usize, usize, LineOp);

/// Meaning of the numbers of a state.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) ground: Ground,
    /// Counts searches and walks.
    pub(super) search: u32,
    pub(super) contents: Contents,
    lines: Interner<LineState>,
    values: Interner<u64>,
    /// What was computed once in this search.
    ways: QuickMap<LineKey, Rc<[(u64, u32)]>>,
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
            ground: Ground {
                memory,
                footprint: Footprint::default(),
                host_of,
                tasks_of,
                uses: Vec::new(),
            },
            search: 0,
            contents: Contents::new(),
            lines: Interner::starting_with(LineState::new(model.hosts, 0)),
            values: Interner::starting_with(0),
            ways: QuickMap::default(),
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

    /// A search begins, with what is known about which host touches which line.
    pub(super) fn begin(&mut self) {
        self.search += 1;
        self.ways.clear();
        self.ground.footprint.grown = false;
        let first = self.ground.host_of.len() + 1;
        let mut uses = vec![Use::default(); first];
        uses.extend(self.places.iter().map(|place| match *place {
            Place::Line(at) => {
                let line = self.ground.footprint.line(at);
                let used = |tasks: Tasks| (line.loads | line.stores) & tasks != 0;
                let hosts = self.ground.tasks_of.iter().enumerate();
                let hosts =
                    hosts.fold(0, |mask, (host, tasks)| mask | u32::from(used(*tasks)) << host);
                Use { line, hosts, ..Use::default() }
            }
            Place::OwnWord(host, index) => {
                Use { word: self.ground.footprint.word(host, index), ..Use::default() }
            }
        }));
        self.ground.uses = uses;
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

    /// Where in a state is what `op` of `task` loads or stores; `None` when it does neither, or
    /// nobody ever wrote it.
    pub(super) fn position_of(&self, task: usize, op: Op) -> Option<usize> {
        match op {
            Op::Load(at) | Op::Store(at, _) => self.position(Place::Line(at.line())),
            Op::StoreLine(at, _) => self.position(Place::Line(at)),
            Op::MemoryLoad(index)
            | Op::MemoryStore(index, _)
            | Op::MemoryExchange { index, .. } => {
                self.position(Place::OwnWord(self.ground.host_of[task], index))
            }
            _ => None,
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
            Op::StoreLine(at, words) => {
                let position = self.position_or_new(Place::Line(at), state);
                for (index, word) in words.iter().enumerate() {
                    let line = self.line(state, position);
                    let known = self.contents.word(line.device, index);
                    // What it says already everywhere is not changed.
                    if known != *word || !line.agrees_on(&self.contents, index) {
                        self.ground.footprint.note_line(at, task, Access::Store(index));
                    }
                }
            }
            Op::Flush(lines) | Op::ReadBack(lines) => {
                for (at, _) in self.written(lines) {
                    self.ground.footprint.note_line(at, task, Access::Flush);
                }
            }
            Op::MemoryLoad(index) => self.ground.footprint.note_word(host, index, task, false),
            Op::MemoryClear => {
                for (index, _) in self.own_words(host) {
                    self.ground.footprint.note_word(host, index, task, true);
                }
            }
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

    /// The own words of `host` that are not zero at the start or are ever written: indices and
    /// positions.
    pub(super) fn own_words(&self, host: usize) -> Vec<(usize, usize)> {
        let first = self.ground.host_of.len() + 1;
        let places = self.places.iter().enumerate();
        let words = places.filter_map(|(index, place)| match *place {
            Place::OwnWord(of, word) if of == host => Some((word, first + index)),
            _ => None,
        });
        words.collect()
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

    /// Every way in which `op` of `task` at one line can be carried out.
    fn at_line(
        &mut self,
        state: &State,
        task: usize,
        position: usize,
        op: LineOp,
    ) -> Vec<(u64, State)> {
        let number = self.number_at(state, position);
        let ways = self.line_ways(number, task, position, op);
        let with = |number: u32| {
            let mut after = state.clone();
            self.complete(&mut after);
            after[position] = number;
            after
        };
        ways.iter().map(|(answer, number)| (*answer, with(*number))).collect()
    }

    /// Every way in which `op` of `task` at several lines can be carried out.
    fn at_lines(
        &mut self,
        state: &State,
        task: usize,
        lines: &[(LineOffset, usize)],
        op: LineOp,
    ) -> Vec<(u64, State)> {
        let mut ways = vec![(0, state.clone())];
        for (_, position) in lines {
            let each = ways.into_iter();
            ways = each.flat_map(|(_, way)| self.at_line(&way, task, *position, op)).collect();
        }
        ways
    }

    /// What can become of a line, by its number: answers and numbers.
    fn line_ways(
        &mut self,
        number: u32,
        task: usize,
        position: usize,
        op: LineOp,
    ) -> Rc<[(u64, u32)]> {
        let key = (number, task, position, op);
        if let Some(known) = self.ways.get(&key) {
            return Rc::clone(known);
        }
        let host = self.ground.host_of[task];
        let terms = self.ground.terms(position);
        let line = self.lines.value(number);
        let changed = |change: &dyn Fn(&mut LineState)| {
            let mut after = line.clone();
            change(&mut after);
            vec![(0, after)]
        };
        let after = match op {
            LineOp::Load(word) => line.load(terms, &self.contents, host, word),
            LineOp::Store(word, value) => {
                let ways = line.store(terms, &mut self.contents, (task, host), word, value);
                ways.into_iter().map(|line| (0, line)).collect()
            }
            LineOp::StoreWhole(to) => changed(&|line| line.store_whole(terms, (task, host), to)),
            LineOp::Flush => changed(&|line| line.issue_flush(task)),
            LineOp::Fence => changed(&|line| line.complete_flush(terms, task, host)),
            LineOp::ReadBack => {
                line.read_back(terms, host).into_iter().map(|line| (0, line)).collect()
            }
        };
        let ways: Rc<[_]> =
            after.into_iter().map(|(answer, line)| (answer, self.lines.number(line))).collect();
        self.ways.insert(key, Rc::clone(&ways));
        ways
    }

    /// Every way in which `op` of `task` can be carried out: answer, and the state after it but
    /// for the task itself.
    pub(super) fn apply(
        &mut self,
        state: &State,
        task: usize,
        op: Op,
        position: Option<usize>,
    ) -> Vec<(u64, State)> {
        let host = self.ground.host_of[task];
        match op {
            Op::Load(at) => match position {
                Some(position) => {
                    self.at_line(state, task, position, LineOp::Load(at.index_in_line()))
                }
                None => {
                    vec![(self.device(state, at.line())[at.index_in_line()], state.clone())]
                }
            },
            Op::Store(at, value) => {
                let mut state = state.clone();
                let position = match position {
                    Some(position) => position,
                    None => self.position_or_new(Place::Line(at.line()), &mut state),
                };
                self.at_line(&state, task, position, LineOp::Store(at.index_in_line(), value))
            }
            Op::StoreLine(at, words) => {
                let mut state = state.clone();
                let position = match position {
                    Some(position) => position,
                    None => self.position_or_new(Place::Line(at), &mut state),
                };
                let content = self.contents.number(words);
                self.at_line(&state, task, position, LineOp::StoreWhole(content))
            }
            Op::Flush(lines) => self.at_lines(state, task, &self.written(lines), LineOp::Flush),
            Op::Fence => self.at_lines(state, task, &self.flushed_by(state, task), LineOp::Fence),
            Op::ReadBack(lines) => {
                self.at_lines(state, task, &self.written(lines), LineOp::ReadBack)
            }
            Op::MemoryLoad(index) => {
                vec![(self.own_word(state, host, index, position), state.clone())]
            }
            Op::MemoryClear => {
                let zero = self.values.number(0);
                let mut after = state.clone();
                self.complete(&mut after);
                for (_, position) in self.own_words(host) {
                    after[position] = zero;
                }
                vec![(0, after)]
            }
            Op::MemoryStore(index, value) => {
                vec![(0, self.with_own_word(state, (host, index), position, value))]
            }
            Op::MemoryExchange { index, current, new } => {
                let found = self.own_word(state, host, index, position);
                if found == current {
                    vec![(found, self.with_own_word(state, (host, index), position, new))]
                } else {
                    vec![(found, state.clone())]
                }
            }
            Op::Choose(options) => (0..options).map(|option| (option, state.clone())).collect(),
            Op::Pause => vec![(0, state.clone())],
            Op::HasDied(task) => vec![(u64::from(state[task] == DEAD), state.clone())],
        }
    }

    fn own_word(&self, state: &State, host: usize, index: usize, position: Option<usize>) -> u64 {
        match position {
            Some(position) => *self.values.value(self.number_at(state, position)),
            None => self.initial_own.get(&(host, index)).copied().unwrap_or(0),
        }
    }

    fn with_own_word(
        &mut self,
        state: &State,
        (host, index): (usize, usize),
        position: Option<usize>,
        value: u64,
    ) -> State {
        let mut after = state.clone();
        let position = match position {
            Some(position) => position,
            None => self.position_or_new(Place::OwnWord(host, index), &mut after),
        };
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
                Place::Line(_) => {
                    let mut more = Vec::new();
                    for way in ways {
                        let terms = self.ground.terms(position);
                        for line in self.line(&way, position).crash(terms, host) {
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
