//! The rows of the table of explored states: an exploration, and what it is worth.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, mpsc};

use cxl_shm::verify::Mutant;
use cxl_shm::verify::explored::{Exploration, Limits, Memory, Verdict};
use cxl_shm::verify::scenarios::{Broken, Scenario};
use cxl_shm::verify::simulated::CacheMode;

/// A scenario on one memory, and the broken rules that it is to refute there.
#[derive(Debug)]
pub(super) struct Row {
    scenario: Scenario,
    memory: Memory,
    rules: Vec<Rule>,
    /// `None` when only the broken rules were asked for.
    exploration: Option<Exploration>,
}

/// A broken rule of a row.
#[derive(Debug)]
struct Rule {
    mutant: Mutant,
    /// This is the memory on which it has to be refuted.
    declared: bool,
    exploration: Option<Exploration>,
}

impl Rule {
    /// The number of states at which it was refuted.
    fn refuted_at(&self) -> Option<usize> {
        let found = self.exploration.as_ref()?;
        matches!(found.verdict, Verdict::Refuted(_)).then_some(found.states)
    }

    /// It was to be refuted, and all states were visited without.
    fn is_missed(&self) -> bool {
        let verdict = self.exploration.as_ref().map(|it| &it.verdict);
        self.declared && verdict == Some(&Verdict::Holds)
    }
}

impl Row {
    pub(super) fn new(scenario: Scenario, memory: Memory, mutants: &[Broken]) -> Self {
        // What is noticed beside sticky caches is to be noticed beside adversarial ones too.
        let belongs = |it: &&Broken| {
            it.memory.caches == CacheMode::Sticky || it.memory.caches == memory.caches
        };
        let rule = |it: &Broken| {
            let declared = it.memory == memory;
            Rule { mutant: it.mutant, declared, exploration: None }
        };
        let rules = mutants.iter().filter(belongs).map(rule).collect();
        Self { scenario, memory, rules, exploration: None }
    }

    /// Leaves only the broken rules that have to be refuted on this memory.
    pub(super) fn keep_declared_mutants(&mut self) {
        self.rules.retain(|rule| rule.declared);
    }

    pub(super) fn has_mutants(&self) -> bool {
        !self.rules.is_empty()
    }

    /// What came of it, in words.
    fn result(&self) -> &'static str {
        let Some(exploration) = &self.exploration else {
            let caught = self.rules.iter().all(|rule| rule.refuted_at().is_some());
            return if caught { "mutants refuted" } else { "mutants not refuted" };
        };
        match exploration.verdict {
            Verdict::Holds => "holds",
            Verdict::Refuted(_) => "refuted",
            Verdict::Bounded if self.rules.is_empty() => "bounded, has no mutants",
            Verdict::Bounded => {
                let within = |rule: &Rule| {
                    rule.refuted_at().is_some_and(|states| states <= exploration.states)
                };
                if self.rules.iter().all(within) {
                    "bounded, beyond its mutants"
                } else {
                    "bounded, below its mutants"
                }
            }
        }
    }

    pub(super) fn print(&self, json: bool) {
        let Self { scenario, memory, rules, exploration } = self;
        let result = self.result();
        let count = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let (states, transitions, depth, ms) = match exploration {
            Some(it) => (Some(it.states), Some(it.transitions), Some(it.depth), it.ms),
            None => (None, None, None, rules.iter().map(Rule::ms).sum()),
        };
        if json {
            let null = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
            let rule = |rule: &Rule| {
                format!("\"{:?}\":{}", rule.mutant, null(rule.refuted_at().map(|n| n.to_string())))
            };
            let rules: Vec<String> = rules.iter().map(rule).collect();
            println!(
                "{{\"scenario\":\"{}\",\"memory\":\"{memory}\",\"states\":{},\"transitions\":{},\
                 \"depth\":{},\"ms\":{ms},\"result\":\"{result}\",\"mutants\":{{{}}}}}",
                scenario.name,
                null(states.map(|n| n.to_string())),
                null(transitions.map(|n| n.to_string())),
                null(depth.map(|n| n.to_string())),
                rules.join(",")
            );
        } else {
            println!(
                "{:28} {:20} {:>10} {:>11} {:>5} {:>3}.{:03}  {result}{}",
                scenario.name,
                memory.to_string(),
                count(states.map(|n| n.to_string())),
                count(transitions.map(|n| n.to_string())),
                count(depth.map(|n| n.to_string())),
                ms / 1000,
                ms % 1000,
                self.rules_in_words(),
            );
        }
        let refutation = exploration.as_ref().map(|it| &it.verdict);
        if let Some(Verdict::Refuted(refutation)) = refutation {
            // Beside the rows, so that these can be read by a program.
            for event in &refutation.trace {
                eprintln!("    {event}");
            }
            eprintln!("{} on {memory}: {}", scenario.name, refutation.message);
        }
        for rule in rules.iter().filter(|rule| rule.is_missed()) {
            let mutant = rule.mutant;
            eprintln!("{} on {memory}: {mutant:?} is not noticed", scenario.name);
        }
    }

    fn rules_in_words(&self) -> String {
        let mut words = String::new();
        for rule in &self.rules {
            words += if words.is_empty() { "; refuted: " } else { ", " };
            words += &match rule.refuted_at() {
                Some(states) => format!("{:?} at {states}", rule.mutant),
                None => format!("{:?} not", rule.mutant),
            };
        }
        words
    }
}

