//! Directives: what a node asks the owners of all blocks to do with those of a namespace.
//!
//! ```text
//! word 0   kind: 1 clear, 2 clear all namespaces
//! word 1   number
//! word 2-3 namespace
//! word 4-6 zero
//! word 7   seal
//! ```
//!
//! A node has a ring of lines for its directives, and a word that counts all that there ever were:
//! in the line of its log's head, which others refresh anyway. Each other node has a *word of
//! answers* for it: the number of the last one that this node has carried out. So each line and
//! word has one writing host, and what was asked for outlives the process that asked.
//!
//! - **CLEAR-D1** A directive's line says its number: a node that sees the count before the line
//!   finds another number, and looks again. The line is not written again before every node that
//!   takes part has answered it.

use bytemuck::{Pod, Zeroable};
use cxl_shm::fabric::{OwnedArea, OwnedLine, OwnedWord, PeerArea, PeerLine, PeerWord, Record};
use cxl_shm::units::NodeId;

use crate::identity::Namespace;

/// Lines of directives in an area: so many may be unanswered.
pub(crate) const DIRECTIVES: u64 = 16;

const CLEAR: u64 = 1;
const CLEAR_ALL: u64 = 2;

/// What owners are asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Directive {
    /// Remove the complete blocks of a namespace, or of all.
    Clear(Option<Namespace>),
}

/// A directive as it lies in its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DirectiveLine {
    kind: u64,
    number: u64,
    namespace: [u64; 2],
    unused: [u64; 3],
}

impl Record for DirectiveLine {
    const KIND: u32 = u32::from_le_bytes(*b"dirv");
}

impl DirectiveLine {
    /// Directive number `number` of a node.
    pub(crate) fn new(number: u64, directive: Directive) -> Self {
        let Directive::Clear(namespace) = directive;
        Self {
            kind: if namespace.is_some() { CLEAR } else { CLEAR_ALL },
            number,
            namespace: namespace.map_or([0; 2], Namespace::words),
            unused: [0; 3],
        }
    }

    /// What it says, if it is number `number`.
    pub(crate) fn directive(&self, number: u64) -> Option<Directive> {
        match self.kind {
            CLEAR if self.number == number => {
                Some(Directive::Clear(Some(Namespace::from_words(self.namespace))))
            }
            CLEAR_ALL if self.number == number => Some(Directive::Clear(None)),
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

    /// Which of `asking`'s directives this node has carried out: the last.
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
        for namespace in [Some(Namespace::new("tenant", b"salt")), None] {
            let line = DirectiveLine::new(7, Directive::Clear(namespace));
            assert_eq!(line.directive(7), Some(Directive::Clear(namespace)));
            assert_eq!(line.directive(23), None, "a line of another round");
            assert_eq!(DirectiveLine { kind: 9, ..line }.directive(7), None);
        }
    }
}
