//! The prefix index on memory of this machine: lookups, publishing without payload, attaching, and
//! what the replica takes, over the size of the pool and the number of nodes.
//!
//! `cargo bench -p rackline-benches --bench prefix_index`. The criterion groups watch each
//! operation over time; the table at the end gives microseconds, and ratios to one refreshed line
//! in the same run.

use std::error::Error;
use std::time::Duration;

use criterion::Criterion;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::{Fabric, MappedFabric, MappedHostMemory, Mapping, ReadBack};
use cxl_shm::host::{HostIdentity, HostTier, ProcLiveness, ProcessIdentity};
use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::lifecycle::LocalMember;
use cxl_shm::node::{MappedBackend, Member};
use cxl_shm::units::{LineOffset, LineRange};
use kv_cache::{
    BlockHash, BlockKey, BlockSpec, Cache, CacheGeometry, KeySpace, Model, Namespace, Reservation,
};
use rackline_benches::median;

type LocalCache<'p> = Cache<'p, MappedBackend>;

/// Blocks of a prefix.
const PREFIX: usize = 256;
/// The least that a payload takes: payload is not written here, so that none of it needs memory.
const BLOCK_BYTES: u64 = 4096;
const CHUNK_BYTES: u64 = 64 << 20;
const TIMEOUT_MS: u64 = 5000;
const ROUNDS: usize = 101;
/// Blocks in the pool, and nodes that published them.
const POOLS: [(usize, u16); 6] =
    [(1_000, 2), (10_000, 2), (100_000, 2), (1_000_000, 2), (1_000_000, 8), (100_000, 16)];

/// A sparse region with a process of each node.
struct Rack {
    members: Vec<LocalMember>,
    clock: SystemClock,
    keys: KeySpace,
}

impl Rack {
    fn new(blocks: usize, nodes: u16) -> Result<Self, Box<dyn Error>> {
        // With what the rounds publish, in the worst case all of it one node.
        let share = (blocks / usize::from(nodes) + 2 * ROUNDS * PREFIX) as u64;
        let slots = u32::try_from((share * 3 / 2).next_power_of_two())?;
        // What a reader may be behind: everything that a batch publishes, many times over.
        let cache = CacheGeometry::new(slots, 1 << 14)?;
        let chunks = (share * BLOCK_BYTES).div_ceil(CHUNK_BYTES) + 1;
        let mut geometry = Geometry {
            region_bytes: u64::from(nodes) * chunks * CHUNK_BYTES,
            nodes,
            locks: 8,
            chunk_bytes: CHUNK_BYTES,
            area_lines: cache.area_lines(nodes),
            host_words: 0,
        };
        geometry.region_bytes += (u64::from(nodes) * geometry.area_lines * 64 + (64 << 20))
            .next_multiple_of(CHUNK_BYTES);
        geometry.host_words = u64::try_from(cache.host_words(&Layout::new(geometry)?))?;
        // As a process that attaches to a file on one machine has it.
        let fabric = MappedFabric::new(mapping(geometry.region_bytes)?)?;
        let fabric = fabric.with_read_back(ReadBack::NotNeeded);
        let superblock = Superblock {
            lock_protocol: LockProtocol::Bakery,
            ..Superblock::new([1, 2], geometry, cache.encode())
        };
        let layout = format_superblock(&fabric, &superblock, |_, _| ())?;
        // As on a device: no page fault is measured. Payload is not written and needs no memory.
        fabric.mapping().prefault(layout.metadata())?;
        let clock = SystemClock::start();
        let join = |node: u16| -> Result<LocalMember, Box<dyn Error>> {
            let tier = mapping(HostTier::words_of(&geometry) as u64 * 8)?;
            let identity = HostIdentity::simulated(u64::from(node));
            let me = ProcessIdentity::current()?;
            let memory = MappedHostMemory::new(tier);
            Ok(Member::join(fabric.clone(), memory, node, &identity, me, ProcLiveness, &clock)?)
        };
        let members = (0..nodes).map(join).collect::<Result<_, _>>()?;
        let fingerprint = Model {
            name: "index",
            revision: "1",
            dtype: "u8",
            layout_version: 1,
            block_tokens: 1,
            tensor_parallel_rank: 0,
            tensor_parallel_size: 1,
            layers: 1,
            kv_heads: 1,
            head_dim: 4096,
        }
        .fingerprint();
        let keys = KeySpace::new(fingerprint, Namespace::default(), BLOCK_BYTES);
        Ok(Self { members, clock, keys })
    }

    fn caches(&self) -> Result<Vec<LocalCache<'_>>, kv_cache::AttachError> {
        self.members.iter().map(|member| Cache::attach(member, &self.clock)).collect()
    }

    fn hashes(&self, first: usize, count: usize) -> Vec<BlockHash> {
        let hash = |number: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
            BlockHash::new(bytes)
        };
        (first..first + count).map(hash).collect()
    }

    fn keys(&self, first: usize, count: usize) -> Vec<BlockKey> {
        self.hashes(first, count).iter().map(|hash| self.keys.key(hash)).collect()
    }

    /// Publishes blocks, without payload.
    fn publish(&self, cache: &LocalCache<'_>, keys: &[BlockKey]) {
        let spec =
            |(depth, key): (u32, &BlockKey)| BlockSpec { key: *key, bytes: BLOCK_BYTES, depth };
        let specs: Vec<_> = (0..).zip(keys).map(spec).collect();
        let reserved = cache.reserve(&self.clock, &specs, TIMEOUT_MS);
        let writing: Vec<_> = reserved
            .into_iter()
            .map(|reservation| match reservation {
                Reservation::Writing(block) => (block, 0),
                other => panic!("a block was not reserved: {other:?}"),
            })
            .collect();
        assert!(cache.commit(&self.clock, writing).iter().all(Result::is_ok), "all are complete");
    }

    /// The least that a look at another host's line costs.
    fn refresh_line(&self) {
        let line = LineOffset::new(4096).map(LineRange::one);
        line.into_iter().for_each(|line| self.members[0].fabric().refresh(line));
    }
}

