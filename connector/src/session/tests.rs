//! Sessions on a simulated rack of two hosts, driven by one thread.

use std::cell::RefCell;
use std::time::Duration;

use cxl_shm::host::{
    HostIdentity, HostTier, LossCause, MembershipLost, ProcLiveness, ProcessIdentity,
};
use cxl_shm::layout::{Geometry, Layout, Superblock, format_superblock};
use cxl_shm::lifecycle::{Deaths, NoFence};
use cxl_shm::lock::Manage;
use cxl_shm::node::{Member, SUSPECT_MS};
use cxl_shm::units::{NodeId, WordOffset};
use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::simulated::{DmaCache, SimulatedClock, SimulatedRack};
use kv_cache::{CacheGeometry, DriveGeometry, Handle, Miss, Model, Namespace, SlotContent};

use super::*;
use crate::block::NewBlock;
use crate::dma::{CopyLayer, DmaError, Layers, SimulatedDma};
use crate::identities::{identity_hash, identity_in, identity_options};

pub(super) const BLOCK_BYTES: usize = 5000;
const MODEL: Model<'_> = Model {
    name: "tiny",
    revision: "1",
    dtype: "f16",
    layout_version: 1,
    block_tokens: 16,
    tensor_parallel_rank: 0,
    tensor_parallel_size: 1,
    layers: 30,
    kv_heads: 3,
    head_dim: 64,
};

pub(super) fn options() -> SessionOptions {
    SessionOptions::new(MODEL, BLOCK_BYTES as u64).with_chunk_timeout(Duration::from_secs(1))
}

pub(super) type TestMember = Member<SimulatedBackend>;
pub(super) type TestSession<'a, 'm> = SessionCore<'a, SimulatedBackend, SimulatedDma, Serving<'m>>;

/// A clock on which both hosts live on while somebody waits, the first as lock manager.
pub(super) struct Serving<'m> {
    members: [&'m TestMember; 2],
    manage: RefCell<Manage<'m, SimulatedBackend>>,
    clock: SimulatedClock,
}

impl Clock for Serving<'_> {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn pause(&self, tries: u32) {
        self.clock.pause(tries);
        for member in self.members {
            member.beat();
        }
        self.manage.borrow_mut().poll();
    }
}

/// What a test works with.
pub(super) struct Pair<'a, 'm> {
    pub(super) rack: &'a SimulatedRack,
    pub(super) caches: [&'a Cache<'a, SimulatedBackend>; 2],
    pub(super) engines: [&'a SimulatedDma; 2],
    pub(super) clock: &'a Serving<'m>,
}

impl<'a, 'm> Pair<'a, 'm> {
    pub(super) fn session(&self, host: usize, options: SessionOptions) -> TestSession<'a, 'm> {
        SessionCore::new(self.caches[host], self.engines[host], self.clock, options)
    }

