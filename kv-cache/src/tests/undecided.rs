//! Blocks whose owner died within the line that says that they may leave.

use cxl_shm::units::LINE_WORDS;

use super::*;

/// A process of the owner dies when of its write of the descriptor, which said `from` before and
/// was to say `to`, or that the block is gone, word `arrived` alone is in the line. What another
/// process of the host makes of it.
fn died_within(
    from: BlockState,
    to: impl Into<Option<BlockState>>,
    arrived: usize,
) -> Option<BlockState> {
    let rig = Rig::new(2, 32, 16);
    let (dies, next, reader) = (rig.join(0), rig.join(0), rig.join(1));
    let clock = rig.serve(&[&next, &reader]);
    let cache = Cache::attach(&dies, &clock).unwrap();
    let handle = publish(&cache, &clock, 1);
    let readers = Cache::attach(&reader, &clock).unwrap();
    let held = hold(&readers, &clock, 1).unwrap();

    let (host, segment) = (dies.fabric(), cache.segment(handle.owner()).unwrap());
    let line = segment.range(handle.slot());
    let [before, after] = [Some(from), to.into()].map(|state| {
        match state {
            Some(state) => rewrite(&cache, handle, |block| Descriptor { state, ..block }),
            None => {
                let tombstone = DescriptorLine::free(dies.node(), handle.generation(), false);
                let own = cache.areas().own_segment(dies.node(), dies.area());
                own.line(handle.slot()).publish(host, &tombstone);
            }
        }
        host.read_line(line.start())
    });
    let mut torn = before;
    torn[arrived] = after[arrived];
    host.write_line(line.start(), &torn);
    // It died with the heap locked.
    cache.locked(&clock, |heap| heap.doubt());
    rig.kill(&dies);

    let next = Cache::attach(&next, &clock).unwrap();
    let there = fetch(&readers, 1, held.handle()).is_ok();
    assert_eq!(find_and_fetch(&next, 1), there, "the host itself");
    let found = segment.probe(reader.fabric(), key(1));
    assert_eq!(found.is_some(), there);
    found.map(|block| block.state)
}

#[test]
fn a_block_that_is_not_decided_on_is_there_wherever_its_owner_died() {
    use BlockState::{Evicting, Ready};
    for (from, to) in [(Ready, Evicting), (Evicting, Ready)] {
        for arrived in 0..LINE_WORDS {
            let found = died_within(from, to, arrived);
            assert_eq!(found, Some(Ready), "{from:?} to {to:?}, word {arrived}");
        }
    }
}

#[test]
fn a_block_that_was_being_written_is_not_there() {
    for arrived in [0, LINE_WORDS - 1] {
        assert_eq!(died_within(BlockState::Writing, BlockState::Ready, arrived), None);
    }
}

#[test]
fn a_block_whose_tombstone_has_begun_does_not_come_back() {
    for from in [BlockState::Ready, BlockState::Evicting] {
        // Where its first word is all that tells: of the process whose number a tombstone has, too.
        assert_eq!(died_within(from, None, 0), None, "{from:?}");
    }
}
