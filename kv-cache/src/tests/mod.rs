//! The cache on a simulated rack of two or three hosts, driven by one thread.

mod aged;
mod audit;
mod clear;
mod damage;
mod directives;
mod drain;
mod drives;
mod elsewhere;
mod evict;
mod exchange;
mod failed_memory;
mod figures;
mod foreign;
mod give_back;
mod gone;
mod histories;
mod hold;
mod hold_many;
mod hold_prompt;
mod lag;
mod mutation;
mod order;
mod orphan;
mod orphan_choice;
mod own;
mod pin;
mod places;
mod pressure;
mod reader;
mod reclaimer_words;
mod recovery;
mod rejoin;
mod room;
mod schedule;
mod searches;
mod shares;
mod stray;
mod surplus;
mod tables;
mod torn;
mod undecided;
mod undecided_by_the_dead;
mod unpublished;
mod uses;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crc_fast::CrcAlgorithm;
use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::host::{HostIdentity, HostTier, Liveness, ProcessIdentity};
use cxl_shm::layout::{Geometry, Layout, Superblock, format_superblock};
use cxl_shm::lifecycle::LeaveOutcome;
use cxl_shm::lock::Manage;
use cxl_shm::node::Member;
use cxl_shm::units::{Extent, LineRange};
use cxl_shm::verify::SimulatedBackend;
use cxl_shm::verify::simulated::{DmaCache, SimulatedClock, SimulatedHostMemory, SimulatedRack};

use crate::format::Areas;
use crate::format::DescriptorLine;
use crate::{
    BlockHash, BlockSpec, BlockState, Cache, CacheGeometry, CommitError, Descriptor, HOLD_MS,
    Handle, HeldBlock, HoldError, KeySpace, Miss, ModelFingerprint, Namespace, Reservation,
    SlotContent, Ticket, Wanted, WritingBlock,
};

const LOCKS: u32 = 8;
const REGION_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: u64 = 64 << 10;
/// Two pages a slot, eight slots a chunk.
const BLOCK_BYTES: u64 = 5000;
const MODEL: ModelFingerprint = ModelFingerprint(7);
const CHUNK_TIMEOUT_MS: u64 = 1000;

type TestMember = Member<SimulatedBackend<Deaths>>;
type TestCache<'m> = Cache<'m, SimulatedBackend<Deaths>>;

/// Who has died.
#[derive(Clone, Debug, Default)]
struct Deaths(Arc<Mutex<HashSet<ProcessIdentity>>>);

impl Liveness for Deaths {
    fn is_alive(&self, process: ProcessIdentity) -> bool {
        !self.0.lock().unwrap().contains(&process)
    }
}

/// A formatted rack.
struct Rig {
    rack: SimulatedRack,
    geometry: Geometry,
    deaths: Deaths,
    started: Cell<u32>,
}

impl Rig {
    fn new(nodes: u16, slots: u32, log_entries: u32) -> Self {
        let rack = SimulatedRack::sticky(usize::from(nodes), REGION_BYTES);
        Self::on(rack, nodes, slots, log_entries)
    }

    fn on(rack: SimulatedRack, nodes: u16, slots: u32, log_entries: u32) -> Self {
        Self::sized(rack, REGION_BYTES, nodes, slots, log_entries)
    }

    fn sized(
        rack: SimulatedRack,
        region_bytes: u64,
        nodes: u16,
        slots: u32,
        log_entries: u32,
    ) -> Self {
        Self::formatted(rack, region_bytes, nodes, CacheGeometry::new(slots, log_entries).unwrap())
    }

    /// One whose nodes are expected to use `share` of their descriptors.
    fn shared(rack: SimulatedRack, nodes: u16, slots: u32, share: u32, log_entries: u32) -> Self {
        let cache = CacheGeometry::new(slots, log_entries).unwrap().with_share(share).unwrap();
        Self::formatted(rack, REGION_BYTES, nodes, cache)
    }

