//! A host that writes nonsense into the metadata of a region: what reads it must not panic, hang,
//! read outside, or take a wrong byte for a right one.

use cxl_shm_objects::LockTable;
use cxl_shm_objects::NamedRoots;
use cxl_shm_objects::Objects;
use std::time::Duration;

use cxl_shm::clock::Clock;
use cxl_shm::fabric::Fabric;
use cxl_shm::layout::{Geometry, Layout};
use cxl_shm::lifecycle::NoFence;
use cxl_shm::units::{LINE_BYTES, LineRange, LockId, PAGE_BYTES, WORD_BYTES, WordOffset};
use cxl_shm::verify::simulated::{DmaCache, Faults, Random, Schedule, Settings};
use cxl_shm_objects::RootKind;
use kv_cache::{BlockHash, Cache, CacheGeometry, ChainHasher, Model};
use lock_manager::{ManagerRole, Timeouts};
use rackline::dma::SimulatedDma;
use rackline::session::SessionCore;
use rackline::{NewBlock, SessionOptions};

use crate::rack::{Cluster, Mutant, RackMember, lock_protocol, run};

const HOSTS: usize = 3;
const BLOCK_BYTES: usize = 200;
const BLOCKS: u32 = 6;
/// The superblock is checked whole before anything derives from it, by tests of its own.
const SUPERBLOCK_BYTES: u64 = 3 * PAGE_BYTES;

/// The geometry, and what the layer above keeps in the superblock.
fn geometry() -> (Geometry, [u64; 6]) {
    let cache = CacheGeometry::new(32, 16).unwrap_or_else(|error| panic!("{error}"));
    let geometry = Geometry {
        region_bytes: 2 << 20,
        nodes: 3,
        locks: 10,
        chunk_bytes: 64 << 10,
        area_lines: cache.area_lines(3),
        host_words: 0,
    };
    let layout = Layout::new(geometry).unwrap_or_else(|error| panic!("{error}"));
    let host_words = cache.host_words(&layout) as u64;
    (Geometry { host_words, ..geometry }, cache.encode())
}

fn payload(hash: &BlockHash) -> Vec<u8> {
    hash.as_bytes().iter().copied().cycle().take(BLOCK_BYTES).collect()
}

/// Three hosts fill a region; one of them then scribbles over its metadata; all continue working
/// with it. Errors, misses and time-outs are right answers.
///
/// # Panics
/// When anything panics, does not end, or a wrong byte is accepted.
pub fn nonsense_in_the_metadata(mutant: Mutant, seed: u64) {
    let (geometry, application) = geometry();
    let settings = Settings { seed, ..Settings::sticky(HOSTS, geometry.region_bytes) };
    let cluster = Cluster::format(settings, geometry, lock_protocol(seed), application, mutant);
    let work = |seed, steps_max| {
        let mut schedule = Schedule::builder(&cluster.rack, seed)
            .steps_max(mutant.steps_max(steps_max))
            .faults(Faults::NONE);
        for host in 0..HOSTS {
            let manager = cluster.clone();
            schedule = schedule.daemon(host, format!("manager {host}"), move |_| {
                manage(&manager, host);
            });
            let worker = cluster.clone();
            schedule = schedule.task(host, format!("worker {host}"), move || {
                if let Ok(member) = worker.try_join(host, "worker") {
                    use_everything(&worker, &member, host);
                }
            });
        }
        run(schedule);
        cluster.processes.end_all();
    };
    work(seed, 3_000_000);
    scribble(&cluster, geometry, seed);
    work(!seed, 6_000_000);
}

