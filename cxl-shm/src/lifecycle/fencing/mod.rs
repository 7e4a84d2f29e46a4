//! Fences: what makes certain that a host which was declared dead writes no more.
//!
//! Recovery of a dead host's lines, locks and chunks waits for one (LOCK-T4: a time-out is not a
//! fence). A lease by clock is never one either: clocks of hosts are not compared, and a paused
//! host wakes with its stores still to come.

mod command;
mod process;
mod runs;

pub use command::CommandFence;
pub use process::ProcessFence;

use crate::layout::{Case, Machine};
use crate::units::{Incarnation, NodeId};

/// Whom to fence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceOrder {
    /// The node.
    pub victim: NodeId,
    /// In which case of its death.
    pub case: Case,
    /// Which life of it the slot has: that of the case, or one before it (DEATH-C2).
    pub incarnation: Incarnation,
    /// The name of its host, as it gave it; `None` when it cannot be read, or had not been given
    /// yet.
    pub host: Option<String>,
    /// The machine that it said it is; `None` when that cannot be read.
    pub machine: Option<Machine>,
}

/// How a fence stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FenceState {
    /// Under way: ask again.
    Running,
    /// No access of that life of the host can arrive any more.
    Fenced,
    /// Not fenced, and why. It may be asked again, and then tries again if that can help.
    NotFenced(String),
}

/// A way to make certain that a host writes no more.
pub trait Fence {
    /// Begins to fence, at the first call for a victim, case and machine, and says how far it is.
    /// Returns at once: what blocks runs elsewhere.
    ///
    /// [`FenceState::Fenced`] is a promise on which other hosts' data depends: it is given only
    /// when nothing that the victim has issued, or will, can reach the memory any more.
    fn poll(&mut self, order: &FenceOrder, now_ms: u64) -> FenceState;
}

/// No fence: quarantine. The dead host's lines, locks and chunks stay out of use until it joins
/// again on the same machine, leaves in order, or an operator confirms that it is off.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFence;

impl Fence for NoFence {
    fn poll(&mut self, _: &FenceOrder, _: u64) -> FenceState {
        FenceState::NotFenced("no fence is configured".to_owned())
    }
}

impl<T: Fence + ?Sized> Fence for Box<T> {
    fn poll(&mut self, order: &FenceOrder, now_ms: u64) -> FenceState {
        (**self).poll(order, now_ms)
    }
}
