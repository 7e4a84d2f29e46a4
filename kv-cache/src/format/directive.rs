//! Directives: what a node asks the owners of all blocks to do with those of a namespace.
//!
//! ```text
//! word 0   kind: 1 clear, 2 clear all namespaces, 3 pin, 4 unpin, 5 void; 6 and 7 as 1 and 2, of the
//!          pool alone; 8 drain, 9 undrain, 10 drained, 11 not drained
//! word 1   number
//! word 2-3 namespace
//! word 4   of a pin: its length in milliseconds
//! word 5   of a pin: percent of a node's payload; of 8 to 11: the node
//! word 6   of pin, unpin, and 8 to 11: when a node asked for it, in milliseconds of Unix time
//! word 7   seal
//! ```
//!
//! A node has a ring of lines for its directives, and a word that counts all that there ever were:
//! in the line of its log's head, which others refresh anyway. Each other node has a *word of
//! answers* for it: the number of the last one that this node has carried out, and in bit 63
//! whether it refused that one. So each line and word has one writing host, and what was asked for
//! outlives the process that asked.
//!
//! - **CLEAR-D1** A directive's line says its number: a node that sees the count before the line
//!   finds another number, and looks again. The line is not written again before every node that
//!   takes part and has blocks has answered it. A node without blocks has nothing to clear or pin.
//! - **CLEAR-D6** No owner reads on behind a line that it cannot read. The asking node looks at its
//!   lines in memory while it waits, and before it asks again: it writes a damaged one anew. Where
//!   the process that knew the directive is gone, the new line says *void*, and it is logged. A line
//!   of a directive that was not counted stays, until a node waits for what it has overwritten.
//! - **CLEAR-D9** Beside the count, in its line and stored before it, the asking node has the number of
//!   the last directive whose line was written again, and of the last among these that cleared drives.
//!   An agent that comes after many directives knows by them whether it has missed a clear.

use bytemuck::{Pod, Zeroable};
use cxl_shm::fabric::{OwnedArea, OwnedLine, OwnedWord, PeerArea, PeerLine, PeerWord, Record};
use cxl_shm::units::NodeId;

use crate::identity::Namespace;

/// Lines of directives in an area: so many may be unanswered.
pub(crate) const DIRECTIVES: u64 = 16;

const CLEAR: u64 = 1;
const CLEAR_ALL: u64 = 2;
const PIN: u64 = 3;
const UNPIN: u64 = 4;
const VOID: u64 = 5;
const CLEAR_POOL: u64 = 6;
const CLEAR_POOL_ALL: u64 = 7;
const DRAIN: u64 = 8;
const UNDRAIN: u64 = 9;
const DRAINED: u64 = 10;
const NOT_DRAINED: u64 = 11;

/// Bit of an answer: the directive was refused.
const REFUSED: u64 = 1 << 63;

/// What a pin asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pin {
    /// How much of a node's payload the pin covers, in percent.
    pub percent: u16,
    /// How long the pin lasts from when the node sees it, in milliseconds.
    pub length_ms: u64,
    /// When a node asked for the pin: milliseconds of Unix time, by the clock of its host. Tools
    /// show the time, and it orders pins and unpins of several nodes (CLEAR-D7).
    pub asked_ms: u64,
}

/// What owners are asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Directive {
    /// Remove the complete blocks of a namespace, or of all, from the pool and from drives.
    Clear(Option<Namespace>),
    /// Remove them from the pool, and leave those on drives.
    ClearPool(Option<Namespace>),
    /// Let blocks of a namespace leave last, for a time (CLEAR-D5).
    Pin(Namespace, Pin),
    /// End the pin of a namespace.
    Unpin {
        /// The namespace.
        namespace: Namespace,
        /// When a node asked for that, as in [`Pin::asked_ms`].
        asked_ms: u64,
    },
    /// Publish no new blocks on a node (CLEAR-D10).
    Drain(Drain),
    /// Let that node publish again.
    Undrain(Drain),
    /// An earlier drain is in force still, and its line was written again (CLEAR-D11). It counts by the
    /// time of that drain.
    Drained(Drain),
    /// The same of the end of a drain that another node asked for.
    NotDrained(Drain),
    /// Nothing: the line was damaged in memory before all nodes had read it.
    Void,
}

/// Which node is drained, or not any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain {
    /// The node. Others answer, and have nothing to do.
    pub node: NodeId,
    /// When a node asked for it, as in [`Pin::asked_ms`].
    pub asked_ms: u64,
}