/// Writes words of all kinds to places of all kinds.
fn scribble(cluster: &Cluster, geometry: Geometry, seed: u64) {
    let layout = Layout::new(geometry).unwrap_or_else(|error| panic!("{error}"));
    let fabric = cluster.rack.host(2);
    let mut random = Random::new(seed);
    let metadata = LineRange::covering(layout.metadata());
    fabric.refresh(metadata);
    let words = (layout.metadata().bytes() - SUPERBLOCK_BYTES) / WORD_BYTES;
    let place = |random: &mut Random| {
        let at = SUPERBLOCK_BYTES + random.below(words) * WORD_BYTES;
        WordOffset::new(at).unwrap_or_else(|| panic!("{at} is a multiple of eight"))
    };
    // Most of the metadata is blank: half of the words go where something is.
    let written: Vec<WordOffset> = (0..words)
        .filter_map(|word| WordOffset::new(SUPERBLOCK_BYTES + word * WORD_BYTES))
        .filter(|at| fabric.load(*at) != 0)
        .collect();
    for _ in 0..1 + random.below(60) {
        let at = if random.below(2) == 0 {
            place(&mut random)
        } else {
            written[usize::try_from(random.below(written.len() as u64)).unwrap_or(0)]
        };
        let value = match random.below(7) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => random.next_u64(),
            4 => 1 << random.below(64),
            5 => fabric.load(at).wrapping_add(1),
            // What stands elsewhere: offsets, tickets, counts that make sense there.
            _ => fabric.load(place(&mut random)),
        };
        fabric.store(at, value);
        fabric.publish(LineRange::one(at.line()));
        // A whole line of elsewhere, seal and all.
        if random.below(8) == 0 {
            let (from, to) = (place(&mut random).line(), place(&mut random).line());
            let line = fabric.read_line(from);
            fabric.write_line(to, &line);
            fabric.publish(LineRange::one(to));
        }
    }
    // Nobody has anything of it in its caches, as after a restart of all hosts.
    for host in 0..HOSTS {
        cluster.rack.host(host).refresh(metadata);
    }
    assert!(metadata.lines() * LINE_BYTES < cluster.rack.bytes());
}

fn manage(cluster: &Cluster, host: usize) {
    let Ok(member) = cluster.try_join(host, "manager") else { return };
    let clock = cluster.clock(host);
    let timeouts = Timeouts { takeover_ms: 500, declare_ms: 2000 };
    let Ok(mut role) = ManagerRole::new(&member, &clock, timeouts) else { return };
    let mut tries = 0;
    loop {
        member.beat();
        if role.step(clock.now_ms(), &mut NoFence).is_err() {
            return;
        }
        tries += 1;
        clock.pause(tries);
    }
}

fn use_everything(cluster: &Cluster, member: &RackMember, host: usize) {
    let clock = cluster.clock(host);
    for _ in 0..2 {
        let chunk = member.allocate_chunk(&clock, 200, 77);
        let lock = member.allocate_lock(&clock, 200);
        drop(member.lock_shared(LockId(9), &clock, 200));
        let _ = member.manager_seen();
        let _ = member.owned_chunks();
        if let Ok(chunk) = chunk {
            let _ = member.free_chunk(&clock, 200, chunk);
        }
        if let Ok(lock) = lock {
            let _ = member.free_lock(&clock, 200, lock);
        }
    }
    let name = format!("root {host}");
    let object = member.allocate(&clock, 200, 300);
    if let Ok(object) = &object {
        let _ = object.write(member.fabric(), 0, b"a tree");
        let _ = member.put_root(&clock, 200, &name, object.offset(), RootKind::Linked);
    }
    for root in member.roots() {
        let mut bytes = [0; 6];
        let _ = root.object.read(member.fabric(), 0, &mut bytes);
    }
    let _ = member.sweep_heap(&clock, 200);
    let _ = member.answer_chunk_requests(&clock, 200);
    let _ = member.heap_usage(&clock);
    if member.destroy_root(&clock, 200, &name).is_err()
        && let Ok(object) = object
    {
        let _ = member.free(&clock, 200, object.offset());
    }
    let Ok(cache) = Cache::attach(member, &clock) else { return };
    let dma = SimulatedDma::new(member.fabric().clone(), DmaCache::Bypass);
    let session = SessionCore::new(&cache, &dma, &clock, options());
    let tokens: Vec<u32> = (0..BLOCKS * 4).collect();
    let hashes = ChainHasher::new(b"", 4).chain(&tokens);
    for _ in 0..2 {
        let Ok(found) = session.lookup(&hashes) else { continue };
        let mut bytes = vec![vec![0; BLOCK_BYTES]; found.blocks().len()];
        let parts = bytes.iter_mut().map(|bytes| vec![bytes.as_mut_slice()]).collect();
        let Ok(report) = session.fetch(found.blocks(), parts) else { continue };
        for (hash, bytes) in hashes.iter().zip(&bytes[..report.valid_blocks()]) {
            assert!(*bytes == payload(hash), "wrong bytes were accepted");
        }
        let computed: Vec<_> = hashes.iter().map(payload).collect();
        let parts = computed.iter().map(|bytes| [bytes.as_slice()]);
        let blocks = NewBlock::chain(0, hashes.iter().copied(), parts);
        let _ = session.publish(&blocks);
    }
}

fn options() -> SessionOptions {
    let model = Model {
        name: "tiny",
        revision: "1",
        dtype: "u8",
        layout_version: 1,
        block_tokens: 4,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 1,
        kv_heads: 1,
        head_dim: 8,
    };
    SessionOptions::new(model, BLOCK_BYTES as u64).with_chunk_timeout(Duration::from_millis(500))
}