    fn formatted(rack: SimulatedRack, region_bytes: u64, nodes: u16, cache: CacheGeometry) -> Self {
        let geometry = Geometry {
            region_bytes,
            nodes,
            locks: LOCKS,
            chunk_bytes: CHUNK_BYTES,
            area_lines: cache.area_lines(nodes),
            host_words: 0,
        };
        let layout = Layout::new(geometry).unwrap();
        let geometry = Geometry { host_words: cache.host_words(&layout) as u64, ..geometry };
        let superblock = Superblock::new([1, 2], geometry, cache.encode());
        format_superblock(&rack.host(0), &superblock, |_, _| ()).unwrap();
        Self { rack, geometry, deaths: Deaths::default(), started: Cell::new(0) }
    }

    /// Starts a process on host `host`, as a member of node `host`.
    fn join(&self, host: u16) -> TestMember {
        let pid = self.started.get() + 1;
        self.started.set(pid);
        let index = usize::from(host);
        let fabric = self.rack.host(index);
        let words = HostTier::words_of(&self.geometry);
        Member::join(
            fabric,
            self.rack.host_memory(index, words),
            host,
            &HostIdentity::simulated(u64::from(host)),
            ProcessIdentity::new(pid, 1),
            self.deaths.clone(),
            &self.rack.clock(index),
        )
        .unwrap()
    }

    /// Lets all nodes begin as if they had worked for long: `head` entries were announced by each,
    /// each descriptor slot has had `generation` blocks, and each reader word nearly as many holds
    /// as it can number.
    fn age(&self, head: u64, generation: u32) {
        for node in 0..self.geometry.nodes {
            let member = self.join(node);
            let (fabric, layout) = (member.fabric(), *member.layout());
            let application = member.superblock().application;
            let region = layout.geometry();
            let geometry =
                CacheGeometry::decode(application, region.nodes, region.area_lines).unwrap();
            let areas = Areas::new(layout, geometry);
            member.area().word(0).unwrap().publish(fabric, head);
            let (segment, reader_words) = (
                areas.own_segment(member.node(), member.area()),
                areas.own_reader_words(member.area()),
            );
            let tombstone = DescriptorLine::free(member.node(), generation, false);
            for slot in 0..geometry.descriptor_slots() {
                segment.line(slot).publish(fabric, &tombstone);
                for owner in layout.nodes() {
                    reader_words.word(owner, slot).publish(fabric, 0xfffe << 32);
                }
            }
            member.leave();
        }
    }

    /// The process of `member` dies, whatever it holds.
    fn kill(&self, member: &TestMember) {
        let (_, identity) =
            member.processes().into_iter().find(|(slot, _)| *slot == member.process()).unwrap();
        self.deaths.0.lock().unwrap().insert(identity);
    }

    /// A clock on which `members` live on while somebody waits, the first as lock manager.
    fn serve<'m>(&self, members: &[&'m TestMember]) -> ServingClock<'m> {
        let mut manage = members[0].manage().unwrap();
        manage.claim().unwrap();
        let clock = self.rack.clock(usize::from(members[0].node().0));
        ServingClock { members: members.to_vec(), manage: RefCell::new(manage), clock }
    }
}

struct ServingClock<'m> {
    members: Vec<&'m TestMember>,
    manage: RefCell<Manage<'m, SimulatedBackend<Deaths>>>,
    clock: SimulatedClock,
}

impl Clock for ServingClock<'_> {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn pause(&self, tries: u32) {
        self.clock.pause(tries);
        for member in &self.members {
            member.beat();
        }
        self.manage.borrow_mut().poll();
    }
}

/// Two hosts, a process each, and the lock manager.
fn on_two_hosts(rig: &Rig, test: impl FnOnce(&TestCache<'_>, &TestCache<'_>, &ServingClock<'_>)) {
    let (first, second) = (rig.join(0), rig.join(1));
    let clock = rig.serve(&[&first, &second]);
    let a = Cache::attach(&first, &clock).unwrap();
    let b = Cache::attach(&second, &clock).unwrap();
    test(&a, &b, &clock);
    assert_eq!(rig.rack.conflicts(), [], "a line with two writing hosts (MEM-M1)");
}

fn key(number: u8) -> crate::BlockKey {
    KeySpace::new(MODEL, Namespace::default(), BLOCK_BYTES).key(&BlockHash::new([number; 32]))
}

fn content(number: u8) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|at| number.wrapping_mul(31).wrapping_add(at.to_le_bytes()[0])).collect()
}