impl Rule {
    fn ms(&self) -> u64 {
        self.exploration.as_ref().map_or(0, |it| it.ms)
    }
}

pub(super) fn print_head() {
    println!(
        "{:28} {:20} {:>10} {:>11} {:>5} {:>7}  result; states at which broken rules are refuted",
        "scenario", "memory", "states", "transitions", "depth", "seconds"
    );
}

/// Explores all `rows` on so many `threads`, with their broken rules, and with all rules kept where
/// `sound` says so. Tells `done` each row, in order, once it is complete.
pub(super) fn explore_each(
    mut rows: Vec<Row>,
    threads: usize,
    limits: Limits,
    sound: bool,
    mut done: impl FnMut(&Row),
) {
    // A row, and which of its broken rules; all rules are kept for `None`.
    let mut jobs: Vec<(usize, Option<usize>)> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        jobs.extend(sound.then_some((index, None)));
        jobs.extend((0..row.rules.len()).map(|rule| (index, Some(rule))));
    }
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    for (row, _) in &jobs {
        *open.entry(*row).or_default() += 1;
    }
    let what = |(row, rule): (usize, Option<usize>)| {
        let row: &Row = &rows[row];
        (row.scenario, row.memory, rule.map(|rule| row.rules[rule].mutant))
    };
    let work: Vec<_> = jobs.into_iter().map(|job| (job, what(job))).collect();
    let work = Mutex::new(work.into_iter());
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (tell, work) = (tell.clone(), &work);
            scope.spawn(move || {
                loop {
                    let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((job, (scenario, memory, mutant))) = next else { return };
                    let found = scenario.explore(memory, None, mutant, limits);
                    if tell.send((job, found)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        let mut next = 0;
        for ((row, rule), found) in told {
            match rule {
                None => rows[row].exploration = Some(found),
                Some(rule) => rows[row].rules[rule].exploration = Some(found),
            }
            open.entry(row).and_modify(|left| *left -= 1);
            while next < rows.len() && open.get(&next).is_none_or(|left| *left == 0) {
                done(&rows[next]);
                next += 1;
            }
        }
    });
}

/// Figures over all rows.
#[derive(Debug, Default)]
pub(super) struct Total {
    explorations: usize,
    states: usize,
    transitions: u64,
    ms: u64,
    bounded: usize,
    /// Of the bounded ones, those that show nothing.
    no_evidence: usize,
    refuted: usize,
    mutants: usize,
    mutants_refuted: usize,
    mutants_missed: usize,
}

impl Total {
    pub(super) fn add(&mut self, row: &Row) {
        if let Some(exploration) = &row.exploration {
            let is_bounded = exploration.verdict == Verdict::Bounded;
            self.explorations += 1;
            self.states += exploration.states;
            self.transitions += exploration.transitions;
            self.ms += exploration.ms;
            self.bounded += usize::from(is_bounded);
            let beyond = row.result() == "bounded, beyond its mutants";
            self.no_evidence += usize::from(is_bounded && !beyond);
            self.refuted += usize::from(matches!(exploration.verdict, Verdict::Refuted(_)));
        }
        for rule in &row.rules {
            self.ms += rule.ms();
            self.mutants += 1;
            let refuted = rule.refuted_at().is_some();
            self.mutants_refuted += usize::from(refuted);
            // Where nothing else was asked for a limit is no excuse.
            let asked = row.exploration.is_none() && !refuted;
            self.mutants_missed += usize::from(rule.is_missed() || asked);
        }
    }

    /// Nothing was refuted but what was to be.
    pub(super) fn is_success(&self) -> bool {
        self.refuted == 0 && self.mutants_missed == 0
    }

    pub(super) fn print(&self, json: bool) {
        let Self { explorations, states, transitions, ms, bounded, no_evidence, refuted, .. } =
            self;
        let Self { mutants, mutants_refuted, mutants_missed, .. } = self;
        if json {
            println!(
                "{{\"explorations\":{explorations},\"states\":{states},\
                 \"transitions\":{transitions},\"ms\":{ms},\"bounded\":{bounded},\
                 \"without_evidence\":{no_evidence},\"refuted\":{refuted},\
                 \"mutants\":{mutants},\"mutants_refuted\":{mutants_refuted},\
                 \"mutants_missed\":{mutants_missed}}}"
            );
        } else {
            let proved = explorations - bounded - refuted;
            println!(
                "{explorations} explorations, {states} states, {transitions} transitions: \
                 {proved} hold, {bounded} bounded ({no_evidence} of them show nothing), {refuted} \
                 refuted; {mutants_refuted} of {mutants} explorations of broken rules refuted, \
                 {mutants_missed} missed; {}.{:03} s of all threads",
                ms / 1000,
                ms % 1000,
            );
        }
    }
}
