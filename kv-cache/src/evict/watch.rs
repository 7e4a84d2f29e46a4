//! The owner's view of holds: which of them still count (EVICT-H5).

use std::collections::HashMap;

use cxl_shm::units::NodeId;

use crate::format::{HoldMark, ReaderWord};

/// Since when this process has been looking at each hold on this node's blocks.
///
/// Several processes of a host may evict, each with a watch of its own: a hold lasts at most its
/// length from when the process that evicts first saw it.
#[derive(Debug, Default)]
pub(crate) struct HoldWatch {
    /// By reader and slot: the hold, and when it was seen first.
    seen: HashMap<(NodeId, u32), (HoldMark, u64)>,
}

impl HoldWatch {
    /// Whether the reader word of `reader` protects the block in `slot` at `now_ms`.
    pub(crate) fn protects(
        &mut self,
        reader: NodeId,
        slot: u32,
        reader_word: ReaderWord,
        now_ms: u64,
    ) -> bool {
        let Some((mark, hold_ms)) = reader_word.mark() else {
            self.seen.remove(&(reader, slot));
            return false;
        };
        let entry = self.seen.entry((reader, slot)).or_insert((mark, now_ms));
        if entry.0 != mark {
            *entry = (mark, now_ms);
        }
        now_ms.saturating_sub(entry.1) < hold_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: NodeId = NodeId(3);

    #[test]
    fn a_hold_lasts_from_when_it_was_first_seen() {
        let mut watch = HoldWatch::default();
        let held = ReaderWord::default().hold(128);
        assert!(!watch.protects(READER, 1, ReaderWord::default(), 0));
        assert!(watch.protects(READER, 1, held, 5000));
        assert!(watch.protects(READER, 1, held.touch(9), 5127), "a touch is no new hold");
        assert!(!watch.protects(READER, 1, held, 5128));
        assert!(watch.protects(READER, 2, held, 5128), "another block, first seen now");
        // Held again, by whomever.
        assert!(watch.protects(READER, 1, held.hold(128), 6000));
        assert!(watch.protects(READER, 1, held.hold(128), 6127));
        assert!(!watch.protects(READER, 1, held.hold(128), 6128));
    }

    #[test]
    fn a_hold_that_ended_and_began_again_is_another() {
        let mut watch = HoldWatch::default();
        let held = ReaderWord::default().hold(128);
        assert!(watch.protects(READER, 1, held, 0));
        // The end itself was not seen.
        assert!(watch.protects(READER, 1, held.release().hold(128), 128));
        assert!(!watch.protects(READER, 1, held.release(), 128));
    }
}
