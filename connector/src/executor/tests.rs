//! An executor on a real region in /dev/shm.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use cxl_shm::clock::Clock as _;
use kv_cache::placement::Placement;
use kv_cache::{Attention, BlockHash, Dtype, KvGeometry};

use super::*;
use crate::asynchronous::AsyncPool;
use crate::block::NewBlock;
use crate::options::{AsyncOptions, SessionOptions};
use crate::scratch::ScratchRegion;

const LAYERS: u16 = 6;
const LAYER_BYTES: usize = 1024;
const BLOCKS: u8 = 5;

/// A pool of which blocks of request 7 are published.
struct Bed {
    region: ScratchRegion,
    pool: AsyncPool,
    session: AsyncSession,
}

fn layers() -> Layers {
    Layers::new([LAYER_BYTES as u64; LAYERS as usize])
}

/// What a layer of a block has in each byte.
fn content(block: u8, layer: u16) -> u8 {
    block * 16 + u8::try_from(layer).unwrap()
}

fn block(number: u8) -> NewBlock<Vec<Vec<u8>>> {
    let hash = BlockHash::new([number; 32]);
    let bytes = (1..=LAYERS).map(|layer| vec![content(number % 15, layer); LAYER_BYTES]);
    NewBlock { hash, depth: u32::from(number), bytes: bytes.collect() }
}

fn offload(layers: &[u64]) -> Vec<(u64, Placement)> {
    vec![(7, Placement::new(layers, LAYERS).unwrap())]
}

impl Bed {
    fn new(hold: Duration) -> Self {
        let block_bytes = LAYER_BYTES as u64 * u64::from(LAYERS);
        let region = ScratchRegion::create(16 << 20, 2, block_bytes).unwrap();
        let pool = AsyncPool::attach(region.path(), 0, &AsyncOptions::new()).unwrap();
        let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
        let kv = KvGeometry::new(2, heads, Dtype::F16, 16).unwrap();
        let options = SessionOptions::new(kv.model("tiny", "1", 1), block_bytes).with_hold(hold);
        let session = pool.session(options).unwrap();
        let bed = Self { region, pool, session };
        assert_eq!(bed.publish(0..BLOCKS), usize::from(BLOCKS));
        bed
    }

    fn publish(&self, numbers: std::ops::Range<u8>) -> usize {
        let published = self.session.publish(numbers.map(block).collect()).unwrap();
        published.wait().unwrap().report.unwrap().published()
    }

    fn held(&self) -> HoldReport {
        let hashes: Vec<_> = (0..BLOCKS).map(|number| block(number).hash).collect();
        self.session.lookup_and_hold(hashes).unwrap().wait().unwrap().unwrap()
    }

    fn executor(&self) -> Executor {
        let mut executor = Executor::new(self.session.clone(), layers()).unwrap();
        let mut seen = Vec::new();
        let on_block = &mut |number, block: &[Vec<u8>]| seen.push((number, block.concat()));
        executor.admit(7, self.held(), on_block).unwrap();
        let expected = (0..BLOCKS).map(|number| (number.into(), block(number).bytes.concat()));
        assert_eq!(seen, expected.collect::<Vec<_>>());
        executor
    }

    /// Changes a byte of a layer of a block in the pool.
    fn damage(&self, number: u8, layer: u16) {
        let region = fs::read(self.region.path()).unwrap();
        let layer_of = vec![content(number, layer); LAYER_BYTES];
        let found = region.windows(LAYER_BYTES).position(|bytes| bytes == layer_of).unwrap();
        let file = File::options().write(true).open(self.region.path()).unwrap();
        file.write_all_at(&[0xff], found as u64 + 500).unwrap();
    }
}

/// Publishes blocks that nobody uses.
fn pressure(bed: &Bed, depth: &mut u32) {
    let blocks = (0..64).map(|_| {
        *depth += 1;
        let hash = BlockHash::new(std::array::from_fn(|at| depth.to_le_bytes()[at % 4]));
        NewBlock { hash, depth: *depth, bytes: block(20).bytes }
    });
    let published = bed.session.publish(blocks.collect()).unwrap().wait().unwrap();
    assert!(published.report.is_ok());
}

/// An iteration over all layers, in which every offloaded layer has its right bytes, and no other
/// layer is brought.
fn iterate(executor: &mut Executor, batch: &[(u64, Placement)]) -> Result<(), ExecutorError> {
    executor.begin(batch)?;
    for layer in 1..=LAYERS {
        let there = executor.before(layer)?;
        let offloaded = batch[0].1.offloaded().contains(&layer);
        assert_eq!(there.len(), usize::from(offloaded), "layer {layer}");
        for streamed in there {
            let right = (0..BLOCKS).map(|number| vec![content(number, layer); LAYER_BYTES]);
            assert_eq!((streamed.request, streamed.blocks), (7, &right.collect::<Vec<_>>()[..]));
        }
        executor.after(layer)?;
    }
    Ok(())
}