    pub(super) fn sessions(&self) -> [TestSession<'a, 'm>; 2] {
        [0, 1].map(|host| self.session(host, options()))
    }
}

pub(super) fn on_two_hosts(test: impl Fn(&Pair<'_, '_>)) {
    for cache_use in [DmaCache::Bypass, DmaCache::Allocate] {
        let drives = DriveGeometry::new(64, 64, 8).unwrap();
        let cache = CacheGeometry::new(32, 16).unwrap().with_drives(Some(drives));
        let geometry = Geometry {
            region_bytes: 1 << 20,
            nodes: 2,
            locks: 8,
            chunk_bytes: 64 << 10,
            area_lines: cache.area_lines(2),
            host_words: 0,
        };
        let host_words = cache.host_words(&Layout::new(geometry).unwrap()) as u64;
        let geometry = Geometry { host_words, ..geometry };
        let rack = SimulatedRack::sticky(2, geometry.region_bytes);
        let superblock = Superblock::new([1, 2], geometry, cache.encode());
        format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
        let join = |host: u16| {
            let index = usize::from(host);
            let memory = rack.host_memory(index, HostTier::words_of(&geometry));
            let identity = HostIdentity::simulated(u64::from(host));
            let me = ProcessIdentity::current().unwrap();
            let (fabric, clock) = (rack.host(index), rack.clock(index));
            TestMember::join(fabric, memory, host, &identity, me, ProcLiveness, &clock).unwrap()
        };
        let members = [join(0), join(1)];
        let mut manage = members[0].manage().unwrap();
        manage.claim().unwrap();
        let clock = Serving {
            members: [&members[0], &members[1]],
            manage: RefCell::new(manage),
            clock: rack.clock(0),
        };
        let caches = [0, 1].map(|host| Cache::attach(&members[host], &clock).unwrap());
        let engines = [0, 1].map(|host| SimulatedDma::new(rack.host(host), cache_use));
        let pair = Pair {
            rack: &rack,
            caches: [&caches[0], &caches[1]],
            engines: [&engines[0], &engines[1]],
            clock: &clock,
        };
        test(&pair);
    }
}

pub(super) fn hashes(numbers: impl IntoIterator<Item = u8>) -> Vec<BlockHash> {
    numbers.into_iter().map(|number| BlockHash::new([number; 32])).collect()
}

pub(super) fn content(number: u8) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|at| number.wrapping_mul(31) ^ at.to_le_bytes()[0]).collect()
}

pub(super) fn publish(
    session: &TestSession<'_, '_>,
    numbers: impl IntoIterator<Item = u8>,
) -> PublishReport {
    let numbers: Vec<_> = numbers.into_iter().collect();
    let contents: Vec<_> = numbers.iter().map(|number| content(*number)).collect();
    let parts = contents.iter().map(|bytes| [&bytes[..100], &bytes[100..]]);
    session.publish(&NewBlock::chain(0, hashes(numbers), parts)).unwrap()
}

/// Looks blocks up and fetches what is found. Checks that what is valid is right.
pub(super) fn fetch(
    session: &TestSession<'_, '_>,
    numbers: impl IntoIterator<Item = u8>,
) -> FetchReport {
    let numbers: Vec<_> = numbers.into_iter().collect();
    let found = session.lookup(&hashes(numbers.iter().copied())).unwrap();
    let mut buffers = vec![vec![0; BLOCK_BYTES]; found.blocks().len()];
    let destinations = buffers.iter_mut().map(|buffer| {
        let (first, second) = buffer.split_at_mut(3000);
        vec![first, second]
    });
    let report = session.fetch(found.blocks(), destinations.collect()).unwrap();
    for (number, buffer) in numbers.iter().zip(&buffers).take(report.valid_blocks()) {
        assert_eq!(*buffer, content(*number), "block {number}");
    }
    report
}

pub(super) fn handle(session: &TestSession<'_, '_>, number: u8) -> Option<Handle> {
    session.lookup(&hashes([number])).unwrap().blocks().first().map(|block| block.handle)
}

/// Where a block lies.
pub(super) fn place(pair: &Pair<'_, '_>, number: u8) -> u64 {
    let handle = handle(&pair.session(0, options()), number).unwrap();
    let keys = KeySpace::new(options().model(), *options().namespace(), options().block_bytes());
    let segment = pair.caches[0].segment(handle.owner()).unwrap();
    let key = keys.key(&BlockHash::new([number; 32]));
    let block = segment.probe(pair.caches[0].member().fabric(), key).unwrap();
    block.payload.offset()
}

/// Damages the payload of a block on the device.
fn damage(pair: &Pair<'_, '_>, number: u8) {
    pair.rack.flip_bit(place(pair, number) + 777, 6);
}

