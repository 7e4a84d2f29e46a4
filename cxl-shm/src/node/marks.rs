//! The marks at a node slot: which hosts have come for it (rules JOIN-J1 to JOIN-J4 in
//! `lifecycle/admission.rs`).

use crc_fast::CrcAlgorithm;

use crate::fabric::Fabric;
use crate::layout::{JOIN_MARKS, JoinMarkHost, Layout, Machine};
use crate::units::{Incarnation, NodeId};

/// {who, for which incarnation} in one word: a claim, or a mark. Zero is nobody.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Call {
    pub(crate) who: u32,
    pub(crate) incarnation: Incarnation,
}

impl Call {
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart into its fields")]
    pub(crate) fn from_word(word: u64) -> Self {
        Self { who: (word >> 32) as u32, incarnation: Incarnation(word as u32) }
    }

    pub(crate) fn word(self) -> u64 {
        u64::from(self.who) << 32 | u64::from(self.incarnation.0)
    }

    /// The mark of `host` for life `incarnation`: a damaged one does not fit.
    pub(crate) fn of(host: &JoinMarkHost, incarnation: Incarnation) -> Self {
        let life = [u64::from(incarnation.0)];
        Self { who: name_of(&[&host.words()[..], &life].concat()), incarnation }
    }
}

/// A mark, and whose it is in full: `None` when that cannot be told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Mark {
    pub(crate) call: Call,
    pub(crate) host: Option<JoinMarkHost>,
}

/// The join marks of a slot, read at one time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Marks(pub(crate) Vec<Mark>);

impl Marks {
    /// The join marks of `node`, freshly read.
    pub(crate) fn fresh<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Self {
        fabric.refresh(layout.join_marks(node));
        Self::cached(layout, fabric, node)
    }

    /// What the caches hold of the join marks of `node`.
    pub(crate) fn cached<F: Fabric>(layout: &Layout, fabric: &F, node: NodeId) -> Self {
        let mark = |index| {
            let call = Call::from_word(layout.join_mark(node, index).cached(fabric));
            let host = layout.join_mark_host(node, index).cached(fabric).ok();
            Mark { call, host: host.filter(|host| Call::of(host, call.incarnation) == call) }
        };
        Self((0..JOIN_MARKS).map(mark).collect())
    }

    /// The largest incarnation beyond `last`, and not beyond `up_to`, that any host has come for.
    pub(crate) fn beyond(&self, last: Incarnation, up_to: Incarnation) -> Option<Incarnation> {
        let incarnations = self.0.iter().map(|mark| mark.call.incarnation);
        incarnations.filter(|incarnation| *incarnation > last && *incarnation <= up_to).max()
    }

    /// The machine that came for life `incarnation`, when the marks still say so, and of one only.
    pub(crate) fn machine_of(&self, incarnation: Incarnation) -> Option<Machine> {
        let mut marks = self.0.iter().filter(|mark| mark.call.incarnation == incarnation);
        let first = marks.next()?;
        marks.next().is_none().then_some(first.host?.machine())
    }
}

/// A number of 32 bits for what is told apart by more.
pub(crate) fn name_of(words: &[u64]) -> u32 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &bytes);
    u32::try_from(crc & u64::from(u32::MAX)).unwrap_or(0)
}
