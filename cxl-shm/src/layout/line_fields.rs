//! The fields of each kind of line, for tools that show lines to people.

use super::LineKind;
use crate::fabric::LineWords;

/// A field of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineField {
    /// Its name.
    pub name: &'static str,
    /// Where it begins in the line, in bytes.
    pub at: u8,
    /// Its length in bytes.
    pub bytes: u8,
}

impl LineField {
    /// A field of `bytes` bytes from byte `at` on.
    #[must_use]
    pub const fn new(name: &'static str, at: u8, bytes: u8) -> Self {
        Self { name, at, bytes }
    }

    /// The bytes of the field in a line.
    #[must_use]
    pub fn bytes_in(&self, words: &LineWords) -> Vec<u8> {
        let line = words.iter().flat_map(|word| word.to_le_bytes());
        line.skip(self.at.into()).take(self.bytes.into()).collect()
    }

    /// The value of a field of at most eight bytes.
    #[must_use]
    pub fn value_in(&self, words: &LineWords) -> Option<u64> {
        let bytes = self.bytes_in(words);
        let mut eight = [0; 8];
        eight.get_mut(..bytes.len())?.copy_from_slice(&bytes);
        Some(u64::from_le_bytes(eight))
    }
}

/// Fields without room between them, from the first byte on.
macro_rules! fields {
    ($($name:literal $bytes:literal),*) => {{
        const FIELDS: &[LineField] = &{
            let mut fields = [$(LineField::new($name, 0, $bytes)),*];
            let (mut index, mut at) = (0, 0);
            while index < fields.len() {
                fields[index].at = at;
                at += fields[index].bytes;
                index += 1;
            }
            fields
        };
        FIELDS
    }};
}

impl LineKind {
    /// The fields of a line of this kind, without its seal.
    #[must_use]
    pub fn fields(self) -> &'static [LineField] {
        match self {
            Self::SuperblockIdentity => fields![
                "magic" 8, "uuid" 16, "version" 4, "nodes" 4, "locks" 4, "lock_protocol" 4,
                "chunk_bytes" 8, "sequence" 8
            ],
            Self::SuperblockExtents => fields![
                "region_bytes" 8, "area_lines" 8, "chunks_at" 8, "sequence" 8, "host_words" 8
            ],
            Self::SuperblockApplication => fields!["words" 48, "sequence" 8],
            Self::SuperblockProfile => fields![
                "sequence" 8, "measured_unix_s" 8, "bytes" 8, "signature" 4, "hypervisor" 4,
                "vendor" 12, "present" 1, "flush" 1, "fence" 1, "payload" 1, "memory" 1, "strict" 1
            ],
            Self::Selector => fields!["magic" 8, "version" 4],
            Self::CurrentSlot => fields!["sequence" 4, "complement" 4],
            Self::Node => {
                fields!["state" 4, "incarnation" 4, "boot_id" 16, "machine_id" 16]
            }
            Self::Heartbeat | Self::ManagerHeartbeat => fields!["heartbeat" 8],
            Self::HostName => fields!["name" 56],
            Self::ManagerClaim => fields!["serving_and_term" 8],
            Self::RequestSummary => fields!["request_number_and_lock" 8, "request_copy" 8],
            Self::Arrival => fields!["incarnation" 4, "complement" 4],
            Self::ChunkDemand => fields!["chunks" 8],
            Self::ClaimWord => fields!["claim" 8],
            Self::Reclaimer => fields!["reclaimer" 8],
            Self::JoinMark => fields!["mark" 8],
            Self::JoinMarkHost => {
                fields!["boot_id" 16, "machine_id" 16, "tier_device" 8]
            }
            Self::IntentHead => fields![
                "open" 4, "lock" 4, "images" 4, "images_crc" 4, "target_0" 4, "target_1" 4,
                "target_2" 4, "target_3" 4, "target_4" 4, "target_5" 4, "target_6" 4
            ],
            Self::Ballot => fields![
                "sequence" 4, "decided" 4, "incarnation" 4, "appointment" 4, "promised" 4,
                "accepted" 4, "recoverer" 4, "recoverer_incarnation" 4, "epoch" 8, "epoch_seen" 8
            ],
            Self::Recovery => fields![
                "sequence" 4, "step" 4, "incarnation" 4, "appointment" 4,
                "recoverer_incarnation" 4
            ],
            Self::RootHead => fields![
                "state" 4, "kind" 4, "name_bytes" 8, "name_hash" 8, "offset" 8, "sequence" 8
            ],
            Self::RootName => fields!["name" 48, "sequence" 8],
            Self::LockTable => fields!["locks" 56],
            Self::Chunk => fields![
                "state" 8, "owner" 4, "incarnation" 4, "purpose" 8, "failed_pages" 4,
                "failed_first" 4
            ],
            _ => WORDS,
        }
    }
}