/// Damages all that the first node says of a block, on the device.
fn damage_descriptor(pair: &Pair<'_, '_>, number: u8) {
    let keys = KeySpace::new(options().model(), *options().namespace(), options().block_bytes());
    let key = keys.key(&BlockHash::new([number; 32]));
    let word = u64::from_le_bytes(key.as_bytes()[..8].try_into().unwrap());
    let area = pair.caches[0].member().layout().area(NodeId(0)).range();
    for at in area.iter().flat_map(|line| (0..8).map(move |index| line.bytes() + index * 8)) {
        if pair.rack.device_word(WordOffset::new(at).unwrap()) == word {
            pair.rack.flip_bit(at, 0);
        }
    }
}

#[test]
fn sessions_of_another_block_length_neither_find_nor_spoil_blocks() {
    on_two_hosts(|pair| {
        let (long, short) = (options(), SessionOptions::new(options().model(), 512));
        let [long, short] = [long, short].map(|options| pair.session(1, options));
        assert_eq!(publish(&pair.session(0, options()), 1..=3).published(), 3);
        assert_eq!(short.lookup(&hashes(1..=3)).unwrap().blocks(), []);
        let handles = long.lookup(&hashes(1..=3)).unwrap();
        let mut buffers = [[0; 512]; 3];
        let destinations =
            buffers.iter_mut().map(|buffer| vec![&mut buffer[..]]).collect::<Vec<_>>();
        let report = short.fetch(handles.blocks(), destinations).unwrap();
        assert_eq!(report.stop(), Some(&FetchStop::Miss(Miss::WrongLength)));
        assert_eq!(fetch(&long, 1..=3).valid_blocks(), 3);
    });
}

#[test]
fn an_identity_is_found_by_a_scan_as_long_as_it_is_in_the_pool() {
    on_two_hosts(|pair| {
        let text = r#"{"dtype":"float16"}"#;
        let block_bytes = BLOCK_BYTES as u64;
        let mut content = vec![0; BLOCK_BYTES];
        content[..text.len()].copy_from_slice(text.as_bytes());
        assert_eq!(publish(&pair.session(0, options()), 1..=3).published(), 3);
        let session = pair.session(0, identity_options(block_bytes));
        let block = NewBlock { hash: identity_hash(text), depth: 0, bytes: [&content[..]] };
        assert_eq!(session.publish(&[block]).unwrap().published(), 1);
        let cache = pair.caches[1];
        let fabric = cache.member().fabric();
        let identities = || {
            let mut found = Vec::new();
            cache.segment(NodeId(0)).unwrap().scan(fabric, |_, content| {
                if let Ok(SlotContent::Block(block)) = content {
                    found.extend(identity_in(fabric, &block).map(|text| (block.handle, text)));
                }
            });
            found
        };
        let found = identities();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, text);
        // A text that is not what the key stands for is none.
        let segment = pair.caches[0].segment(NodeId(0)).unwrap();
        let key = KeySpace::new(
            identity_options(block_bytes).model(),
            *options().namespace(),
            block_bytes,
        );
        let block = segment.probe(fabric, key.key(&identity_hash(text))).unwrap();
        pair.rack.flip_bit(block.payload.offset() + 3, 1);
        assert_eq!(identities(), []);
        pair.rack.flip_bit(block.payload.offset() + 3, 1);
        assert_eq!(identities().len(), 1);
        pair.caches[0].retire(pair.clock, &[found[0].0]);
        assert_eq!(identities(), []);
    });
}

