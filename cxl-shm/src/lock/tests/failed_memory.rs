//! Metadata that cannot be read, while a lock is acquired.

use super::*;
use crate::fabric::Fabric;
use crate::host::LossCause;
use crate::layout::{CHUNK_LOCK, HEAP_PURPOSE};
use crate::lock::LockError;
use crate::verify::simulated::FailedLine;

#[test]
fn no_lock_is_acquired_by_zeros_in_place_of_a_line_that_failed() {
    let bed = Bed::new(LockProtocol::Bakery);
    let (waits, holds) = (bed.process(0, 3), bed.process(1, 4));
    let _held = bed.acquire(&holds);
    let mut pending = waits.begin_shared(LOCK, &bed.clock);
    for _ in 0..10 {
        assert!(matches!(pending.poll(), Ok(None)), "the other host has it");
    }
    // The holder's number, which this process asks the device for at each look.
    let line = waits.layout().request(holds.node(), LOCK).range().start();
    bed.rack.fail(line, FailedLine::default());
    let looked = pending.poll();
    assert!(waits.fabric().is_cut_off());
    let Err(LockError::MembershipLost(lost)) = looked else { panic!("{looked:?}") };
    assert_eq!(lost.cause, LossCause::MemoryFailed);
}

#[test]
fn no_chunk_is_had_or_given_back_of_which_nobody_else_sees_it() {
    for gives_back in [false, true] {
        let bed = Bed::new(LockProtocol::Bakery);
        let process = bed.process(0, 3);
        let chunk = process.allocate_chunk(&bed.clock, TIMEOUT_MS, HEAP_PURPOSE + 1).unwrap();
        // The image of the entry, in the redo record of the update.
        let image = u64::from(CHUNK_LOCK.0) * crate::layout::INTENT_LINES + 1;
        let image = process
            .layout()
            .intents(process.node())
            .range()
            .iter()
            .nth(usize::try_from(image).unwrap());
        process.fabric().refresh(crate::units::LineRange::one(image.unwrap()));
        bed.rack.fail(image.unwrap(), FailedLine::default());
        let lost = if gives_back {
            let freed = process.free_chunk(&bed.clock, TIMEOUT_MS, chunk);
            let Err(crate::chunk::ChunkError::Lock(error)) = freed else { panic!("{freed:?}") };
            error
        } else {
            let had = process.allocate_chunk(&bed.clock, TIMEOUT_MS, HEAP_PURPOSE + 1);
            let Err(crate::chunk::AllocateError::Lock(error)) = had else { panic!("{had:?}") };
            error
        };
        assert!(process.fabric().is_cut_off());
        let LockError::MembershipLost(lost) = lost else { panic!("{lost:?}") };
        assert_eq!(lost.cause, LossCause::MemoryFailed);
    }
}
