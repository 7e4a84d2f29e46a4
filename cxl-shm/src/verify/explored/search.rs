//! Breadth-first search through all states, so that the first counter-example is a shortest one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::explorer::Explorer;
use super::hosts::State;
use super::model::{Model, Task};
use super::progress::{Edges, first_stranded};
use super::replay::take_sites;
use super::settings::{Limits, Memory};
use crate::clock::{Clock, SystemClock};
use crate::verify::simulated::{Random, Site};

/// Random walks before the search, to learn who touches what.
const WALKS: u64 = 50;
const WALK_STEPS: u32 = 600;
/// How often the clock is looked at.
const STATES_PER_LOOK: u32 = 1024;
/// A search that was found to rely on something wrong continues for so many states, and as many as
/// it has seen, to learn more before it begins again: beginning again takes at most as long.
const LEARNING_STATES: usize = 2000;

/// What came of an exploration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every state was visited, and all claims hold.
    Holds,
    /// A limit was reached: nothing is proved.
    Bounded,
    /// A claim does not hold.
    Refuted(Refutation),
}

/// A shortest way to something wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refutation {
    /// What is wrong.
    pub message: String,
    /// What happened, from the start. Indented: at once after what stands before it.
    pub trace: Vec<String>,
}

/// What was explored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exploration {
    /// Distinct states.
    pub states: usize,
    /// Ways from one state to a next.
    pub transitions: u64,
    /// Events from the start to the farthest state.
    pub depth: u32,
    /// How long it took.
    pub ms: u64,
    /// What came of it.
    pub verdict: Verdict,
    /// The flushes and fences that any task executed.
    pub sites: Vec<Site>,
}

/// Explores `model` on `memory`, with one flush or fence `removed`.
pub fn explore<T: Task>(
    model: &Model<T>,
    memory: Memory,
    removed: Option<Site>,
    limits: Limits,
) -> Exploration {
    run(Explorer::new(model.clone(), memory, removed), limits)
}

/// Explores with every operation of every task interleaved: what the reduction is compared with.
#[cfg(test)]
pub(super) fn explore_unreduced<T: Task>(
    model: &Model<T>,
    memory: Memory,
    removed: Option<Site>,
    limits: Limits,
) -> Exploration {
    let mut explorer = Explorer::new(model.clone(), memory, removed);
    explorer.reduces = false;
    run(explorer, limits)
}

fn run<T: Task>(mut explorer: Explorer<T>, limits: Limits) -> Exploration {
    let clock = SystemClock::start();
    take_sites();
    for seed in 0..WALKS {
        walk(&mut explorer, seed);
    }
    let mut exploration = loop {
        // Relied on who touches what, and that was wrong: again, with what is known now.
        if let Some(done) = search(&mut explorer, limits, &clock) {
            break done;
        }
    };
    exploration.ms = clock.now_ms();
    exploration.sites = take_sites().into_iter().collect();
    exploration
}

fn walk<T: Task>(explorer: &mut Explorer<T>, seed: u64) {
    explorer.hosts.begin();
    let mut random = Random::new(seed);
    let mut state = explorer.start().state;
    for _ in 0..WALK_STEPS {
        let mut successors = explorer.successors(&state);
        let Some(pick) = random.index(successors.len()) else {
            return;
        };
        state = successors.swap_remove(pick).state;
    }
}

/// 128 bits in place of a state. The odds that any two of `n` states are taken for one are below
/// n^2 / 2^129: for 100 million states 1 in 6 * 10^22.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fingerprint([u64; 2]);

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

fn fingerprint(state: &State) -> Fingerprint {
    let end = state.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
    let hash = xxhash_rust::xxh3::xxh3_128(bytemuck::cast_slice(&state[..end]));
    Fingerprint([low(hash), low(hash >> 64)])
}

#[expect(clippy::cast_possible_truncation, reason = "takes a number apart into its halves")]
fn low(number: u128) -> u64 {
    number as u64
}

/// A fingerprint is as good a hash as any.
#[derive(Clone, Copy, Default, Debug)]
struct Truncated(u64);

impl Hasher for Truncated {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 ^= number;
    }
}