fn spec(number: u8) -> BlockSpec {
    BlockSpec { key: key(number), bytes: BLOCK_BYTES, depth: 0 }
}

fn checksum(bytes: &[u8]) -> u32 {
    u32::try_from(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes)).unwrap()
}

/// What a DMA engine does for the writer.
fn store(cache: &TestCache<'_>, payload: Extent, bytes: &[u8]) {
    let host = cache.member().fabric();
    host.dma_write(payload, bytes, DmaCache::Allocate);
    host.publish(LineRange::covering(payload));
}

/// What a DMA engine does for the reader.
fn load(cache: &TestCache<'_>, payload: Extent) -> Vec<u8> {
    let host = cache.member().fabric();
    host.refresh(LineRange::covering(payload));
    let mut bytes = vec![0; usize::try_from(payload.bytes()).unwrap()];
    host.dma_read(payload, &mut bytes, DmaCache::Allocate);
    bytes
}

fn reserve(cache: &TestCache<'_>, clock: &impl Clock, number: u8) -> WritingBlock {
    match cache.reserve(clock, &[spec(number)], CHUNK_TIMEOUT_MS).remove(0) {
        Reservation::Writing(block) => block,
        other => panic!("block {number}: {other:?}"),
    }
}

fn publish(cache: &TestCache<'_>, clock: &impl Clock, number: u8) -> Handle {
    let block = reserve(cache, clock, number);
    let bytes = content(number);
    store(cache, block.payload(), &bytes);
    let ready = cache.commit(clock, vec![(block, checksum(&bytes))]).remove(0).unwrap();
    assert_eq!(ready.key, key(number));
    ready.handle
}

/// Writes a descriptor of this node as `change` makes it, past all rules.
fn rewrite(cache: &TestCache<'_>, handle: Handle, change: impl FnOnce(Descriptor) -> Descriptor) {
    let member = cache.member();
    let areas = Areas::new(*member.layout(), cache.geometry());
    let own = areas.own_segment(member.node(), member.area());
    let Ok(SlotContent::Block(block)) = own.own(member.fabric(), handle.slot()) else {
        panic!("there is no block in slot {}", handle.slot());
    };
    let line = DescriptorLine::block(&change(block));
    own.line(handle.slot()).publish(member.fabric(), &line);
}

fn find(cache: &TestCache<'_>, number: u8) -> Option<Handle> {
    cache.lookup(&[key(number)]).blocks().first().map(|block| block.handle)
}

fn wanted(number: u8, handle: Handle) -> Wanted {
    Wanted { handle, key: key(number), bytes: BLOCK_BYTES }
}

fn hold(cache: &TestCache<'_>, clock: &impl Clock, number: u8) -> Result<HeldBlock, HoldError> {
    let handle = find(cache, number).unwrap();
    cache.hold(clock, &[wanted(number, handle)], HOLD_MS).remove(0)
}

fn open(cache: &TestCache<'_>, number: u8, handle: Handle) -> Result<Ticket, Miss> {
    cache.open(&[wanted(number, handle)]).remove(0)
}

/// Fetches what a lookup found, and checks that a hit has the right bytes.
fn fetch(cache: &TestCache<'_>, number: u8, handle: Handle) -> Result<(), Miss> {
    let ticket = open(cache, number, handle)?;
    let bytes = load(cache, ticket.payload());
    let found = checksum(&bytes);
    cache.close(&[(ticket, Some(found))]).remove(0)?;
    assert_eq!(bytes, content(number), "block {number}");
    Ok(())
}

fn find_and_fetch(cache: &TestCache<'_>, number: u8) -> bool {
    find(cache, number).is_some_and(|handle| fetch(cache, number, handle).is_ok())
}