impl Directive {
    /// Whether it removes blocks of drives, or may have done so before its line was damaged.
    pub(crate) fn may_clear_drives(&self) -> bool {
        matches!(self, Self::Clear(_) | Self::Void)
    }

    /// When a node asked for a pin, a drain, or the end of one, as in [`Pin::asked_ms`]; 0 for others.
    pub(crate) fn asked_ms(&self) -> u64 {
        match self {
            Self::Pin(_, Pin { asked_ms, .. })
            | Self::Unpin { asked_ms, .. }
            | Self::Drain(Drain { asked_ms, .. })
            | Self::Undrain(Drain { asked_ms, .. })
            | Self::Drained(Drain { asked_ms, .. })
            | Self::NotDrained(Drain { asked_ms, .. }) => *asked_ms,
            Self::Clear(_) | Self::ClearPool(_) | Self::Void => 0,
        }
    }

    /// What it says of a drain; `None` when it concerns none.
    #[must_use]
    pub fn of_drain(&self) -> Option<OfDrain> {
        let (drain, drained, again) = match self {
            Self::Drain(drain) => (*drain, true, false),
            Self::Undrain(drain) => (*drain, false, false),
            Self::Drained(drain) => (*drain, true, true),
            Self::NotDrained(drain) => (*drain, false, true),
            _ => return None,
        };
        Some(OfDrain { drain, drained, again })
    }
}

/// What a directive says of a drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfDrain {
    /// The node, and when that was asked for.
    pub drain: Drain,
    /// Whether the node is to be drained.
    pub drained: bool,
    /// An earlier directive said so. This one counts by the time of that (CLEAR-D11).
    pub again: bool,
}

/// What a node has answered to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Answer {
    /// The last directive that it has carried out.
    pub(crate) number: u64,
    /// Whether it refused that one.
    pub(crate) refused: bool,
}

impl Answer {
    pub(crate) fn from_word(word: u64) -> Self {
        Self { number: word & !REFUSED, refused: word & REFUSED != 0 }
    }

    pub(crate) fn word(self) -> u64 {
        self.number & !REFUSED | if self.refused { REFUSED } else { 0 }
    }
}

/// A directive as it lies in its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DirectiveLine {
    kind: u64,
    number: u64,
    namespace: [u64; 2],
    length_ms: u64,
    percent: u64,
    asked_ms: u64,
}

impl Record for DirectiveLine {
    const KIND: u32 = u32::from_le_bytes(*b"dirv");
}

impl DirectiveLine {
    /// Directive number `number` of a node.
    pub(crate) fn new(number: u64, directive: Directive) -> Self {
        let line = |kind, namespace: Option<Namespace>| Self {
            kind,
            number,
            namespace: namespace.map_or([0; 2], Namespace::words),
            ..Self::zeroed()
        };
        match directive {
            Directive::Clear(None) => line(CLEAR_ALL, None),
            Directive::Clear(namespace) => line(CLEAR, namespace),
            Directive::ClearPool(None) => line(CLEAR_POOL_ALL, None),
            Directive::ClearPool(namespace) => line(CLEAR_POOL, namespace),
            Directive::Pin(namespace, Pin { percent, length_ms, asked_ms }) => {
                let percent = percent.into();
                Self { length_ms, percent, asked_ms, ..line(PIN, Some(namespace)) }
            }
            Directive::Unpin { namespace, asked_ms } => {
                Self { asked_ms, ..line(UNPIN, Some(namespace)) }
            }
            Directive::Drain(drain) => Self::of_drain(drain, line(DRAIN, None)),
            Directive::Undrain(drain) => Self::of_drain(drain, line(UNDRAIN, None)),
            Directive::Drained(drain) => Self::of_drain(drain, line(DRAINED, None)),
            Directive::NotDrained(drain) => Self::of_drain(drain, line(NOT_DRAINED, None)),
            Directive::Void => line(VOID, None),
        }
    }

    fn of_drain(Drain { node, asked_ms }: Drain, line: Self) -> Self {
        Self { percent: node.0.into(), asked_ms, ..line }
    }

    fn drain(&self) -> Option<Drain> {
        let node = NodeId(u16::try_from(self.percent).ok()?);
        Some(Drain { node, asked_ms: self.asked_ms })
    }