#[test]
fn handles_of_another_models_blocks_are_misses_and_are_not_held() {
    on_two_hosts(|pair| {
        let other_model = Model { tensor_parallel_rank: 1, ..MODEL }.fingerprint();
        let other = SessionOptions::new(other_model, options().block_bytes());
        let [mine, other] = [options(), other].map(|options| pair.session(1, options));
        assert_eq!(publish(&pair.session(0, options()), 1..=3).published(), 3);
        // Another rank, or a decode engine with another model, is handed them by mistake.
        let handles = mine.lookup(&hashes(1..=3)).unwrap();
        let mut buffers = [vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]];
        let destinations =
            buffers.iter_mut().map(|buffer| vec![&mut buffer[..]]).collect::<Vec<_>>();
        let report = other.fetch(handles.blocks(), destinations).unwrap();
        assert_eq!(report.valid_blocks(), 0);
        assert_eq!(report.stop(), Some(&FetchStop::Miss(Miss::KeyCollision)));
        let held = other.hold(handles.blocks()).unwrap();
        assert_eq!((held.blocks().len(), held.stop()), (0, Some(Miss::KeyCollision.into())));
        assert_eq!(fetch(&mine, 1..=3).valid_blocks(), 3);
    });
}

#[test]
fn what_one_engine_publishes_another_fetches() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        let report = publish(&a, 1..=10);
        assert_eq!((report.published(), report.available()), (10, 10));
        let report = fetch(&b, 1..=12);
        assert_eq!((report.valid_blocks(), report.stop()), (10, None));
        // The rest comes from the other one, and is not written twice.
        let report = publish(&b, 1..=12);
        assert_eq!((report.published(), report.available()), (2, 12));
        assert_eq!(fetch(&a, 1..=12).valid_blocks(), 12);
        let metrics = b.metrics();
        assert_eq!((metrics.published_blocks, metrics.fetched_blocks), (2, 10));
        assert_eq!((metrics.already_there, metrics.rescans), (10, 0));
        assert_eq!(pair.rack.conflicts(), []);
    });
}

/// Layers that share lines.
fn layers() -> Layers {
    Layers::new([1000, 1500, 2500])
}

/// Blocks whose layers become ready up to one of them, and then `end` runs.
struct Ready<E> {
    contents: Vec<Vec<u8>>,
    layers: usize,
    complete: bool,
    end: E,
}

impl<E: FnMut()> LayeredBlocks<SimulatedDma> for Ready<E> {
    fn layer(
        &mut self,
        layer: usize,
        blocks: &[usize],
        copy: &mut CopyLayer<'_, SimulatedDma>,
    ) -> bool {
        if layer == self.layers {
            return false;
        }
        let (start, end) = [(0, 1000), (1000, 2500), (2500, 5000)][layer];
        let part = |number: &usize| vec![&self.contents[*number][start..end]];
        copy(&blocks.iter().map(part).collect::<Vec<_>>());
        true
    }

    fn complete(&mut self) -> bool {
        (self.end)();
        self.complete
    }
}

fn layered(numbers: std::ops::RangeInclusive<u8>) -> (Vec<NewBlock<()>>, Vec<Vec<u8>>) {
    let blocks = NewBlock::chain(0, hashes(numbers.clone()), std::iter::repeat(()));
    (blocks, numbers.map(content).collect())
}

#[test]
fn what_is_published_by_layers_is_seen_when_it_is_complete() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 2..=2).published(), 1);
        let (blocks, contents) = layered(1..=4);
        let end = || assert_eq!(fetch(&b, 1..=4).valid_blocks(), 0, "not yet");
        let mut ready = Ready { contents, layers: usize::MAX, complete: true, end };
        let report = a.publish_by_layers(&blocks, &layers(), &mut ready).unwrap().unwrap();
        assert_eq!((report.published(), report.available()), (3, 4));
        assert_eq!(fetch(&b, 1..=4).valid_blocks(), 4, "the same bytes, the same checksums");
        assert_eq!(pair.rack.conflicts(), []);
    });
}