/// How a state was first reached: from which, and which of its successors it is.
#[derive(Clone, Copy, Debug)]
struct Origin {
    parent: u32,
    successor: u32,
}

/// One search; `None` when it relied on something wrong.
fn search<T: Task>(
    explorer: &mut Explorer<T>,
    limits: Limits,
    clock: &SystemClock,
) -> Option<Exploration> {
    explorer.hosts.begin();
    let mut known: HashMap<Fingerprint, u32, BuildHasherDefault<Truncated>> = HashMap::default();
    let mut origins: Vec<Origin> = Vec::new();
    let mut edges = Edges::default();
    let mut ended: Vec<u32> = Vec::new();
    let mut exploration = Exploration {
        states: 0,
        transitions: 0,
        depth: 0,
        ms: 0,
        verdict: Verdict::Holds,
        sites: Vec::new(),
    };

    let first = explorer.start().state;
    known.insert(fingerprint(&first), 0);
    origins.push(Origin { parent: 0, successor: 0 });
    if let Err(message) = explorer.judge(&first) {
        exploration.verdict = refuted(explorer, &origins, 0, message);
        return Some(exploration);
    }
    let mut learning: Option<usize> = None;
    let mut level = vec![(0_u32, first)];
    while !level.is_empty() {
        let mut next_level = Vec::new();
        for (index, state) in level {
            if explorer.has_ended(&state) {
                ended.push(index);
            }
            edges.begin(index);
            let successors = explorer.successors(&state);
            if explorer.hosts.ground.footprint.grown {
                let enough = || origins.len() * 2 + LEARNING_STATES;
                if origins.len() > *learning.get_or_insert_with(enough) {
                    return None;
                }
            }
            for (ordinal, successor) in successors.into_iter().enumerate() {
                exploration.transitions += 1;
                let new = u32::try_from(origins.len()).expect("fewer than the limit of states");
                let entry = match known.entry(fingerprint(&successor.state)) {
                    Entry::Occupied(entry) => {
                        edges.push(*entry.get());
                        continue;
                    }
                    Entry::Vacant(entry) => entry,
                };
                entry.insert(new);
                edges.push(new);
                let successor_index = u32::try_from(ordinal).expect("few follow one state");
                origins.push(Origin { parent: index, successor: successor_index });
                exploration.states = origins.len();
                if let Err(message) = explorer.judge(&successor.state) {
                    if learning.is_some() {
                        return None;
                    }
                    exploration.depth += 1;
                    exploration.verdict = refuted(explorer, &origins, new, message);
                    return Some(exploration);
                }
                next_level.push((new, successor.state));
            }
            let looks = index.is_multiple_of(STATES_PER_LOOK);
            let out_of_time = looks && clock.now_ms() > limits.ms;
            if origins.len() >= limits.states || out_of_time {
                exploration.verdict = Verdict::Bounded;
                return Some(exploration);
            }
        }
        exploration.depth += u32::from(!next_level.is_empty());
        level = next_level;
    }
    if learning.is_some() {
        return None;
    }
    exploration.states = origins.len();
    if let Some(stranded) = first_stranded(&edges, &ended, origins.len()) {
        let message = "from here, what had to happen can never happen".to_owned();
        exploration.verdict = refuted(explorer, &origins, stranded, message);
    }
    Some(exploration)
}

/// Goes the way to state `last` once more, and takes notes.
fn refuted<T: Task>(
    explorer: &mut Explorer<T>,
    origins: &[Origin],
    last: u32,
    message: String,
) -> Verdict {
    let mut way = Vec::new();
    let mut at = last;
    while at != 0 {
        let origin = origins[at as usize];
        way.push(origin.successor as usize);
        at = origin.parent;
    }
    explorer.tells = true;
    let start = explorer.start();
    let (mut state, mut trace) = (start.state, start.note);
    for successor in way.into_iter().rev() {
        let mut successors = explorer.successors(&state);
        let next = successors.swap_remove(successor);
        trace.extend(next.note);
        state = next.state;
    }
    explorer.tells = false;
    trace.extend(explorer.describe(&state));
    Verdict::Refuted(Refutation { message, trace })
}
