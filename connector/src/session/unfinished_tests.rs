//! Publishes through a device that cannot be waited for (CUDA-E2).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cxl_shm::units::Extent;

use super::tests::{BLOCK_BYTES, Pair, content, hashes, on_two_hosts, options, publish};
use super::{PublishOutcome, SessionCore};
use crate::block::NewBlock;
use crate::dma::{Checksum, DmaEngine, DmaError, LayeredSource, Layers, LoadJob, StoreJob};

/// What becomes of its stores.
#[derive(Clone, Copy)]
enum Store {
    Unfinished,
    PanicsUnfinished,
    Panics,
}

/// A device that copies nothing.
struct Device {
    store: Store,
    may_still_write: Cell<bool>,
}

impl DmaEngine for Device {
    type Source<'a> = &'a [u8];
    type Destination<'a> = &'a mut [u8];

    fn may_still_write(&self) -> bool {
        self.may_still_write.get()
    }

    fn store(&self, jobs: &[StoreJob<'_, &[u8]>]) -> Vec<Result<Checksum, DmaError>> {
        self.may_still_write.set(!matches!(self.store, Store::Panics));
        if !matches!(self.store, Store::Unfinished) {
            panic!("in the middle of a store");
        }
        let one = |job: &StoreJob<'_, &[u8]>| {
            Err(DmaError::Unfinished { payload: job.payload, reason: "broken".to_owned() })
        };
        jobs.iter().map(one).collect()
    }

    fn load(&self, _: &mut [LoadJob<&mut [u8]>]) -> Vec<Result<Checksum, DmaError>> {
        unreachable!("nothing is fetched")
    }

    fn load_by_layers(
        &self,
        _: Vec<LoadJob<&mut [u8]>>,
        _: &Layers,
        _: &mut dyn FnMut(usize),
    ) -> Vec<Result<Checksum, DmaError>> {
        unreachable!("nothing is fetched")
    }

    fn store_by_layers(
        &self,
        _: &[Extent],
        _: &Layers,
        _: &mut dyn LayeredSource<Self>,
    ) -> Option<Vec<Result<Checksum, DmaError>>> {
        unreachable!("blocks are published whole")
    }
}

/// Blocks that have space after a publish of two through such a device, and another by the processor.
fn blocks_after(pair: &Pair<'_, '_>, store: Store) -> (u64, Option<Vec<PublishOutcome>>) {
    let device = Device { store, may_still_write: Cell::new(false) };
    let session = SessionCore::new(pair.caches[0], &device, pair.clock, options());
    let contents = [content(1), content(2)];
    let parts: Vec<_> = contents.iter().map(|bytes| [&bytes[..BLOCK_BYTES]]).collect();
    let blocks = NewBlock::chain(0, hashes(1..=2), parts);
    let published = catch_unwind(AssertUnwindSafe(|| session.publish(&blocks).unwrap()));
    let outcomes = published.ok().map(|report| report.outcomes().to_vec());
    // What was put off is done by the next operation.
    assert_eq!(publish(&pair.session(0, options()), 3..=3).published(), 1);
    (pair.caches[0].heap_use(pair.clock).blocks, outcomes)
}

#[test]
fn what_a_device_may_still_write_stays_reserved_and_is_found_by_nobody() {
    on_two_hosts(|pair| {
        let (blocks, outcomes) = blocks_after(pair, Store::Unfinished);
        let outcomes = outcomes.unwrap();
        let is_unfinished = |outcome: &PublishOutcome| {
            matches!(outcome, PublishOutcome::Failed(DmaError::Unfinished { .. }))
        };
        assert!(outcomes.len() == 2 && outcomes.iter().all(is_unfinished), "{outcomes:?}");
        assert_eq!(blocks, 3);
        let found = pair.session(1, options()).present(&hashes(1..=3)).unwrap();
        assert_eq!(found, [false, false, true]);
    });
}

#[test]
fn what_a_device_may_still_write_stays_reserved_when_the_store_panics() {
    on_two_hosts(|pair| assert_eq!(blocks_after(pair, Store::PanicsUnfinished), (3, None)));
    on_two_hosts(|pair| assert_eq!(blocks_after(pair, Store::Panics), (1, None)));
}