#[test]
fn a_publish_by_layers_that_is_broken_off_leaves_nothing() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        let places = publish_and_remove(pair);
        for (layers_ready, complete) in [(0, true), (1, true), (2, true), (usize::MAX, false)] {
            let (blocks, contents) = layered(1..=4);
            let mut ready = Ready { contents, layers: layers_ready, complete, end: || () };
            let report = a.publish_by_layers(&blocks, &layers(), &mut ready).unwrap();
            assert_eq!(report, None);
            assert_eq!(fetch(&b, 1..=4).valid_blocks(), 0);
            assert_eq!(pair.caches[0].heap_use(pair.clock).blocks, 0, "its space is free again");
        }
        assert_eq!(publish(&b, 1..=2).published(), 2, "others may have them");
        // What was half written is written anew.
        assert_eq!(publish(&a, 3..=4).published(), 2);
        assert!((3..=4).all(|number| places.contains(&place(pair, number))));
        assert_eq!(fetch(&b, 1..=4).valid_blocks(), 4);
        assert_eq!(fetch(&a, 1..=4).valid_blocks(), 4);
        assert_eq!(pair.rack.conflicts(), []);
    });
}

/// Where the first host's blocks lie when it has no others.
fn publish_and_remove(pair: &Pair<'_, '_>) -> Vec<u64> {
    let session = pair.session(0, options());
    assert_eq!(publish(&session, 1..=4).published(), 4);
    let places = (1..=4).map(|number| place(pair, number)).collect();
    let handles: Vec<_> = (1..=4).map(|number| handle(&session, number).unwrap()).collect();
    assert_eq!(pair.caches[0].retire(pair.clock, &handles), 4);
    places
}

/// Gives the bytes of fewer blocks than it is asked for.
struct Fewer(Vec<u8>);

impl LayeredBlocks<SimulatedDma> for Fewer {
    fn layer(
        &mut self,
        _: usize,
        blocks: &[usize],
        copy: &mut CopyLayer<'_, SimulatedDma>,
    ) -> bool {
        copy(&vec![vec![self.0.as_slice()]; blocks.len() - 1]);
        true
    }

    fn complete(&mut self) -> bool {
        true
    }
}

#[test]
fn a_publish_by_layers_that_panics_leaves_nothing() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        let (blocks, mut contents) = layered(1..=4);
        let mut fewer = Fewer(contents.remove(0));
        let layers = Layers::new([BLOCK_BYTES as u64]);
        let publish_fewer = || a.publish_by_layers(&blocks, &layers, &mut fewer);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(publish_fewer));
        assert!(outcome.is_err(), "{outcome:?}");
        assert_eq!(fetch(&b, 1..=4).valid_blocks(), 0);
        // Freed by the next holder of the lock.
        assert_eq!(publish(&a, 5..=5).published(), 1);
        assert_eq!(pair.caches[0].heap_use(pair.clock).blocks, 1, "its space is free again");
        assert_eq!(publish(&a, 1..=4).published(), 4);
        assert_eq!(fetch(&b, 1..=5).valid_blocks(), 5);
        assert_eq!(pair.rack.conflicts(), []);
    });
}

#[test]
fn a_fetch_by_layers_tells_of_each_and_believes_the_same() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=5).published(), 5);
        let fetch = |found: &[kv_cache::MatchedBlock]| {
            let mut buffers = vec![vec![0; BLOCK_BYTES]; found.len()];
            let destinations = buffers.iter_mut().map(|buffer| {
                let (first, second) = buffer.split_at_mut(3000);
                vec![first, second]
            });
            let (destinations, mut told) = (destinations.collect(), Vec::new());
            let arrived = &mut |layer| told.push(layer);
            let report = b.fetch_by_layers(found, destinations, &layers(), arrived).unwrap();
            assert_eq!(told, [0, 1, 2]);
            for (number, buffer) in (1..).zip(&buffers).take(report.valid_blocks()) {
                assert_eq!(*buffer, content(number), "block {number}");
            }
            report
        };
        let found = b.lookup(&hashes(1..=5)).unwrap();
        assert_eq!(fetch(found.blocks()).valid_blocks(), 5);
        pair.engines[1].fail_after(3);
        let report = fetch(found.blocks());
        assert_eq!(report.valid_blocks(), 3);
        assert!(matches!(report.stop(), Some(FetchStop::Failed(_))));
        // What is wrong with a block is known at the end.
        damage(pair, 3);
        let report = fetch(found.blocks());
        assert_eq!(report.valid_blocks(), 2);
        assert_eq!(report.stop(), Some(&FetchStop::Miss(Miss::Checksum)));
    });
}

