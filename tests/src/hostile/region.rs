//! Damage to the metadata of a region and to the memory of a host, by a process that may write both.

use std::time::Duration;

use arbitrary::Unstructured;
use cxl_shm::clock::Clock;
use cxl_shm::fabric::{Fabric, HostMemory};
use cxl_shm::host::HostTier;
use cxl_shm::layout::{Geometry, Layout, read_superblock};
use cxl_shm::lifecycle::NoFence;
use cxl_shm::units::{LINE_BYTES, LineRange, LockId, PAGE_BYTES};
use cxl_shm::verify::simulated::{DmaCache, Faults, Schedule, Settings};
use cxl_shm_objects::{LockTable, NamedRoots, Objects, RootKind};
use kv_cache::{
    Audit, BlockHash, BlockUses, Cache, CacheGeometry, ChainHasher, Model, PayloadSample,
    PoolReader, agent_of, directives_of, held_by, holders_of, summary_of,
};
use lock_manager::{ManagerRole, Timeouts};
use rackline::dma::SimulatedDma;
use rackline::session::SessionCore;
use rackline::{NewBlock, SessionOptions};

use super::damaged_lines::{DamagedLines, line_number, value};
use crate::rack::{Cluster, Mutant, RackMember, lock_protocol, run};

pub(super) const HOSTS: usize = 3;
/// Changes that an input makes at most: more say no more, and take longer.
const EDITS_MAX: usize = 64;
const BLOCK_BYTES: usize = 200;
const BLOCKS: u32 = 6;
/// Another target damages the superblock.
pub(super) const SUPERBLOCK_BYTES: u64 = 3 * PAGE_BYTES;

/// The geometry, and what the layer above keeps in the superblock.
pub(super) fn geometry() -> (Geometry, [u64; 6]) {
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

/// Three hosts fill a region. Then lines of it are damaged as `input` says, or the memory of a host is.
/// All hosts go on with what is there. Errors, misses and time-outs are right answers.
///
/// # Panics
/// When anything panics, does not end, or a wrong byte is accepted.
pub fn damaged_region(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let seed = u64::from(input.arbitrary::<u8>().unwrap_or(0));
    let (geometry, application) = geometry();
    let settings = Settings { seed, ..Settings::sticky(HOSTS, geometry.region_bytes) };
    let protocol = lock_protocol(seed);
    let cluster = Cluster::format(settings, geometry, protocol, application, Mutant::NONE);
    let work = |seed, steps_max, forged| {
        let mut schedule =
            Schedule::builder(&cluster.rack, seed).steps_max(steps_max).faults(Faults::NONE);
        for host in 0..HOSTS {
            let manager = cluster.clone();
            schedule = schedule.daemon(host, format!("manager {host}"), move |_| {
                manage(&manager, host);
            });
            let worker = cluster.clone();
            schedule = schedule.task(host, format!("worker {host}"), move || {
                if let Ok(member) = worker.try_join(host, "worker") {
                    use_everything(&worker, &member, host, forged);
                }
            });
        }
        run(schedule);
        cluster.processes.end_all();
    };
    work(seed, 3_000_000, Forged(false));
    let forged = damage(&cluster, geometry, &mut input);
    work(!seed, 6_000_000, forged);
    observe(&cluster);
}

/// Damages the metadata behind the superblock, or the words of a host.
fn damage(cluster: &Cluster, geometry: Geometry, input: &mut Unstructured<'_>) -> Forged {
    let layout = Layout::new(geometry).unwrap_or_else(|error| panic!("{error}"));
    let device = cluster.rack.host(2);
    let metadata = LineRange::covering(layout.metadata());
    assert!(metadata.lines() * LINE_BYTES < cluster.rack.bytes());
    device.refresh(metadata);
    let first = line_number(SUPERBLOCK_BYTES);
    let mut lines = DamagedLines::of(&device, first..line_number(layout.metadata().bytes()));
    let host_words = HostTier::words_of(&geometry);
    for _ in 0..EDITS_MAX {
        if input.is_empty() {
            break;
        }
        let edit = match input.arbitrary() {
            Ok(true) => lines.edit(input),
            Ok(false) | Err(_) => damage_words(cluster, host_words, input),
        };
        if edit.is_err() {
            break;
        }
    }
    // No cache has anything of it, as after a restart of all hosts.
    (0..HOSTS).for_each(|host| cluster.rack.host(host).refresh(metadata));
    Forged(lines.sealed())
}

/// Stores a value in the host memory that all processes of a host share.
fn damage_words(
    cluster: &Cluster,
    words: usize,
    input: &mut Unstructured<'_>,
) -> arbitrary::Result<()> {
    let memory = cluster.rack.host_memory(input.choose_index(HOSTS)?, words);
    let at = input.choose_index(words)?;
    let elsewhere = memory.load(input.choose_index(words)?);
    memory.store(at, value(input, memory.load(at), elsewhere)?);
    Ok(())
}

/// Reads the region as commands do that join no node.
fn observe(cluster: &Cluster) {
    let host = cluster.rack.host(1);
    let Ok((superblock, layout)) = read_superblock(&host) else { return };
    for in_use in [false, true] {
        if let Ok(audit) = Audit::new(&host, &superblock, &layout, in_use) {
            audit.run(PayloadSample::All, || (), |_, _, _| ());
        }
    }
    if let Ok(mut reader) = PoolReader::new(&superblock, &layout) {
        reader.refresh(&host);
        reader.refresh(&host);
    }
    let nodes: Vec<_> = layout.nodes().collect();
    for node in &nodes {
        let _ = directives_of(&host, &superblock, &layout, *node);
        let _ = agent_of(&host, &superblock, &layout, *node);
        let _ = summary_of(&host, &superblock, &layout, *node);
        let _ = held_by(&host, &superblock, &layout, *node);
        let _ = holders_of(&host, &superblock, &layout, *node, 0);
        if let Ok(uses) = BlockUses::look(&host, &superblock, &layout, *node, &nodes) {
            let _ = uses.of(&host, 0);
        }
    }
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

/// Whether a line was changed and sealed again: then a block may have the bytes of another, with a
/// checksum that fits. No reader can see that (deploy/docs/security.md).
#[derive(Clone, Copy, Debug)]
pub(super) struct Forged(pub(super) bool);

/// Uses locks, chunks, objects and the cache.
pub(super) fn use_everything(cluster: &Cluster, member: &RackMember, host: usize, forged: Forged) {
    let clock = cluster.clock(host);
    for _ in 0..2 {
        let chunk = member.allocate_chunk(&clock, 200, 77);
        let lock = member.allocate_lock(&clock, 200);
        drop(member.lock_shared(LockId(9.min(cluster.geometry().locks - 1)), &clock, 200));
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
            assert!(forged.0 || *bytes == payload(hash), "wrong bytes were accepted");
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
