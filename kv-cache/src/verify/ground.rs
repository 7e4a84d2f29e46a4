//! A rack with one block on it: where the models of holds start.

use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory, LineWords};
use cxl_shm::host::{HostIdentity, HostTier, Liveness, ProcessIdentity};
use cxl_shm::layout::{Geometry, Layout, LockProtocol, NodeState, Superblock, format_superblock};
use cxl_shm::node::{Backend, Member};
use cxl_shm::units::{Extent, LINE_BYTES, LINE_WORDS, LineOffset, LineRange};
use cxl_shm::verify::explored::{Constant, ExploredFabric, ExploredHostMemory, Model, Task, World};
use cxl_shm::verify::simulated::SimulatedRack;
use cxl_shm::verify::{ExploredBackend, SimulatedBackend};

use crate::format::Areas;
use crate::format::ReaderWord;
use crate::heap::LockedHeap;
use crate::{
    BlockHash, BlockKey, BlockSpec, Cache, CacheGeometry, DescriptorError, DriveGeometry, Handle,
    KeySpace, ModelFingerprint, Namespace, Reservation, SlotContent, Wanted, WritingBlock,
};

const REGION_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: u64 = 64 << 10;
const MODEL: ModelFingerprint = ModelFingerprint(7);
/// Long enough for everything on a rack on which nobody else does anything.
const CHUNK_TIMEOUT_MS: u64 = 1000;

/// Whose block it is.
pub(super) const OWNER: u16 = 0;
/// Who holds it.
pub(super) const READER: u16 = 1;
/// Who looks after what the first left.
pub(super) const RECLAIMER: u16 = 2;
/// Processes of each host: one, and one that continues after it.
const PROCESSES: u32 = 2;

/// Who lives in a model: everybody, or everybody but the process that the one who asks comes after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lives {
    Everybody,
    NotTheFirst,
}

impl Liveness for Lives {
    fn is_alive(&self, process: ProcessIdentity) -> bool {
        *self == Self::Everybody || !process.pid().is_multiple_of(PROCESSES)
    }
}

/// A member in a model.
pub(super) type ModelMember = Member<ExploredBackend<Lives>>;
/// The cache through it, made anew for each step: what a process knows by itself is a hint.
pub(super) type ModelCache<'m> = Cache<'m, ExploredBackend<Lives>>;

/// A process as a task has it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Process(Constant<(ModelMember, Areas)>);

impl Process {
    pub(super) fn cache(&self) -> ModelCache<'_> {
        let (member, areas) = &*self.0;
        Cache::carried(member, *areas)
    }
}

/// Time stands still in a model, and no process waits in it: a process that has to looks again in
/// its next step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StillClock(World);

impl StillClock {
    pub(super) fn of(world: World) -> Self {
        Self(world)
    }
}

impl Clock for StillClock {
    fn now_ms(&self) -> u64 {
        0
    }

    fn pause(&self, _: u32) {
        self.0.refute("a step waits for another of its host, which has none");
    }
}

type RackMember = Member<SimulatedBackend<Lives>>;

/// The rack: some hosts with two processes each, and a block of the first.
pub(super) struct Ground {
    hosts: u16,
    rack: SimulatedRack,
    layout: Layout,
    areas: Areas,
    words: usize,
    members: Vec<RackMember>,
    handle: Handle,
}

impl Ground {
    pub(super) fn with_a_block() -> Self {
        Self::of_hosts(2)
    }

    /// As [`with_a_block`](Self::with_a_block), of more hosts than two.
    pub(super) fn of_hosts(hosts: u16) -> Self {
        Self::formatted(hosts, None)
    }

    /// As [`with_a_block`](Self::with_a_block), with room for what hosts say of drives: a ring of
    /// one request.
    pub(super) fn with_drives() -> Self {
        Self::formatted(2, Some(DriveGeometry::new(2, 8, 1).expect("the smallest there is")))
    }

    fn formatted(hosts: u16, drives: Option<DriveGeometry>) -> Self {
        let rack = SimulatedRack::sticky(usize::from(hosts), REGION_BYTES);
        let cache = CacheGeometry::new(8, 8).expect("the smallest there is").with_drives(drives);
        let mut geometry = Geometry {
            region_bytes: REGION_BYTES,
            nodes: hosts,
            locks: 8,
            chunk_bytes: CHUNK_BYTES,
            area_lines: cache.area_lines(hosts),
            host_words: 0,
        };
        let layout = Layout::new(geometry).expect("1 MiB holds three nodes");
        geometry.host_words = cache.host_words(&layout) as u64;
        let layout = Layout::new(geometry).expect("a host tier is no part of the region");
        let superblock = Superblock {
            lock_protocol: LockProtocol::Bakery,
            ..Superblock::new([1, 2], geometry, cache.encode())
        };
        format_superblock(&rack.host(0), &superblock, |_, _| ()).expect("the region fits");
        let words = HostTier::words_of(&geometry);
        let join = |host: u16, process: u32| {
            let index = usize::from(host);
            let identity = ProcessIdentity::new(u32::from(host) * 8 + PROCESSES + process, 1);
            Member::join(
                rack.host(index),
                rack.host_memory(index, words),
                host,
                &HostIdentity::simulated(u64::from(host)),
                identity,
                Lives::Everybody,
                &rack.clock(index),
            )
            .unwrap_or_else(|error| panic!("{error}"))
        };
        let processes = (0..hosts).flat_map(|host| [(host, 0), (host, 1)]);
        let members: Vec<_> = processes.map(|(host, process)| join(host, process)).collect();
        for member in &members {
            let clock = rack.clock(member.node().index());
            Cache::attach(member, &clock).unwrap_or_else(|error| panic!("{error}"));
        }
        let clock = rack.clock(0);
        let owner = Cache::attach(&members[0], &clock).unwrap_or_else(|error| panic!("{error}"));
        let handle = publish(&owner, &clock, 1).expect("the rack is empty");
        drop(owner);
        Self { hosts, rack, layout, areas: Areas::new(layout, cache), words, members, handle }
    }

