//! Adoption of the dead heap's chunks.

use crate::layout::HEAP_PURPOSE;
use crate::lifecycle::deaths::{DeathEvent, Deaths};
use crate::lifecycle::recovery::RecoveryEvent;
use crate::lifecycle::recovery::adopt::ADOPTED_MAX;
use crate::lifecycle::recovery::tests::{Bed, MANAGER_PID, Off, is_done};
use crate::node::SUSPECT_MS;

/// A dead host had more chunks in its heap than are adopted in one step: between two steps any
/// process that recovers it can grant and beat, and others can have the lock of the chunks.
#[test]
fn many_chunks_are_adopted_a_few_at_a_time() {
    const CHUNKS: usize = 2 * ADOPTED_MAX + 1;
    let bed = Bed::of_three(1);
    let (recoverer, victim) = (bed.join(0, MANAGER_PID), bed.join(2, 3));
    for _ in 0..CHUNKS {
        victim.allocate_chunk(&bed.clock, 1000, HEAP_PURPOSE).unwrap();
    }
    bed.rack.crash(2);
    std::mem::forget(victim);

    let manage = recoverer.manage().unwrap();
    let mut deaths = Deaths::watch(&manage, &bed.clock, SUSPECT_MS);
    let (mut before, mut events) = (0, Vec::new());
    while !events.iter().any(is_done) {
        events.extend(bed.look(&mut deaths, &[&recoverer], &mut Off));
        let now = recoverer.chunks_of(recoverer.node()).len();
        assert!(now - before <= ADOPTED_MAX, "{} in one step", now - before);
        before = now;
    }
    let adopted = events.iter().find_map(|event| match event {
        DeathEvent::Recovery(RecoveryEvent::Adopted(chunks)) => Some(chunks.len()),
        _ => None,
    });
    assert_eq!((before, adopted), (CHUNKS, Some(CHUNKS)), "{events:?}");
}