#[test]
fn offloaded_layers_are_there_when_they_execute_and_come_back_to_stay() {
    let bed = Bed::new(Duration::from_secs(30));
    let mut executor = bed.executor();
    for offloaded in [&[2, 4, 6][..], &[1, 2, 3, 4, 5, 6], &[6], &[]] {
        let batch = offload(offloaded);
        iterate(&mut executor, &batch).unwrap();
        let figures = executor.end().unwrap();
        let blocks = offloaded.len() as u64 * u64::from(BLOCKS);
        assert_eq!((figures.blocks, figures.bytes), (blocks, blocks * LAYER_BYTES as u64));
        assert_eq!(figures.measured.block_ns.is_some(), blocks > 0);
        assert!(figures.stalls <= offloaded.len() as u64, "{figures:?}");
        let counted = offloaded.len().min(2) * usize::from(BLOCKS) * LAYER_BYTES;
        assert_eq!(executor.buffer_bytes(), counted, "{offloaded:?}");
    }
    let stays = executor.bring(7, 3).unwrap();
    let right = (0..BLOCKS).map(|number| vec![content(number, 3); LAYER_BYTES]);
    assert_eq!(stays, right.collect::<Vec<_>>());
    assert_eq!(bed.pool.metrics().fetched_blocks, u64::from(BLOCKS), "read whole once");
    executor.forget(7);
    assert!(matches!(executor.begin(&offload(&[2])), Err(ExecutorError::NotAdmitted { .. })));
}

#[test]
fn a_plan_that_changes_in_the_middle_of_an_iteration_streams_the_new_one() {
    let bed = Bed::new(Duration::from_secs(30));
    let mut executor = bed.executor();
    for executed in 0..=LAYERS {
        executor.begin(&offload(&[1, 2, 4, 6])).unwrap();
        for layer in 1..=executed {
            executor.before(layer).unwrap();
            executor.after(layer).unwrap();
        }
        // Fetches of the plan before are under way: none of their layers is taken for one of these.
        iterate(&mut executor, &offload(&[2, 3, 5])).unwrap();
        assert_eq!(executor.end().unwrap().blocks, 3 * u64::from(BLOCKS));
        let most = 2 * usize::from(BLOCKS) * LAYER_BYTES;
        assert!(executor.buffer_bytes() <= most, "{} bytes", executor.buffer_bytes());
    }
}

#[test]
fn requests_of_one_prefix_stream_their_layers_each() {
    let bed = Bed::new(Duration::from_secs(30));
    let mut executor = bed.executor();
    executor.admit(8, bed.held(), &mut |_, _| ()).unwrap();
    let placement = |layers: &[u64]| Placement::new(layers, LAYERS).unwrap();
    let batch = [(7, placement(&[2, 4])), (8, placement(&[4, 5]))];
    executor.begin(&batch).unwrap();
    for layer in 1..=LAYERS {
        let right: Vec<_> =
            (0..BLOCKS).map(|number| vec![content(number, layer); LAYER_BYTES]).collect();
        let there = executor.before(layer).unwrap();
        assert!(there.iter().all(|streamed| *streamed.blocks == right), "layer {layer}");
        let requests: Vec<_> = there.iter().map(|streamed| streamed.request).collect();
        let expected: &[u64] = match layer {
            2 => &[7],
            4 => &[7, 8],
            5 => &[8],
            _ => &[],
        };
        assert_eq!(requests, expected, "layer {layer}");
        executor.after(layer).unwrap();
    }
    assert_eq!(executor.end().unwrap().blocks, 4 * u64::from(BLOCKS));
    // One is finished while an iteration of both is under way: it is over for the other, too.
    executor.begin(&batch).unwrap();
    executor.forget(7);
    assert!(matches!(executor.before(1), Err(ExecutorError::NoIteration)));
    executor.begin(&batch[1..]).unwrap();
    for layer in 1..=LAYERS {
        let there = executor.before(layer).unwrap().len();
        assert_eq!(there, usize::from(matches!(layer, 4 | 5)), "its blocks are held still");
        executor.after(layer).unwrap();
    }
}

