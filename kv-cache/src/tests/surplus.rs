//! Several processes of a host evict above the high watermark.

use super::*;
use crate::upkeep::Watermarks;

#[test]
fn processes_of_a_host_evict_a_surplus_once() {
    let rig = Rig::new(2, 64, 64);
    on_two_hosts(&rig, |a, _, clock| {
        let other = rig.join(0);
        let beside = Cache::attach(&other, clock).unwrap();
        for number in 1..=40 {
            publish(a, clock, number);
        }
        // Of 48 descriptors 40 are used: both have seen that this is above the high watermark.
        let watermarks = Watermarks::new(80, 50).unwrap();
        let evicted = [a, &beside].map(|cache| cache.evict_surplus(clock, None, watermarks));
        assert_eq!(evicted, [16, 0]);
        assert_eq!(a.heap_use(clock).blocks, 24);
        let size = crate::heap::SlotSize::for_block(BLOCK_BYTES, CHUNK_BYTES).unwrap();
        let watermarks = Watermarks::new(40, 20).unwrap();
        let evicted = [a, &beside].map(|cache| cache.evict_surplus(clock, Some(size), watermarks));
        // 5 chunks of 8 slots.
        assert_eq!(evicted, [16, 0]);
    });
}
