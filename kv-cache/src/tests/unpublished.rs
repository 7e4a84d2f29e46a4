//! What a process that died had stored, and not published: its host alone knows of it.

use std::mem::forget;

use cxl_shm::fabric::PublishBatch;

use super::*;
use crate::format::ReaderWord;

/// A process of host 0 stores a tombstone over block 1 and dies, with the heap locked, before it
/// has published it. Also run with flushes and fences removed.
pub(super) fn freed_by_the_dead(rack: SimulatedRack) {
    let rig = Rig::on(rack, 2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let reading = open(b, 1, find(b, 1).unwrap()).unwrap();
        let other = rig.join(0);
        let cache = Cache::attach(&other, clock).unwrap();
        forget(other.lock_heap(clock));
        let segment = cache.areas().own_segment(other.node(), other.area());
        let mut batch = PublishBatch::new(other.fabric());
        let tombstone = DescriptorLine::free(other.node(), handle.generation(), true);
        batch.line(segment.line(handle.slot()), &tombstone);
        forget(batch);
        rig.kill(&other);

        // Another block gets the payload, and another slot.
        let block = reserve(a, clock, 3);
        assert_eq!(block.payload(), reading.payload());
        assert_ne!(block.descriptor.handle.slot(), handle.slot());
        store(a, block.payload(), &content(3));
        assert_eq!(b.close(&[(reading, None)]), [Err(Miss::Changed)], "nobody else's bytes");
        assert!(open(b, 1, handle).is_err());
        forget(block);
    });
}

#[test]
fn what_the_dead_freed_is_gone_for_everybody_before_its_payload_is_taken() {
    freed_by_the_dead(SimulatedRack::sticky(2, REGION_BYTES));
}

#[test]
fn a_release_of_the_dead_arrives() {
    let rig = Rig::new(2, 32, 16);
    on_two_hosts(&rig, |a, b, clock| {
        let handle = publish(a, clock, 1);
        let word = a.areas().reader_words(b.member().node()).word(handle.owner(), handle.slot());
        let says_held = || ReaderWord::from_word(word.fresh(a.member().fabric())).held;
        for is_counted in [true, false] {
            let other = rig.join(1);
            let cache = Cache::attach(&other, clock).unwrap();
            let held = hold(&cache, clock, 1).unwrap();
            assert!(says_held());
            if !is_counted {
                // The last to hold it has let it go, as far as the host's own memory says.
                cache.locked(clock, |heap| heap.holds.remove(other.process(), handle));
            }
            forget(other.lock_heap(clock));
            let reader_words = cache.areas().own_reader_words(other.area());
            let reader_word = reader_words.own(other.fabric(), handle.owner(), handle.slot());
            let at = reader_words.word(handle.owner(), handle.slot()).at();
            other.fabric().store(at, reader_word.release().word());
            forget(held);
            rig.kill(&other);
            assert!(says_held());
            b.reap(clock);
            assert!(!says_held(), "counted: {is_counted}");
        }
    });
}