#[test]
fn an_iteration_goes_on_when_a_request_is_forgotten_that_it_does_not_stream() {
    let bed = Bed::new(Duration::from_secs(30));
    let mut executor = bed.executor();
    executor.admit(8, bed.held(), &mut |_, _| ()).unwrap();
    let batch = [offload(&[2]), vec![(8, Placement::default())]].concat();
    executor.begin(&batch).unwrap();
    executor.forget(8);
    executor.forget(9);
    for layer in 1..=LAYERS {
        let streamed = executor.before(layer).unwrap().len();
        assert_eq!(streamed, usize::from(layer == 2), "layer {layer}");
        executor.after(layer).unwrap();
    }
    assert_eq!(executor.end().unwrap().blocks, u64::from(BLOCKS));
}

#[test]
fn layers_out_of_order_are_refused() {
    let bed = Bed::new(Duration::from_secs(30));
    let mut executor = bed.executor();
    let batch = offload(&[1, 2, 3, 5]);
    let mut refused = |steps: &dyn Fn(&mut Executor) -> Result<(), ExecutorError>| {
        executor.begin(&batch).unwrap();
        let error = steps(&mut executor).unwrap_err();
        assert!(matches!(executor.end(), Err(ExecutorError::NoIteration)), "{error}");
        error.to_string()
    };
    let skipped = refused(&|executor| executor.before(2).map(drop));
    assert!(skipped.contains("layer 2 is not the next one"), "{skipped}");
    let unasked = refused(&|executor| executor.after(1));
    assert!(unasked.contains("layer 1 has executed before it was asked for"), "{unasked}");
    let again = refused(&|executor| {
        executor.before(1)?;
        executor.after(1)?;
        executor.before(1).map(drop)
    });
    assert!(again.contains("which is layer 2"), "{again}");
    let twice = refused(&|executor| {
        executor.before(1)?;
        executor.after(1)?;
        executor.after(1)
    });
    assert!(twice.contains("which is layer 2"), "{twice}");
    let batch = [offload(&[2]), offload(&[3])].concat();
    let named = executor.begin(&batch).unwrap_err();
    assert!(matches!(named, ExecutorError::NamedTwice { request: 7 }), "{named}");
    iterate(&mut executor, &batch[..1]).unwrap();
}

#[test]
fn what_was_streamed_waited_for_and_lost_is_counted() {
    let bed = Bed::new(Duration::from_secs(30));
    let mut executor = bed.executor();
    let mut waits = 0;
    for _ in 0..20 {
        iterate(&mut executor, &offload(&[1, 2, 3])).unwrap();
        waits += executor.end().unwrap().stalls;
    }
    bed.damage(2, 1);
    executor.begin(&offload(&[1])).unwrap();
    assert!(executor.before(1).is_err());
    executor.begin(&[]).unwrap();
    let clock = SystemClock::start();
    // Told by a thread of the pool.
    while bed.pool.metrics().stream_waits < waits {
        assert!(clock.now_ms() < 60_000, "{waits} waits are not told: {:?}", bed.pool.metrics());
        clock.sleep_ms(1);
    }
    let metrics = bed.pool.metrics();
    let right = 20 * 3 * u64::from(BLOCKS);
    assert!((right..=right + u64::from(BLOCKS)).contains(&metrics.streamed_blocks), "{metrics:?}");
    assert_eq!(metrics.streamed_bytes, metrics.streamed_blocks * LAYER_BYTES as u64);
    assert_eq!(metrics.stream_lost_blocks, 1);
}

#[test]
fn a_damaged_block_is_an_error_before_its_layer_executes() {
    let bed = Bed::new(Duration::from_secs(30));
    let mut executor = bed.executor();
    let batch = offload(&[2, 4]);
    iterate(&mut executor, &batch).unwrap();
    executor.end().unwrap();
    // What is not brought is not looked at.
    bed.damage(1, 3);
    iterate(&mut executor, &batch).unwrap();
    executor.end().unwrap();
    bed.damage(3, 4);
    executor.begin(&batch).unwrap();
    for layer in 1..=3 {
        executor.before(layer).unwrap();
        executor.after(layer).unwrap();
    }
    let error = executor.before(4).unwrap_err();
    let ExecutorError::Block { request: 7, block: 3, layer: Some(4), stop } = &error else {
        panic!("{error}")
    };
    assert_eq!(stop.label(), "checksum");
    assert!(error.to_string().contains("compute the request again"), "{error}");
    // The iteration is over, and the request can be given up.
    assert!(matches!(executor.before(4), Err(ExecutorError::NoIteration)));
    assert!(matches!(executor.end(), Err(ExecutorError::NoIteration)));
    assert!(iterate(&mut executor, &batch).is_err(), "it stays an error");
    executor.forget(7);
    iterate(&mut executor, &[(8, Placement::default())]).unwrap();
}