#[test]
fn layers_that_do_not_fit_are_refused_before_anything_happens() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        let (layers, block_bytes) = (Layers::new([1, 2]), BLOCK_BYTES as u64);
        let expected = SessionError::Layers { layers_bytes: 3, block_bytes };
        let (blocks, contents) = layered(1..=1);
        let mut ready = Ready { contents, layers: 3, complete: true, end: || () };
        assert_eq!(a.publish_by_layers(&blocks, &layers, &mut ready), Err(expected));
        assert_eq!(publish(&a, 1..=1).published(), 1);
        let found = b.lookup(&hashes([1])).unwrap();
        let mut buffer = [0; BLOCK_BYTES];
        let destinations = vec![vec![&mut buffer[..]]];
        let arrived = &mut |_| panic!("nothing arrives");
        let refused = b.fetch_by_layers(found.blocks(), destinations, &layers, arrived);
        assert_eq!(refused, Err(expected));
    });
}

#[test]
fn models_and_tenants_do_not_see_each_other() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=3).published(), 3);
        let tenant = Namespace::new("tenant", b"");
        let other_model = Model { layers: 31, ..MODEL }.fingerprint();
        let strangers = [
            options().with_namespace(tenant),
            SessionOptions::new(other_model, BLOCK_BYTES as u64),
        ];
        for options in strangers {
            let stranger = pair.session(1, options);
            assert_eq!(fetch(&stranger, 1..=3).valid_blocks(), 0);
            assert_eq!(publish(&stranger, 1..=1).published(), 1, "its own block of that hash");
            assert_eq!(fetch(&stranger, 1..=3).valid_blocks(), 1);
        }
        assert_eq!(fetch(&b, 1..=3).valid_blocks(), 3);
    });
}

#[test]
fn nothing_behind_a_damaged_block_is_believed() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=5).published(), 5);
        damage(pair, 3);
        let report = fetch(&b, 1..=5);
        assert_eq!(report.valid_blocks(), 2);
        assert_eq!(report.stop(), Some(&FetchStop::Miss(Miss::Checksum)));
        assert_eq!(b.metrics().misses(Miss::Checksum), 1);
        // It is not offered again, but can be published again, by the one who saw it.
        assert_eq!(b.lookup(&hashes(1..=5)).unwrap().blocks().len(), 2);
        assert_eq!(publish(&b, 1..=5).published(), 1);
        assert_eq!(fetch(&b, 1..=5).valid_blocks(), 5);
    });
}

#[test]
fn a_node_removes_its_own_damaged_blocks() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=3).published(), 3);
        damage(pair, 2);
        assert_eq!(fetch(&a, 1..=3).valid_blocks(), 1);
        assert_eq!((a.metrics().retired_blocks, b.metrics().retired_blocks), (1, 0));
        assert_eq!(handle(&b, 2), None, "gone for everybody");
        assert_eq!(publish(&a, 1..=3).published(), 1);
        assert_eq!(fetch(&b, 1..=3).valid_blocks(), 3);
    });
}

#[test]
fn a_copy_that_fails_on_the_way_in_publishes_nothing() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        pair.engines[0].fail_after(2);
        let report = publish(&a, 1..=5);
        assert_eq!((report.published(), report.available()), (4, 4));
        let failed = &report.outcomes()[2];
        assert!(matches!(failed, PublishOutcome::Failed(DmaError::Device { .. })), "{failed:?}");
        assert_eq!(fetch(&b, 1..=5).valid_blocks(), 2);
        assert_eq!(pair.caches[0].heap_use(pair.clock).blocks, 4, "its space is free again");
        assert_eq!(publish(&a, 3..=3).published(), 1);
        assert_eq!(fetch(&b, 1..=5).valid_blocks(), 5);
    });
}

