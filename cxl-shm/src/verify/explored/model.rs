//! What is explored: tasks on hosts, and what must hold of them.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

use super::World;
use crate::fabric::LineWords;
use crate::units::{LineOffset, LineRange, WordOffset};

/// What came of a step of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There is more to do.
    Goes,
    /// The task has come to its end.
    Ends,
}

/// A thread of some process, as a value: everything that it remembers between two steps.
///
/// A step may do any number of operations; others act between each two of them. It must do the
/// same when it is repeated from the same value with the same answers: it is, once per operation.
pub trait Task: Clone + Eq + Hash + Debug {
    /// Goes one step on.
    fn step(&mut self, world: World) -> Step;

    /// What the model's claims are made of. Others may act whenever it changes.
    fn view(&self) -> u64;
}

/// How a record of a line is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LineStores {
    /// Word by word: the line may be written back with any number of its words.
    #[default]
    Words,
    /// The first word, then the others as one: the line may be written back half stored, with its
    /// new first word and a seal that does not fit. Every reader of a sealed record that is half
    /// stored learns the first word at most, so other halves tell nobody anything else.
    FirstWordApart,
    /// By one instruction, as `movdir64b` does: the line is never written back half stored. Readers
    /// still load word by word and see mixed versions.
    Whole,
}

/// A task and where it runs.
#[derive(Clone, Debug)]
pub struct Placed<T> {
    /// Its name in traces.
    pub name: String,
    /// Its host, from 0.
    pub host: usize,
    /// Starts when the task of this index has died, if one is named.
    pub after_death_of: Option<usize>,
    /// Its process may die at any point.
    pub mortal: bool,
    /// What it does.
    pub task: T,
}

/// What tasks see as their views: of the dead it is 0.
pub type Views<'a> = &'a [u64];

/// A claim about the views of all tasks; the error says what is wrong.
pub type Claim = Rc<dyn Fn(Views<'_>) -> Result<(), String>>;

/// A claim about the end: views, and what the device holds.
pub type EndClaim = Rc<dyn Fn(Views<'_>, &dyn Fn(WordOffset) -> u64) -> Result<(), String>>;

/// A small configuration, and what is claimed of it.
#[derive(Clone)]
pub struct Model<T> {
    /// Number of hosts.
    pub hosts: usize,
    /// Size of the shared memory in bytes.
    pub bytes: u64,
    /// The tasks.
    pub tasks: Vec<Placed<T>>,
    /// Lines that are not zero at the start.
    pub lines: Vec<(LineOffset, LineWords)>,
    /// Own words that are not zero at the start: host, index, value.
    pub own_words: Vec<(usize, usize, u64)>,
    /// Lines that are left out: stores to them do nothing, loads answer 0. The model says why that
    /// changes nothing it claims.
    pub left_out: Vec<LineRange>,
    /// Accesses to the first line go to the second, so many words further on: for showing what
    /// happens when lines are shared (MEM-M1).
    pub moved: Vec<(LineOffset, LineOffset, usize)>,
    /// How records of a line are stored beside adversarial caches. Beside sticky ones it is word by
    /// word: what a process that dies leaves in its host's cache.
    pub line_stores: LineStores,
    /// Hosts that may lose power.
    pub mortal_hosts: Vec<usize>,
    /// Most deaths, of tasks and hosts together.
    pub deaths: u32,
    /// Holds in every state.
    pub always: Claim,
    /// Whether everything that had to happen has happened. From every state such a state can be
    /// reached, or the exploration refutes the model.
    pub ended: Rc<dyn Fn(Views<'_>) -> bool>,
    /// Holds in every state that has ended.
    pub at_end: EndClaim,
    /// Names of lines in traces.
    pub names: Vec<(LineRange, String)>,
}

impl<T> Model<T> {
    /// Hosts with nothing to do, and no claims.
    #[must_use]
    pub fn new(hosts: usize, bytes: u64) -> Self {
        Self {
            hosts,
            bytes,
            tasks: Vec::new(),
            lines: Vec::new(),
            own_words: Vec::new(),
            left_out: Vec::new(),
            moved: Vec::new(),
            line_stores: LineStores::Words,
            mortal_hosts: Vec::new(),
            deaths: 0,
            always: Rc::new(|_| Ok(())),
            ended: Rc::new(|_| true),
            at_end: Rc::new(|_, _| Ok(())),
            names: Vec::new(),
        }
    }

    /// Adds an immortal task that starts at once.
    pub fn run(&mut self, name: impl Into<String>, host: usize, task: T) -> usize {
        let name = name.into();
        self.tasks.push(Placed { name, host, after_death_of: None, mortal: false, task });
        self.tasks.len() - 1
    }

    /// The name of the line at `at`.
    pub(super) fn name_of(&self, at: LineOffset) -> String {
        let inside = |lines: &LineRange| {
            lines.start().bytes() <= at.bytes() && at.bytes() < lines.end_bytes()
        };
        match self.names.iter().find(|(lines, _)| inside(lines)) {
            Some((lines, name)) if lines.lines() == 1 => name.clone(),
            Some((lines, name)) => {
                format!("{name}+{:#x}", at.bytes() - lines.start().bytes())
            }
            None => format!("line {:#x}", at.bytes()),
        }
    }
}

impl<T: Debug> Debug for Model<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("hosts", &self.hosts)
            .field("tasks", &self.tasks)
            .finish_non_exhaustive()
    }
}

/// Part of a task that is the same in all its states, and so takes no part in telling them apart.
pub struct Constant<V>(Rc<V>);

impl<V> Debug for Constant<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl<V> Constant<V> {
    /// A value that no step changes.
    pub fn new(value: V) -> Self {
        Self(Rc::new(value))
    }
}

impl<V> Clone for Constant<V> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<V> Deref for Constant<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.0
    }
}

impl<V> PartialEq for Constant<V> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<V> Eq for Constant<V> {}

impl<V> Hash for Constant<V> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