/// The fields of a line of words.
pub const WORDS: &[LineField] = fields![
    "word_0" 8, "word_1" 8, "word_2" 8, "word_3" 8, "word_4" 8, "word_5" 8, "word_6" 8, "word_7" 8
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Record, seal};
    use crate::layout::{
        Appointment, BallotRecord, Case, ChunkEntry, ChunkState, FailedPages, IntentRecord,
        NodeLine, NodeState, RecoveryRecord, RecoveryStep, RootHead,
    };
    use crate::units::{Incarnation, LineOffset, LockId, NodeId};

    fn values<T: Record>(kind: LineKind, record: &T) -> Vec<(&'static str, u64)> {
        let words = seal(LineOffset::new(64).unwrap(), record, 1);
        let fields = kind.fields().iter();
        fields.filter_map(|field| Some((field.name, field.value_in(&words)?))).collect()
    }

    #[test]
    fn fields_have_the_values_of_their_records() {
        let node = NodeLine::new(NodeState::Joined, Incarnation(7), [1, 2], [3, 4]);
        assert_eq!(values(LineKind::Node, &node), [("state", 2), ("incarnation", 7)]);
        let (owner, incarnation) = (NodeId(3), Incarnation(9));
        let chunk = ChunkEntry::new(ChunkState::Owned { owner, incarnation, purpose: 11 })
            .with_failed(Some(FailedPages { first: 5, pages: 2 }));
        let expected = [
            ("state", 2),
            ("owner", 3),
            ("incarnation", 9),
            ("purpose", 11),
            ("failed_pages", 2),
            ("failed_first", 5),
        ];
        assert_eq!(values(LineKind::Chunk, &chunk), expected);
        let intent = IntentRecord::opened(LockId(1), &[40, 41], 99);
        let found = values(LineKind::IntentHead, &intent);
        assert_eq!(found[..4], [("open", 1), ("lock", 1), ("images", 2), ("images_crc", 99)]);
        assert_eq!(found[4..6], [("target_0", 40), ("target_1", 41)]);
        let case = Case { incarnation: Incarnation(5), appointment: 6 };
        let value = Appointment { recoverer: NodeId(2), incarnation: Incarnation(8), epoch: 12 };
        let ballot = BallotRecord::promise(case, 4, 3).with_accepted(value).with_sequence(21);
        let expected = [
            ("sequence", 21),
            ("decided", 0),
            ("incarnation", 5),
            ("appointment", 6),
            ("promised", 4),
            ("accepted", 4),
            ("recoverer", 2),
            ("recoverer_incarnation", 8),
            ("epoch", 12),
            ("epoch_seen", 3),
        ];
        assert_eq!(values(LineKind::Ballot, &ballot), expected);
        let recovery = RecoveryRecord::new(case, Incarnation(8), RecoveryStep::Fenced);
        let found = values(LineKind::Recovery, &recovery);
        assert_eq!(
            found[1..],
            [("step", 2), ("incarnation", 5), ("appointment", 6), ("recoverer_incarnation", 8)]
        );
        let root = RootHead::live("name", 4096, 3, 17);
        let found = values(LineKind::RootHead, &root);
        assert!(
            found.contains(&("offset", 4096)) && found.contains(&("sequence", 17)),
            "{found:?}"
        );
    }
}