fn mapping(bytes: u64) -> Result<Mapping, Box<dyn Error>> {
    let file = tempfile::tempfile_in("/dev/shm")?;
    file.set_len(bytes)?;
    Ok(Mapping::shared(&file, bytes)?)
}

/// Median microseconds of `work`, after `prepare`.
fn median_us(mut prepare: impl FnMut(usize), mut work: impl FnMut(usize)) -> f64 {
    let one = |round| {
        prepare(round);
        let clock = SystemClock::start();
        work(round);
        clock.now_ns() as f64 / 1e3
    };
    median((0..ROUNDS).map(one).collect::<Vec<_>>())
}

/// What one pool shows.
struct Figures {
    attach_ms: f64,
    replica_bytes: f64,
    refresh_us: f64,
    derive_us: f64,
    lookup_us: f64,
    lookup_new_us: f64,
    publish_us: f64,
}

fn measure(blocks: usize, nodes: u16) -> Result<Figures, Box<dyn Error>> {
    let rack = Rack::new(blocks, nodes)?;
    let caches = rack.caches()?;
    let share = blocks / usize::from(nodes);
    for (node, cache) in caches.iter().enumerate() {
        for first in (0..share).step_by(1000) {
            let count = (share - first).min(1000);
            rack.publish(cache, &rack.keys(node * share + first, count));
        }
    }
    let reader = &rack.members[0];
    let clock = SystemClock::start();
    let cache = Cache::attach(reader, &rack.clock)?;
    let attach_ms = clock.now_us() as f64 / 1e3;
    let metrics = cache.process_state().metrics();
    let replica_bytes = metrics.replica_bytes as f64 / metrics.replica_blocks as f64;

    let hashes = rack.hashes(0, PREFIX);
    let keys = rack.keys(0, PREFIX);
    let look = |keys: &[BlockKey]| {
        assert_eq!(cache.lookup(keys).blocks().len(), PREFIX, "all are there");
    };
    let refresh_us = median_us(|_| (), |_| rack.refresh_line());
    let derive_us = median_us(
        |_| (),
        |_| {
            let keys: Vec<_> = hashes.iter().map(|hash| rack.keys.key(hash)).collect();
            std::hint::black_box(keys);
        },
    );
    let lookup_us = median_us(|_| (), |_| look(&keys));
    let new = |round: usize| rack.keys(blocks + round * PREFIX, PREFIX);
    let writer = &caches[1];
    let lookup_new_us = {
        let batches: Vec<_> = (0..ROUNDS).map(new).collect();
        median_us(|round| rack.publish(writer, &batches[round]), |round| look(&batches[round]))
    };
    let publish_us = {
        let batches: Vec<_> = (ROUNDS..2 * ROUNDS).map(new).collect();
        let last = &caches[usize::from(nodes) - 1];
        median_us(|_| (), |round| rack.publish(last, &batches[round]))
    };
    Ok(Figures {
        attach_ms,
        replica_bytes,
        refresh_us,
        derive_us,
        lookup_us,
        lookup_new_us,
        publish_us,
    })
}

fn print_table() -> Result<(), Box<dyn Error>> {
    println!(
        "\nprefix index: medians of {ROUNDS} rounds, {PREFIX} blocks each; us, and in brackets \
         multiples of one refreshed line"
    );
    println!(
        "| blocks | nodes | attach, ms | replica, B a block | derive keys | lookup | lookup, all new \
         | publish |\n|---|---|---|---|---|---|---|---|"
    );
    for (blocks, nodes) in POOLS {
        let figures = measure(blocks, nodes)?;
        let cell = |us: f64| format!("{us:.1} ({:.0})", us / figures.refresh_us);
        println!(
            "| {blocks} | {nodes} | {:.0} | {:.1} | {} | {} | {} | {} |",
            figures.attach_ms,
            figures.replica_bytes,
            cell(figures.derive_us),
            cell(figures.lookup_us),
            cell(figures.lookup_new_us),
            cell(figures.publish_us),
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    let rack = Rack::new(10_000, 2)?;
    let caches = rack.caches()?;
    let keys = rack.keys(0, PREFIX);
    rack.publish(&caches[0], &keys);
    let mut group = criterion.benchmark_group("prefix_index");
    group.sample_size(20).measurement_time(Duration::from_millis(500));
    group.bench_function("lookup_256", |bencher| bencher.iter(|| caches[1].lookup(&keys)));
    // The difference is what a call pays to count the lines that it moved.
    group.bench_function("line", |bencher| bencher.iter(|| rack.refresh_line()));
    group.bench_function("line, counted", |bencher| {
        bencher.iter(|| {
            rack.refresh_line();
            rack.members[0].count_moved_lines();
        });
    });
    group.finish();
    criterion.final_summary();
    // Under `cargo test` everything has now run once, which is all that is wanted.
    if std::env::args().any(|argument| argument == "--bench") {
        print_table()?;
    }
    Ok(())
}
