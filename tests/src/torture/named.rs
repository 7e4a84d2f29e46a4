//! Objects that workers name and give each other: their names, their sizes, what is in them.

use cxl_shm::fabric::Fabric;
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{Incarnation, LINE_BYTES};
use cxl_shm::verify::simulated::Random;
use cxl_shm_objects::Objects;
use cxl_shm_objects::{Object, PeerObject, SharedOffset};
use cxl_shm_objects::{Root, RootKind};

const PREFIX: &str = "torture-";
/// Bit of a number that tells the object of a root from one that it refers to.
const CHILD: u64 = 1 << 40;

/// A root that a worker put. The number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RootId {
    pub(super) worker: u32,
    pub(super) number: u64,
}

impl RootId {
    pub(super) fn name(self) -> String {
        format!("{PREFIX}{}-{}", self.worker, self.number)
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        let (worker, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
        Some(Self { worker: worker.parse().ok()?, number: number.parse().ok()? })
    }

    /// Whether the next worker destroys it, and nobody else.
    pub(super) fn is_foreign(self) -> bool {
        self.number % 2 == 1
    }

    /// Leaf, or with a second object that it refers to.
    pub(super) fn kind(self) -> RootKind {
        if self.number.is_multiple_of(4) { RootKind::Linked } else { RootKind::Leaf }
    }

    /// Reads what was found as this root, and what that refers to, which is returned; `None` when
    /// anything of it is not as it was written.
    pub(super) fn read_whole<B: Backend>(
        self,
        member: &Member<B>,
        found: &Root,
    ) -> Option<Option<PeerObject>> {
        let fabric = member.fabric();
        let child = match self.made_for().read(fabric, &found.object)? {
            Some(child) => Some(member.object(child)?),
            None => None,
        };
        let whole = match &child {
            Some(child) => self.child().read(fabric, child).is_some(),
            None => self.kind() == RootKind::Leaf,
        };
        (whole && found.kind == Some(self.kind())).then_some(child)
    }

    /// What its object is made for.
    pub(super) fn made_for(self) -> MadeFor {
        MadeFor { worker: self.worker, number: self.number }
    }

    /// What the object that it refers to is made for.
    pub(super) fn child(self) -> MadeFor {
        MadeFor { worker: self.worker, number: self.number | CHILD }
    }
}

/// What an object was allocated for: its size and its bytes follow from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MadeFor {
    pub(super) worker: u32,
    pub(super) number: u64,
}

impl MadeFor {
    fn random(self) -> Random {
        Random::new(u64::from(self.worker) << 48 ^ self.number ^ 0x0B_1EC7)
    }

    /// Its size: some lines, a page, several pages. Room for a link at least.
    pub(super) fn bytes(self) -> u64 {
        let mut random = self.random();
        let most = if random.one_in(4) { 20_000 } else { 500 };
        LINE_BYTES + random.below(most)
    }

    /// Its bytes behind the first word, which is a link.
    fn tail(self) -> Vec<u8> {
        let mut random = self.random();
        let words = self.bytes().div_ceil(8);
        let bytes = (1..words).flat_map(|_| random.next_u64().to_le_bytes());
        bytes.take(usize::try_from(self.bytes() - 8).unwrap_or(0)).collect()
    }

    /// Writes all of it, with a link to `child`, and nothing behind it: what was there before might
    /// look like a link, and keep an object from being swept. Returns whether it fits.
    pub(super) fn write<F: Fabric>(
        self,
        fabric: &F,
        object: &Object,
        child: Option<SharedOffset>,
    ) -> bool {
        let link = child.map_or(0, SharedOffset::bytes).to_le_bytes();
        let Some(rest) = object.extent().bytes().checked_sub(self.bytes()) else { return false };
        let rest = vec![0; usize::try_from(rest).unwrap_or(0)];
        object.write(fabric, 0, &link)
            && object.write(fabric, 8, &self.tail())
            && object.write(fabric, self.bytes(), &rest)
    }

    /// Reads all of it: whether it is whole, and what it links to.
    pub(super) fn read<F: Fabric>(
        self,
        fabric: &F,
        object: &PeerObject,
    ) -> Option<Option<SharedOffset>> {
        let (mut link, expected) = ([0; 8], self.tail());
        let mut found = vec![0; expected.len()];
        let whole = object.read(fabric, 0, &mut link) && object.read(fabric, 8, &mut found);
        let link = u64::from_le_bytes(link);
        let child = if link == 0 { None } else { Some(SharedOffset::new(link)?) };
        (whole && found == expected).then_some(child)
    }
}

/// An object that a worker gives the next one to free: one word, which is there whole or not at
/// all. It is worth nothing once the life of its node that allocated it is over (OBJECT-O5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gift {
    pub(super) offset: SharedOffset,
    incarnation: u64,
    pub(super) sequence: u64,
}

const SEQUENCE_BITS: u32 = 24;
const INCARNATION_BITS: u32 = 16;

impl Gift {
    pub(super) fn new(offset: SharedOffset, incarnation: Incarnation, sequence: u64) -> Self {
        let incarnation = low(u64::from(incarnation.0), INCARNATION_BITS);
        Self { offset, incarnation, sequence: low(sequence, SEQUENCE_BITS) }
    }

    pub(super) fn word(self) -> u64 {
        let line = self.offset.bytes() / LINE_BYTES;
        (line << INCARNATION_BITS | self.incarnation) << SEQUENCE_BITS | self.sequence
    }

    /// `None` when nothing was ever given.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        let offset = (word >> (SEQUENCE_BITS + INCARNATION_BITS)) * LINE_BYTES;
        let incarnation = low(word >> SEQUENCE_BITS, INCARNATION_BITS);
        let sequence = low(word, SEQUENCE_BITS);
        let offset = SharedOffset::new(offset)?;
        (word != 0).then_some(Self { offset, incarnation, sequence })
    }

    /// The number of the gift after one with this word.
    pub(super) fn next(word: u64) -> u64 {
        low(word + 1, SEQUENCE_BITS)
    }

    /// Whether that life of its node allocated it.
    pub(super) fn is_of(self, incarnation: Incarnation) -> bool {
        self.incarnation == low(u64::from(incarnation.0), INCARNATION_BITS)
    }
}

fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_roots() {
        let root = RootId { worker: 3, number: 17 };
        assert_eq!(RootId::from_name(&root.name()), Some(root));
        assert_eq!(RootId::from_name("torture-3"), None);
    }

    #[test]
    fn gifts_are_one_word() {
        let offset = SharedOffset::new(17 << 20).unwrap();
        let gift = Gift::new(offset, Incarnation(7), 1 << 20);
        assert_eq!(Gift::from_word(gift.word()), Some(gift));
        assert!(gift.is_of(Incarnation(7)) && !gift.is_of(Incarnation(8)));
        assert_eq!(Gift::from_word(0), None);
    }
}
