//! What tasks remember, by number, and how one answer leads from one to the next.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::rc::Rc;

use super::model::{Step, Task};
use super::op::Op;
use super::quick_hash::QuickMap;
use super::replay::{Next, Rules, run};

/// Steps without any operation that may follow one another.
const IDLE_STEPS_MAX: u32 = 1000;

/// What a task is about to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Intention {
    Op(Op),
    Ended,
    Refuted(String),
}

/// A task between two of its operations.
#[derive(Clone, Debug)]
pub(super) struct Local<T> {
    /// Which task it is.
    task: usize,
    /// It at the start of the step, and what its operations since then were answered.
    pub(super) border: T,
    pub(super) answers: Vec<u64>,
    pub(super) intention: Intention,
    pub(super) view: u64,
    /// Over the operations that were answered.
    fingerprint: u64,
    /// Where in a state is what it is about to load or store, once that is known.
    pub(super) position: Option<usize>,
    /// The search in which it was last noted what it touches.
    pub(super) noted_in: u32,
}

/// All of them that were ever met.
#[derive(Debug)]
pub(super) struct Locals<T> {
    rules: Rc<Rules>,
    locals: Vec<Local<T>>,
    by_hash: QuickMap<u64, Vec<u32>>,
    next: QuickMap<(u32, u64), u32>,
}

impl<T: Task> Locals<T> {
    pub(super) fn new(rules: Rc<Rules>) -> Self {
        Self { rules, locals: Vec::new(), by_hash: QuickMap::default(), next: QuickMap::default() }
    }

    pub(super) fn get(&self, number: u32) -> &Local<T> {
        &self.locals[number as usize]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut Local<T> {
        &mut self.locals[number as usize]
    }

    /// `task` before its first operation.
    pub(super) fn start(&mut self, index: usize, mut task: T) -> u32 {
        for _ in 0..IDLE_STEPS_MAX {
            match run(&self.rules, &task, &[]) {
                (Next::Asks(op), fingerprint) => {
                    return self.number((index, task), Vec::new(), Intention::Op(op), fingerprint);
                }
                (Next::Refutes(message), fingerprint) => {
                    let refuted = Intention::Refuted(message);
                    return self.number((index, task), Vec::new(), refuted, fingerprint);
                }
                (Next::Border(after, Step::Ends), fingerprint) => {
                    return self.number((index, after), Vec::new(), Intention::Ended, fingerprint);
                }
                (Next::Border(after, Step::Goes), _) => task = after,
            }
        }
        let refuted = Intention::Refuted("a task goes on for ever without any operation".into());
        self.number((index, task), Vec::new(), refuted, 0)
    }

    /// What follows when the operation that `from` intends is answered by `answer`.
    pub(super) fn after(&mut self, from: u32, answer: u64) -> u32 {
        if let Some(known) = self.next.get(&(from, answer)) {
            return *known;
        }
        let local = self.get(from).clone();
        let mut answers = local.answers;
        answers.push(answer);
        let (next, fingerprint) = run(&self.rules, &local.border, &answers);
        let here = (local.task, local.border);
        let number = match next {
            Next::Asks(op) => self.number(here, answers, Intention::Op(op), fingerprint),
            Next::Refutes(message) => {
                self.number(here, answers, Intention::Refuted(message), fingerprint)
            }
            Next::Border(after, Step::Ends) => {
                self.number((local.task, after), Vec::new(), Intention::Ended, 0)
            }
            Next::Border(after, Step::Goes) => self.start(local.task, after),
        };
        self.next.insert((from, answer), number);
        number
    }

    fn number(
        &mut self,
        (task, border): (usize, T),
        answers: Vec<u64>,
        intention: Intention,
        fingerprint: u64,
    ) -> u32 {
        let identity = (task, &border, &answers);
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(identity);
        let same = self.by_hash.entry(hash).or_default();
        for number in same.iter() {
            let known = &self.locals[*number as usize];
            let ended = intention == Intention::Ended;
            if known.task == task
                && known.border == border
                && known.answers == answers
                && (known.intention == Intention::Ended) == ended
            {
                assert!(
                    known.intention == intention && known.fingerprint == fingerprint || ended,
                    "a step that is repeated with the same answers does something else: {border:?}"
                );
                return *number;
            }
        }
        let number = u32::try_from(self.locals.len()).expect("memory ends long before 2^32 values");
        same.push(number);
        let view = border.view();
        self.locals.push(Local {
            task,
            border,
            answers,
            intention,
            view,
            fingerprint,
            position: None,
            noted_in: 0,
        });
        number
    }
}