#[test]
fn a_copy_that_fails_on_the_way_out_is_not_the_blocks_fault() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=5).published(), 5);
        pair.engines[1].fail_after(3);
        let report = fetch(&b, 1..=5);
        assert_eq!(report.valid_blocks(), 3);
        let stop = report.stop();
        assert!(matches!(stop, Some(FetchStop::Failed(DmaError::Device { .. }))), "{stop:?}");
        assert_eq!(fetch(&b, 1..=5).valid_blocks(), 5, "it is tried again");
    });
}

#[test]
fn the_first_block_that_fails_ends_the_prefix_whatever_failed() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=5).published(), 5);
        let found = b.lookup(&hashes(1..=5)).unwrap();
        let fetch = |found: &[kv_cache::MatchedBlock]| {
            let mut buffers = vec![vec![0; BLOCK_BYTES]; found.len()];
            let destinations = buffers.iter_mut().map(|buffer| vec![buffer.as_mut_slice()]);
            b.fetch(found, destinations.collect()).unwrap()
        };
        // Removed after the lookup, and a copy before it fails.
        pair.caches[0].retire(pair.clock, &[found.blocks()[3].handle]);
        pair.engines[1].fail_after(1);
        let report = fetch(found.blocks());
        assert_eq!(report.valid_blocks(), 1);
        assert!(matches!(report.stop(), Some(FetchStop::Failed(_))));
        // Only what is removed.
        let report = fetch(found.blocks());
        assert_eq!(report.valid_blocks(), 3);
        assert_eq!(report.stop(), Some(&FetchStop::Miss(Miss::Absent)));
    });
}

#[test]
fn buffers_that_do_not_fit_are_refused_before_anything_happens() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        let short = [0; BLOCK_BYTES - 1];
        let block = NewBlock { hash: BlockHash::new([1; 32]), depth: 0, bytes: [&short[..]] };
        let expected =
            SessionError::Length { index: 0, parts_bytes: 4999, block_bytes: BLOCK_BYTES as u64 };
        assert_eq!(a.publish(&[block]), Err(expected));
        assert_eq!(pair.caches[0].heap_use(pair.clock).blocks, 0);

        assert_eq!(publish(&a, 1..=1).published(), 1);
        let found = b.lookup(&hashes([1])).unwrap();
        let error = b.fetch(found.blocks(), vec![]).unwrap_err();
        assert_eq!(error, SessionError::Destinations { blocks: 1, destinations: 0 });
        let mut short = short;
        assert_eq!(b.fetch(found.blocks(), vec![vec![&mut short]]), Err(expected));
        assert_eq!(fetch(&b, 1..=1).valid_blocks(), 1);
    });
}

#[test]
fn a_full_pool_makes_room_for_what_is_new() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        // Three quarters of 32 descriptors: a batch does not make room for itself.
        let report = publish(&a, 1..=40);
        let refused = report.outcomes().iter().filter(|outcome| {
            matches!(outcome, PublishOutcome::Refused(kv_cache::Refusal::SegmentFull { .. }))
        });
        assert_eq!((report.published(), refused.count()), (24, 16));
        assert_eq!(fetch(&b, 1..=40).valid_blocks(), 24);
        for number in 41..=200 {
            assert_eq!(publish(&a, [number]).published(), 1);
        }
        assert_eq!((a.metrics().refused, a.metrics().evicted_blocks), (16, 160));
        assert_eq!(fetch(&b, [200]).valid_blocks(), 1);
    });
}