    /// Whether the line of directive `number` may say this, of a node that has counted `count`. A process
    /// that died before it counted a directive has written it over one that is answered (CLEAR-D1).
    pub(crate) fn may_be(&self, number: u64, count: u64) -> bool {
        let next = count.saturating_add(1);
        let overwrites = number.saturating_add(DIRECTIVES) == next;
        self.directive(number).is_some() || overwrites && self.directive(next).is_some()
    }

    /// What it says, if it is number `number`.
    pub(crate) fn directive(&self, number: u64) -> Option<Directive> {
        let namespace = Namespace::from_words(self.namespace);
        if self.number != number {
            return None;
        }
        match self.kind {
            CLEAR => Some(Directive::Clear(Some(namespace))),
            CLEAR_ALL => Some(Directive::Clear(None)),
            CLEAR_POOL => Some(Directive::ClearPool(Some(namespace))),
            CLEAR_POOL_ALL => Some(Directive::ClearPool(None)),
            PIN => {
                let percent = u16::try_from(self.percent).ok()?;
                let Self { length_ms, asked_ms, .. } = *self;
                Some(Directive::Pin(namespace, Pin { percent, length_ms, asked_ms }))
            }
            UNPIN => Some(Directive::Unpin { namespace, asked_ms: self.asked_ms }),
            DRAIN => self.drain().map(Directive::Drain),
            UNDRAIN => self.drain().map(Directive::Undrain),
            DRAINED => self.drain().map(Directive::Drained),
            NOT_DRAINED => self.drain().map(Directive::NotDrained),
            VOID => Some(Directive::Void),
            _ => None,
        }
    }
}

/// Lines that an area needs for directives and answers, in a region of `nodes` nodes.
pub(super) fn lines(nodes: u16) -> u64 {
    DIRECTIVES + answer_lines(nodes)
}

fn answer_lines(nodes: u16) -> u64 {
    u64::from(nodes).div_ceil(cxl_shm::units::LINE_WORDS as u64)
}

/// Directives and answers of one node, as any host may read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerDirectives {
    pub(super) part: PeerArea,
}

impl PeerDirectives {
    /// The line of directive number `number`, from 1.
    pub(crate) fn line(&self, number: u64) -> PeerLine<DirectiveLine> {
        self.part.line(number % DIRECTIVES).expect("an area has room for its directives")
    }

    /// Which of `asking`'s directives this node has carried out: an [`Answer`].
    pub(crate) fn answer(&self, asking: NodeId) -> PeerWord {
        self.part.word(answer_word(asking)).expect("an area has room for its answers")
    }
}

/// This node's own directives and answers, written under the heap lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnDirectives {
    pub(super) part: OwnedArea,
    /// How many directives there ever were.
    pub(crate) count: OwnedWord,
    /// Of those that have no line any more, the last that cleared something, and the last.
    pub(crate) lost: [OwnedWord; 2],
}

impl OwnDirectives {
    pub(crate) fn line(&self, number: u64) -> OwnedLine<DirectiveLine> {
        self.part.line(number % DIRECTIVES).expect("an area has room for its directives")
    }

    pub(crate) fn answer(&self, asking: NodeId) -> OwnedWord {
        self.part.word(answer_word(asking)).expect("an area has room for its answers")
    }
}

fn answer_word(asking: NodeId) -> u64 {
    DIRECTIVES * cxl_shm::units::LINE_WORDS as u64 + asking.index() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_survive_their_lines() {
        let namespace = Namespace::new("tenant", b"salt");
        for directive in [
            Directive::Clear(Some(namespace)),
            Directive::Clear(None),
            Directive::ClearPool(Some(namespace)),
            Directive::ClearPool(None),
            Directive::Pin(namespace, Pin { percent: 50, length_ms: 1 << 40, asked_ms: 7 }),
            Directive::Unpin { namespace, asked_ms: 8 },
            Directive::Drain(Drain { node: NodeId(31), asked_ms: 9 }),
            Directive::Undrain(Drain { node: NodeId(0), asked_ms: 10 }),
            Directive::Drained(Drain { node: NodeId(3), asked_ms: 11 }),
            Directive::NotDrained(Drain { node: NodeId(4), asked_ms: 12 }),
            Directive::Void,
        ] {
            let line = DirectiveLine::new(7, directive);
            assert_eq!(line.directive(7), Some(directive));
            assert_eq!(line.directive(23), None, "a line of another round");
            assert_eq!(DirectiveLine { kind: 99, ..line }.directive(7), None);
            let later = DirectiveLine::new(23, directive);
            assert!(line.may_be(7, 7) && later.may_be(7, 22) && !later.may_be(7, 21));
        }
    }
}
