//! What a task can ask of the world: one operation, carried out at once and as a whole.

use std::fmt;

use crate::fabric::LineWords;
use crate::units::{LineOffset, LineRange, WordOffset};

/// One operation of a task. Accesses to whole lines are taken apart into words (MEM-M5), unless a
/// model says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Op {
    Load(WordOffset),
    Store(WordOffset, u64),
    /// All words of a line at once.
    StoreLine(LineOffset, LineWords),
    /// Write-back and invalidation are the same instruction; it takes effect by the next fence.
    Flush(LineRange),
    Fence,
    ReadBack(LineRange),
    MemoryLoad(usize),
    MemoryStore(usize, u64),
    /// All own words are zero after it. As one operation: the process that clears them is alone on
    /// its host.
    MemoryClear,
    /// Answers what was found: it was exchanged when that is `current`.
    MemoryExchange {
        index: usize,
        current: u64,
        new: u64,
    },
    /// Answers any number below this.
    Choose(u64),
    /// Nothing, but others may act here.
    Pause,
    /// Whether a task has died.
    HasDied(usize),
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(at) => write!(f, "load {:#x}", at.bytes()),
            Self::Store(at, value) => write!(f, "store {:#x} := {value:#x}", at.bytes()),
            Self::StoreLine(at, words) => write!(f, "store {:#x} := {words:#x?}", at.bytes()),
            Self::Flush(lines) => {
                write!(f, "flush {:#x}, {} lines", lines.start().bytes(), lines.lines())
            }
            Self::Fence => write!(f, "fence"),
            Self::ReadBack(lines) => {
                write!(f, "read back {:#x}, {} lines", lines.start().bytes(), lines.lines())
            }
            Self::MemoryLoad(index) => write!(f, "load own word {index}"),
            Self::MemoryClear => write!(f, "clear own words"),
            Self::MemoryStore(index, value) => write!(f, "store own word {index} := {value:#x}"),
            Self::MemoryExchange { index, current, new } => {
                write!(f, "exchange own word {index}: {current:#x} for {new:#x}")
            }
            Self::Choose(options) => write!(f, "choose one of {options}"),
            Self::Pause => write!(f, "pause"),
            Self::HasDied(task) => write!(f, "has task {task} died"),
        }
    }
}