    /// The block, as its reader wants it.
    pub(super) fn wanted(&self) -> Wanted {
        Wanted { handle: self.handle, key: key(1), bytes: BLOCK_BYTES }
    }

    /// The owner died, or left, over the block: its slot is vacant, and the block says EVICTING.
    pub(super) fn leave_over_the_block(&self) {
        let clock = self.rack.clock(usize::from(OWNER));
        let owner = &self.members[0];
        let cache = Cache::attach(owner, &clock).unwrap_or_else(|error| panic!("{error}"));
        cache.locked(&clock, |heap| heap.writer().announce(heap.ready(&[self.handle.slot()])));
        drop(cache);
        owner.say(NodeState::Left);
    }

    /// A process of a host in the model: its first, or the one that comes after that.
    pub(super) fn process(&self, host: u16, comes_after: bool) -> Process {
        let place = usize::from(host) * PROCESSES as usize + usize::from(comes_after);
        let memory = ExploredHostMemory::with_words(self.words);
        let lives = if comes_after { Lives::NotTheFirst } else { Lives::Everybody };
        let member =
            self.members[place].carried_to(ExploredFabric::of_present_step(), memory, lives);
        Process(Constant::new((member, self.areas)))
    }

    /// A model that starts from what the rack holds now, with cold caches.
    pub(super) fn model<T: Task>(&self) -> Model<T> {
        let mut model = Model::new(usize::from(self.hosts), REGION_BYTES);
        let all = Extent::new(0, REGION_BYTES).expect("a region is not empty");
        for at in LineRange::covering(all).iter() {
            let words: LineWords = std::array::from_fn(|index| {
                at.word(index).map_or(0, |word| self.rack.device_word(word))
            });
            if words != [0; LINE_WORDS] {
                model.lines.push((at, words));
            }
        }
        for host in (0..self.hosts).map(usize::from) {
            let memory = self.rack.host_memory(host, self.words);
            for index in 0..self.words {
                let value = memory.load(index);
                if value != 0 {
                    model.own_words.push((host, index, value));
                }
            }
        }
        let layout = &self.layout;
        for node in layout.nodes() {
            // Nobody sends heartbeats.
            model.left_out.push(layout.heartbeat(node).range());
            model.left_out.push(layout.manager_heartbeat(node).range());
            let mut name = |lines, name: String| model.names.push((lines, name));
            name(
                self.areas
                    .segment_of(Handle::new(node, 0, 0))
                    .map_or_else(|| layout.area(node).range(), |segment| segment.all()),
                format!("descriptors {node}"),
            );
            name(layout.area(node).range(), format!("area {node}"));
            name(layout.node_line(node).range(), format!("node line {node}"));
        }
        model.names.push((layout.chunk_table(), "chunk table".to_owned()));
        model.names.push((LineRange::covering(layout.payload()), "payload".to_owned()));
        model
    }
}

pub(super) fn key(number: u8) -> BlockKey {
    KeySpace::new(MODEL, Namespace::default(), BLOCK_BYTES).key(&BlockHash::new([number; 32]))
}

/// Length of a block.
const BLOCK_BYTES: u64 = 2 * LINE_BYTES;

/// Publishes block `number`; `None` when it is not available.
pub(super) fn publish<B: Backend>(
    cache: &Cache<'_, B>,
    clock: &impl Clock,
    number: u8,
) -> Option<Handle> {
    let spec = BlockSpec { key: key(number), bytes: BLOCK_BYTES, depth: 0 };
    let reserved = cache.reserve(clock, &[spec], CHUNK_TIMEOUT_MS).pop();
    let Some(Reservation::Writing(block)) = reserved else { return None };
    let lines = payload_lines(&block);
    for line in lines.iter() {
        cache.member().fabric().write_line(line, &content(number));
    }
    cache.member().fabric().publish(lines);
    let ready = cache.commit(clock, vec![(block, 0)]).pop()?;
    ready.ok().map(|ready| ready.handle)
}

fn payload_lines(block: &WritingBlock) -> LineRange {
    LineRange::covering(block.payload())
}

/// What is in each line of block `number`.
pub(super) fn content(number: u8) -> LineWords {
    [u64::from(number), 0, 0, 0, 0, 0, 0, 0]
}

/// The first word of a line.
pub(super) fn first_word(fabric: &impl Fabric, line: LineOffset) -> u64 {
    line.word(0).map_or(0, |word| fabric.load(word))
}

impl<B: Backend> LockedHeap<'_, B> {
    /// What this host says of a block that it may hold.
    pub(super) fn reader_word_of(&self, handle: Handle) -> ReaderWord {
        self.reader_words.own(self.fabric(), handle.owner(), handle.slot())
    }

    /// What this host last wrote to one of its slots.
    pub(super) fn content_of(&self, slot: u32) -> Result<SlotContent, DescriptorError> {
        self.segment.own(self.fabric(), slot)
    }
}