#[test]
fn a_prefix_that_is_held_is_there_when_it_is_fetched() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=5).published(), 5);
        let found = b.lookup(&hashes(1..=5)).unwrap();
        pair.caches[0].retire(pair.clock, &[found.blocks()[3].handle]);
        let held = b.hold(found.blocks()).unwrap();
        let stop = kv_cache::HoldError::Miss(Miss::Absent);
        assert_eq!((held.blocks(), held.stop()), (found.blocks()[..3].to_vec(), Some(stop)));
        for number in 10..=100 {
            assert_eq!(publish(&a, [number]).published(), 1);
        }
        assert_eq!(handle(&b, 5), None, "what is behind the gap is not held");
        assert_eq!(fetch(&b, 1..=3).valid_blocks(), 3);
        b.release(held);
        for number in 101..=200 {
            assert_eq!(publish(&a, [number]).published(), 1);
        }
        assert_eq!(fetch(&b, 1..=3).valid_blocks(), 0);
        // A hold of another length ends by itself.
        let short = pair.session(1, options().with_hold(Duration::from_millis(1)));
        let held = short.hold(short.lookup(&hashes([200])).unwrap().blocks()).unwrap();
        assert_eq!((held.blocks().len(), held.stop()), (1, None));
    });
}

/// The other hosts declare node 1 dead, and it hears of it.
fn lose_membership(pair: &Pair<'_, '_>) {
    let manage = pair.clock.manage.borrow();
    let mut deaths = Deaths::watch(&manage, &pair.clock.clock, SUSPECT_MS);
    for now_ms in (0..4 * SUSPECT_MS).step_by(10) {
        deaths.step(now_ms, true, &mut NoFence);
    }
    pair.clock.members[1].beat();
}

#[test]
fn every_call_of_a_process_whose_node_was_declared_dead_says_so() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=5).published(), 5);
        let found = b.lookup(&hashes(1..=5)).unwrap();
        let before = b.metrics();
        assert_eq!((before.lost(), before.membership_lost), (None, 0));
        lose_membership(pair);

        let lost = MembershipLost { node: NodeId(1), cause: LossCause::DeclaredDead };
        let error = SessionError::MembershipLost(lost);
        assert_eq!(b.lookup(&hashes(1..=5)).unwrap_err(), error);
        assert_eq!(b.lookup_and_hold(&hashes(1..=5)).unwrap_err(), error);
        assert_eq!(b.hold(found.blocks()).unwrap_err(), error);
        let mut buffer = vec![0; BLOCK_BYTES];
        let fetched = b.fetch(&found.blocks()[..1], vec![vec![&mut buffer[..]]]);
        assert_eq!(fetched.unwrap_err(), error);
        let bytes = content(9);
        let block = NewBlock { hash: BlockHash::new([9; 32]), depth: 0, bytes: [&bytes[..]] };
        assert_eq!(b.publish(&[block]).unwrap_err(), error);

        let after = b.metrics();
        assert_eq!((after.lost(), after.membership_lost), (Some(lost), 1));
        assert_eq!(after.lookup_hits, before.lookup_hits, "hits that nobody got");
        assert_eq!(after.refused_holds, before.refused_holds);
        // The other host continues.
        assert_eq!(fetch(&a, 1..=5).valid_blocks(), 5);
    });
}

#[test]
fn counted_as_hits_are_the_blocks_that_the_caller_got() {
    on_two_hosts(|pair| {
        let [a, b] = pair.sessions();
        assert_eq!(publish(&a, 1..=5).published(), 5);
        assert_eq!(b.lookup(&hashes(1..=5)).unwrap().blocks().len(), 5);
        // What the process knows already finds it, and it cannot be held.
        damage_descriptor(pair, 4);
        let before = b.metrics();
        let held = b.lookup_and_hold(&hashes(1..=5)).unwrap();
        let after = b.metrics();
        assert_eq!(held.blocks().len(), 3);
        assert_eq!(after.lookup_blocks - before.lookup_blocks, 5);
        assert_eq!(after.lookup_hits - before.lookup_hits, 3);
    });
}
