//! Running a step of a task up to the operation that it asks for next.
//!
//! The operations before it are answered from a list, the next one unwinds out of the step
//! (`resume_unwind`: no hook, no message). What the task is, between two operations, is therefore
//! its value at the start of the step and that list, which can be compared and hashed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;

use super::model::{LineStores, Step, Task};
use super::op::Op;
use super::world::World;
use crate::units::{LineOffset, LineRange, WordOffset};
use crate::verify::simulated::{Site, SiteOp};

/// What is the same for all tasks and all states.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) bytes: u64,
    pub(super) left_out: Vec<LineRange>,
    pub(super) moved: Vec<(LineOffset, LineOffset, usize)>,
    pub(super) line_stores: LineStores,
    /// Flushes and fences that do nothing: part of the program that is explored.
    pub(super) suppressed: Option<Site>,
}

/// What a task does next.
#[derive(Debug)]
pub(super) enum Next<T> {
    /// It came to the end of the step, and is this now.
    Border(T, Step),
    /// It asks for an operation.
    Asks(Op),
    /// It found something wrong.
    Refutes(String),
}

#[derive(Debug, Default)]
struct Run {
    rules: Rc<Rules>,
    answers: Vec<u64>,
    given: usize,
    asked: Option<Op>,
    refuted: Option<String>,
    /// Over the operations that were answered: the same in every repetition.
    fingerprint: DefaultHasher,
    sites: BTreeSet<Site>,
}

thread_local! {
    static RUN: RefCell<Run> = RefCell::default();
}

/// Thrown to leave a step in the middle.
struct Left;

/// Runs one step of `task`, its first operations answered from `answers`. Also returns a
/// fingerprint of the operations that were answered.
pub(super) fn run<T: Task>(rules: &Rc<Rules>, task: &T, answers: &[u64]) -> (Next<T>, u64) {
    RUN.with_borrow_mut(|run| {
        let sites = std::mem::take(&mut run.sites);
        *run = Run { rules: Rc::clone(rules), answers: answers.to_vec(), sites, ..Run::default() };
    });
    let mut task = task.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let step = task.step(World::new());
        (task, step)
    }));
    RUN.with_borrow_mut(|run| {
        let next = match (outcome, run.asked.take(), run.refuted.take()) {
            (_, Some(op), _) => Next::Asks(op),
            (_, None, Some(message)) => Next::Refutes(message),
            (Ok((task, step)), None, None) => Next::Border(task, step),
            (Err(payload), None, None) => Next::Refutes(message_of(payload.as_ref())),
        };
        (next, run.fingerprint.finish())
    })
}

fn message_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    format!("the program panics: {}", text.unwrap_or("without a message"))
}

/// The sites that any task has executed since the last call, suppressed ones too.
pub(super) fn take_sites() -> BTreeSet<Site> {
    RUN.with_borrow_mut(|run| std::mem::take(&mut run.sites))
}

/// Carries out `op`, or leaves the step. What a destructor asks for while a step is left is never
/// carried out: the answer is `dead`.
pub(super) fn ask(op: Op, dead: u64) -> u64 {
    let answer = RUN.with_borrow_mut(|run| {
        if run.asked.is_some() || run.refuted.is_some() {
            return Some(dead);
        }
        let Some(answer) = run.answers.get(run.given).copied() else {
            run.asked = Some(op);
            return None;
        };
        op.hash(&mut run.fingerprint);
        run.given += 1;
        Some(answer)
    });
    answer.unwrap_or_else(|| resume_unwind(Box::new(Left)))
}

/// Says what is wrong, and leaves the step.
pub(super) fn refute(message: String) -> ! {
    RUN.with_borrow_mut(|run| {
        if run.asked.is_none() {
            run.refuted.get_or_insert(message);
        }
    });
    resume_unwind(Box::new(Left))
}

pub(super) fn bytes() -> u64 {
    RUN.with_borrow(|run| run.rules.bytes)
}

/// Whether the operation at this site is part of the program.
pub(super) fn pass(op: SiteOp, location: &'static Location<'static>) -> bool {
    RUN.with_borrow_mut(|run| {
        if run.asked.is_some() || run.refuted.is_some() {
            return false;
        }
        let (file, line, column) = (location.file(), location.line(), location.column());
        let site = Site { file, line, column, op };
        run.sites.insert(site);
        run.rules.suppressed != Some(site)
    })
}

/// How lines are stored.
pub(super) fn line_stores() -> LineStores {
    RUN.with_borrow(|run| run.rules.line_stores)
}

/// Where an access to `at` goes; `None` when the line is left out.
pub(super) fn translate(at: WordOffset) -> Option<WordOffset> {
    let (line, shift) = translate_line(at.line())?;
    line.word(at.index_in_line() + shift)
}

/// Where accesses to the line `at` go, and how many words further; `None` when it is left out.
pub(super) fn translate_line(at: LineOffset) -> Option<(LineOffset, usize)> {
    RUN.with_borrow(|run| {
        let inside = |lines: &LineRange| {
            lines.start().bytes() <= at.bytes() && at.bytes() < lines.end_bytes()
        };
        assert!(at.bytes() < run.rules.bytes, "{at:?} is outside the memory");
        if run.rules.left_out.iter().any(inside) {
            return None;
        }
        let moved = run.rules.moved.iter().find(|(from, ..)| *from == at);
        Some(moved.map_or((at, 0), |(_, to, shift)| (*to, *shift)))
    })
}