#[test]
fn eviction_does_not_take_what_is_offloaded() {
    let bed = Bed::new(Duration::from_millis(256));
    let mut executor = bed.executor();
    let batch = offload(&[3, 5]);
    // Two more: one in the batch with all layers in the engine's memory, and one paused.
    let own = |number: u8| block(number + BLOCKS).hash;
    assert_eq!(bed.publish(BLOCKS..3 * BLOCKS), 2 * usize::from(BLOCKS));
    for (request, first) in [(8, 0), (9, BLOCKS)] {
        let hashes: Vec<_> = (first..first + BLOCKS).map(own).collect();
        let held = bed.session.lookup_and_hold(hashes).unwrap().wait().unwrap().unwrap();
        assert_eq!(held.blocks().len(), usize::from(BLOCKS));
        executor.admit(request, held, &mut |_, _| ()).unwrap();
    }
    let batch = [batch, vec![(8, Placement::default())]].concat();
    let mut depth = 100;
    // More than the pool has room for, many times, for longer than a hold.
    let until_ms = executor.clock.now_ms() + 1500;
    while executor.clock.now_ms() < until_ms {
        pressure(&bed, &mut depth);
        iterate(&mut executor, &batch).unwrap();
    }
    assert!(bed.pool.metrics().evicted_blocks > 1000, "there was no pressure");
    executor.end().unwrap();
    for request in [8, 9] {
        assert_eq!(executor.bring(request, 3).unwrap().len(), usize::from(BLOCKS), "{request}");
        executor.forget(request);
    }
    executor.forget(7);
    // The same pressure takes blocks that nobody holds.
    for _ in 0..50 {
        pressure(&bed, &mut depth);
    }
    assert!(bed.held().blocks().len() < usize::from(BLOCKS), "holds made no difference");
}

#[test]
fn holds_are_renewed_by_their_age_whether_a_request_streams_or_not() {
    let bed = Bed::new(Duration::from_millis(256));
    let clock = SystemClock::start();
    // Half the time of the holds is over when this ends.
    let renews = |what: &mut dyn FnMut()| {
        clock.sleep_ms(150);
        let before = bed.pool.metrics().held_blocks;
        what();
        bed.pool.metrics().held_blocks >= before + u64::from(BLOCKS)
    };
    let mut executor = Executor::new(bed.session.clone(), layers()).unwrap();
    let mut held = Some(bed.held());
    let admit = &mut || executor.admit(7, held.take().unwrap(), &mut |_, _| ()).unwrap();
    assert!(renews(admit), "a hold is as old as the lookup");
    assert!(renews(&mut || executor.begin(&offload(&[2])).unwrap()));
    assert!(renews(&mut || executor.begin(&offload(&[])).unwrap()), "all its layers are there");
    assert!(renews(&mut || executor.begin(&[]).unwrap()), "it is paused");
    assert!(renews(&mut || executor.renew().unwrap()), "no iteration begins");
}

#[test]
fn blocks_that_are_gone_are_an_error_of_the_request_that_needs_them() {
    let bed = Bed::new(Duration::from_millis(64));
    let mut executor = bed.executor();
    let mut depth = 100;
    // The time of a hold begins when eviction sees it.
    for _ in 0..2 {
        for _ in 0..50 {
            pressure(&bed, &mut depth);
        }
        executor.clock.sleep_ms(300);
    }
    for _ in 0..50 {
        pressure(&bed, &mut depth);
    }
    iterate(&mut executor, &offload(&[])).unwrap();
    iterate(&mut executor, &[(8, Placement::default())]).unwrap();
    let error = executor.begin(&offload(&[2])).unwrap_err();
    assert!(matches!(error, ExecutorError::Hold { request: 7, block: 0, .. }), "{error}");
}

#[test]
fn what_cannot_be_streamed_is_refused() {
    let bed = Bed::new(Duration::from_secs(30));
    for lengths in [vec![1000, 5144], vec![1024, 1024]] {
        let refused = Executor::new(bed.session.clone(), Layers::new(lengths)).unwrap_err();
        assert!(matches!(refused, ExecutorError::Layers { .. }), "{refused}");
    }
    let mut executor = bed.executor();
    let twice = executor.admit(7, bed.held(), &mut |_, _| ());
    assert!(matches!(twice, Err(ExecutorError::AdmittedTwice { request: 7 })));
    assert!(matches!(executor.bring(7, 0), Err(ExecutorError::NoSuchLayer { layer: 0, .. })));
    assert!(matches!(executor.bring(7, 7), Err(ExecutorError::NoSuchLayer { layer: 7, .. })));
    assert!(matches!(executor.bring(8, 1), Err(ExecutorError::NotAdmitted { request: 8 })));
    bed.pool.close();
    let closed = iterate(&mut executor, &offload(&[2])).unwrap_err();
    assert!(matches!(closed, ExecutorError::Refused(_)), "{closed}");
}
